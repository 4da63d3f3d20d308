"""Encoders from their checkpoints to what transformers computes: hidden states, classes, scores of pairs, in mixed batches."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxengine import LLM, PoolingParams
from jaxengine.errors import ConfigError, UnsupportedError
from jaxengine.front.prompts import ParsedPrompt
from jaxengine.options.config import EngineConfig
from jaxengine.startup import native as startup_native
from jaxengine.startup.model_plan import plan_model
from tests.device.models.encoder_cases import _BERT as BERT
from tests.device.models.encoder_cases import ENCODERS, INPUTS, SECOND_FROM, EncoderFixture
from tests.integration.engines import SMALL, start
from tests.quick import slow_but

OPTIONS = {
    **SMALL,
    "load_format": "auto",
    "max_model_len": 64,
    "max_num_batched_tokens": 64,
    "buckets": ("4x16", "2x12"),
}
MAX_ERROR = 1e-4
RAW = PoolingParams(use_activation=False)
QUICK = {"bert", "roberta_classes"}
RARELY = {"eurobert", "eurobert_tokens", "llama_both_sides", "qwen3_both_sides", "deberta_v2", "mpnet_classes"}
"""Whose layers, or whose heads, others have too."""


@contextmanager
def started(directory: Path, **options: Any) -> Iterator[LLM]:
    engine = start(directory, **{**OPTIONS, **options})
    try:
        yield LLM.from_engine(engine)
        engine.core.check_idle()
    finally:
        engine.close()


def close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(np.asarray(found), expected, atol=MAX_ERROR, rtol=0)


def pooled(llm: LLM, prompts: Any, task: str) -> list[np.ndarray]:
    return [output.outputs.data for output in llm.encode(prompts, RAW, pooling_task=task, use_tqdm=False)]


@pytest.mark.parametrize("name", slow_but(ENCODERS, QUICK, often=ENCODERS.keys() - RARELY))
def test_an_encoder_is_transformers(name: str, tmp_path: Path) -> None:
    fixture = EncoderFixture.load(name)
    of_rows = fixture.outputs[0].ndim == 1
    task = "classify" if of_rows else "token_classify" if "labels" in str(ENCODERS[name][1]) else "token_embed"
    with started(fixture.write(tmp_path / "model")) as llm:
        alone = [pooled(llm, [ids], task)[0] for ids in INPUTS]
        for found, expected in zip(alone, fixture.outputs, strict=True):
            close(found, expected)
        company = pooled(llm, [*INPUTS, *INPUTS[::-1], INPUTS[0]], task)
        for found, own in zip(company, [*alone, *alone[::-1], alone[0]], strict=True):
            np.testing.assert_array_equal(found, own)
        if fixture.paired is not None:
            [paired] = pooled(llm, [ParsedPrompt(None, tuple(INPUTS[0]), second_from=SECOND_FROM)], task)
            close(paired, fixture.paired)
            assert np.abs(paired - alone[0]).max() > 100 * MAX_ERROR, "the two kinds of texts must differ"
        assert llm.get_metrics()["num_compilations"] == 0


@pytest.mark.parametrize("dtype", slow_but(["float32", "bfloat16"], (), often=["float32", "bfloat16"]))
def test_packed_matrices_give_what_plain_ones_do(
    native: str, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one width that fills panels and one that does not; both engines draw the same random weights."""
    config = {
        "architectures": ["BertModel"],
        **BERT,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 1,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    options = {"dtype": dtype, "load_format": "dummy"}
    with started(tmp_path, **options) as llm:
        plain = pooled(llm, INPUTS, "token_embed")
    monkeypatch.setattr(startup_native, "MIN_ENCODER_BYTES", 0)
    with started(tmp_path, **options, xla_cache_path=str(tmp_path / "cache")) as llm:
        alone = [pooled(llm, [ids], "token_embed")[0] for ids in INPUTS]
        for found, own, expected in zip(pooled(llm, INPUTS, "token_embed"), alone, plain, strict=True):
            np.testing.assert_array_equal(found, own)
            np.testing.assert_allclose(found, expected, atol=MAX_ERROR if dtype == "float32" else 0.03)
    model = plan_model(EngineConfig.from_options(model=str(tmp_path), **{**OPTIONS, **options}))
    shapes = {path: struct.shape for path, struct in model.calling(native).parameters.items()}
    assert shapes["layers.0.mlp.up.weight"] == ((8, 64, 16) if dtype == "float32" else (8, 32, 16, 2))
    assert model.calling(None) == model


@pytest.mark.slow
def test_the_first_token_stands_for_a_text_unless_files_say_otherwise(tmp_path: Path) -> None:
    fixture = EncoderFixture.load("bert")
    with started(fixture.write(tmp_path / "model")) as llm:
        for output, hidden in zip(llm.embed(INPUTS, use_tqdm=False), fixture.outputs, strict=True):
            close(output.outputs.embedding, hidden[0] / np.linalg.norm(hidden[0]))
        with pytest.raises(UnsupportedError, match="generates nothing"):
            llm.generate([5])
    with started(tmp_path / "model", pooler_config={"pooling_type": "MEAN"}) as llm:
        for found, hidden in zip(pooled(llm, INPUTS, "embed"), fixture.outputs, strict=True):
            close(found, hidden.mean(axis=0))
    with pytest.raises(ConfigError, match="is an encoder, which generates nothing"):
        start(tmp_path / "model", **OPTIONS, runner="generate")


@pytest.mark.slow
def test_a_bidirectional_llama_is_pooled_as_its_file_says(tmp_path: Path) -> None:
    fixture = EncoderFixture.load("llama_both_sides")
    changes = {"architectures": ["LlamaBidirectionalModel"], "pooling": "avg", "temperature": 0.02}
    with started(fixture.write(tmp_path / "model", **changes)) as llm:
        for found, hidden in zip(pooled(llm, INPUTS, "embed"), fixture.outputs, strict=True):
            close(found, hidden.mean(axis=0))
