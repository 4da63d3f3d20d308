"""The files of sentence-transformers: what is built is found, what is not is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from jaxengine.errors import CheckpointError
from jaxengine.text.sentence_files import DenseModule, SentenceFiles

LAST = {"word_embedding_dimension": 64, "pooling_mode_mean_tokens": False, "pooling_mode_lasttoken": True}


def write(directory: Path, *modules: str, pooling: Any = LAST, package: str = "sentence_transformers.models") -> Path:
    """A model's directory with these modules."""
    entries = [
        {"idx": i, "name": str(i), "path": f"{i}_{name}" if i else "", "type": f"{package}.{name}"}
        for i, name in enumerate(modules)
    ]
    (directory / "modules.json").write_text(json.dumps(entries))
    (directory / "1_Pooling").mkdir()
    (directory / "1_Pooling/config.json").write_text(json.dumps(pooling))
    return directory


def test_without_files_embeddings_are_normalised(tmp_path: Path) -> None:
    assert SentenceFiles.load(tmp_path) == SentenceFiles(described=False, normalize=True, unsupported=None)
    file = tmp_path / "config.json"
    file.write_text("{}")
    assert SentenceFiles.load(file) == SentenceFiles()


@pytest.mark.parametrize("pooling", [LAST, {"pooling_mode": "lasttoken"}, {"pooling_mode": ["lasttoken"]}])
@pytest.mark.parametrize("package", ["sentence_transformers.models", "sentence_transformers.base.modules.pooling"])
def test_the_last_token_is_built(tmp_path: Path, pooling: Any, package: str) -> None:
    directory = write(tmp_path, "Transformer", "Pooling", "Normalize", pooling=pooling, package=package)
    assert SentenceFiles.load(directory) == SentenceFiles(described=True, normalize=True, pooling="LAST")


def test_a_model_that_does_not_normalise(tmp_path: Path) -> None:
    assert SentenceFiles.load(write(tmp_path, "Transformer", "Pooling")).normalize is False


@pytest.mark.parametrize(
    ("pooling", "name"),
    [
        ({"pooling_mode_mean_tokens": True}, "MEAN"),
        ({"pooling_mode": "cls"}, "CLS"),
        ({"pooling_mode_cls_token": True}, "CLS"),
    ],
)
def test_other_poolings(tmp_path: Path, pooling: Any, name: str) -> None:
    assert SentenceFiles.load(write(tmp_path, "Transformer", "Pooling", pooling=pooling)).pooling == name


def test_projections_prompts_and_length(tmp_path: Path) -> None:
    write(tmp_path, "Transformer", "Pooling", "Dense", "Normalize")
    (tmp_path / "2_Dense").mkdir()
    activation = "torch.nn.modules.activation.Tanh"
    dense = {"in_features": 64, "out_features": 8, "bias": True, "activation_function": activation}
    (tmp_path / "2_Dense/config.json").write_text(json.dumps(dense))
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps({"prompts": {"query": "search: "}}))
    (tmp_path / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 256}))
    found = SentenceFiles.load(tmp_path)
    assert found.dense == (DenseModule("2_Dense", 64, 8, bias=True, activation="tanh"),)
    assert (found.prompts, found.max_tokens) == ({"query": "search: "}, 256)
    (tmp_path / "2_Dense/config.json").write_text(json.dumps(dense | {"activation_function": "torch.Softsign"}))
    with pytest.raises(CheckpointError, match="activation_function 'Softsign' is not built"):
        SentenceFiles.load(tmp_path)


def test_without_pooling_each_token_has_a_vector(tmp_path: Path) -> None:
    found = SentenceFiles.load(write(tmp_path, "Transformer", "Normalize"))
    assert (found.pooling, found.unsupported) == (None, None)


@pytest.mark.parametrize(
    ("modules", "pooling", "reason"),
    [
        (
            ["Transformer", "Pooling"],
            {"pooling_mode_max_tokens": True},
            "pooled by max_tokens, and built are LAST, CLS, MEAN",
        ),
        (
            ["Transformer", "Pooling"],
            {"pooling_mode_cls_token": True, "pooling_mode_lasttoken": True},
            "pooled by cls_token and lasttoken",
        ),
        (["Transformer", "Pooling"], {}, "pooled by no known mode"),
        (["Transformer", "Pooling", "LSTM", "Normalize"], LAST, "modules.json asks for LSTM after the model"),
    ],
)
def test_what_is_not_built_is_named(tmp_path: Path, modules: list[str], pooling: Any, reason: str) -> None:
    found = SentenceFiles.load(write(tmp_path, *modules, pooling=pooling))
    assert found.described
    assert reason in (found.unsupported or "")


@pytest.mark.parametrize("text", ["{", '{"a": 1}', "[1]", "[{}]", "3"])
def test_a_damaged_list_of_modules(tmp_path: Path, text: str) -> None:
    (tmp_path / "modules.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"modules\.json is not a list of modules"):
        SentenceFiles.load(tmp_path)
