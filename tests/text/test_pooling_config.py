"""The files of sentence-transformers: what is built is found, what is not is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from jaxengine.errors import CheckpointError
from jaxengine.text.pooling_config import PoolingDefaults

LAST = {"word_embedding_dimension": 64, "pooling_mode_mean_tokens": False, "pooling_mode_lasttoken": True}


def write(directory: Path, *modules: str, pooling: Any = LAST, package: str = "sentence_transformers.models") -> Path:
    """A model's directory with these modules."""
    entries = [{"idx": i, "name": str(i), "path": "", "type": f"{package}.{name}"} for i, name in enumerate(modules)]
    (directory / "modules.json").write_text(json.dumps(entries))
    (directory / "1_Pooling").mkdir()
    (directory / "1_Pooling/config.json").write_text(json.dumps(pooling))
    return directory


def test_without_files_embeddings_are_normalised(tmp_path: Path) -> None:
    assert PoolingDefaults.load(tmp_path) == PoolingDefaults(described=False, normalize=True, unsupported=None)
    file = tmp_path / "config.json"
    file.write_text("{}")
    assert PoolingDefaults.load(file) == PoolingDefaults()


@pytest.mark.parametrize("pooling", [LAST, {"pooling_mode": "lasttoken"}, {"pooling_mode": ["lasttoken"]}])
@pytest.mark.parametrize("package", ["sentence_transformers.models", "sentence_transformers.base.modules.pooling"])
def test_the_last_token_is_built(tmp_path: Path, pooling: Any, package: str) -> None:
    directory = write(tmp_path, "Transformer", "Pooling", "Normalize", pooling=pooling, package=package)
    assert PoolingDefaults.load(directory) == PoolingDefaults(described=True, normalize=True)


def test_a_model_that_does_not_normalise(tmp_path: Path) -> None:
    assert PoolingDefaults.load(write(tmp_path, "Transformer", "Pooling")).normalize is False


@pytest.mark.parametrize(
    ("modules", "pooling", "reason"),
    [
        (["Transformer", "Pooling"], {"pooling_mode_mean_tokens": True}, "pooled by mean_tokens, and only lasttoken"),
        (
            ["Transformer", "Pooling"],
            {"pooling_mode_cls_token": True, "pooling_mode_lasttoken": True},
            "pooled by cls_token and lasttoken",
        ),
        (["Transformer", "Pooling"], {"pooling_mode": "cls"}, "pooled by cls"),
        (["Transformer", "Pooling"], {}, "pooled by no known mode"),
        (["Transformer", "Normalize"], LAST, "pooled by no known mode"),
        (["Transformer", "Pooling", "Dense", "Normalize"], LAST, "modules.json asks for Dense after the model"),
    ],
)
def test_what_is_not_built_is_named(tmp_path: Path, modules: list[str], pooling: Any, reason: str) -> None:
    found = PoolingDefaults.load(write(tmp_path, *modules, pooling=pooling))
    assert found.described
    assert reason in (found.unsupported or "")


@pytest.mark.parametrize("text", ["{", '{"a": 1}', "[1]", "[{}]", "3"])
def test_a_damaged_list_of_modules(tmp_path: Path, text: str) -> None:
    (tmp_path / "modules.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"modules\.json is not a list of modules"):
        PoolingDefaults.load(tmp_path)
