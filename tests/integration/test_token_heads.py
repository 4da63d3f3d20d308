"""Models with a vector or a weight for each token: BGE-M3's three outputs, and ColBERT's late interaction."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from jaxengine import LLM
from jaxengine.errors import CheckpointError, RequestError
from tests.device.models.encoder_cases import INPUTS, EncoderFixture
from tests.integration.engines import start
from tests.integration.test_encoders import OPTIONS, RAW, close, pooled, started

FIRST, LAST = INPUTS[0][0], INPUTS[0][-1]


def heads(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    generator = np.random.default_rng(7)
    return [generator.normal(size=shape, scale=0.2).astype(np.float32) for shape in shapes]


def add_tensors(directory: Path, tensors: dict[str, np.ndarray]) -> None:
    path = directory / "model.safetensors"
    save_file({**load_file(path), **tensors}, path)


def scaled(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def numbers(llm: LLM, prompts: Any, task: str) -> list[np.ndarray]:
    return [output.outputs.data for output in llm.encode(prompts, pooling_task=task, use_tqdm=False)]


def m3(directory: Path) -> tuple[EncoderFixture, list[np.ndarray]]:
    """A checkpoint of BGE-M3's kind whose tokenizer would put `FIRST` and `LAST` around a text, and its four arrays."""
    fixture = EncoderFixture.load("xlm_roberta")
    fixture.write(directory, architectures=["BgeM3EmbeddingModel"], bos_token_id=FIRST, eos_token_id=LAST)
    vector, vector_bias, weight, weight_bias = heads((48, 48), (48,), (1, 48), (1,))
    return fixture, [vector, vector_bias, weight, weight_bias - 1.1]  # weights of both signs


def test_bge_m3_has_a_dense_a_sparse_and_a_multi_vector_output(tmp_path: Path) -> None:
    fixture, (vector, vector_bias, weight, weight_bias) = m3(tmp_path / "model")
    names = ("colbert_linear.weight", "colbert_linear.bias", "sparse_linear.weight", "sparse_linear.bias")
    add_tensors(tmp_path / "model", dict(zip(names, (vector, vector_bias, weight, weight_bias), strict=True)))
    with started(tmp_path / "model") as llm:
        alone = {task: [numbers(llm, [ids], task)[0] for ids in INPUTS] for task in ("token_embed", "token_classify")}
        for number, (ids, hidden) in enumerate(zip(INPUTS, fixture.outputs, strict=True)):
            begin, end = int(ids[0] == FIRST), len(ids) - int(ids[-1] == LAST)
            close(llm.embed([ids], use_tqdm=False)[0].outputs.embedding, scaled(hidden[0]))
            close(alone["token_embed"][number], scaled(hidden @ vector.T + vector_bias)[begin:])
            close(alone["token_classify"][number], np.maximum(hidden @ weight.T + weight_bias, 0)[begin:end])
        raw = pooled(llm, INPUTS[:1], "token_classify")[0]
        close(raw, (fixture.outputs[0] @ weight.T + weight_bias)[1:-1])
        assert 0 < (raw < 0).sum() < len(raw), "both signs are wanted"
        for task, own in alone.items():
            for found, expected in zip(numbers(llm, [*INPUTS, *INPUTS[::-1]], task), [*own, *own[::-1]], strict=True):
                np.testing.assert_array_equal(found, expected)
        with pytest.raises(RequestError, match="returned_token_ids must be below 1, got 1"):
            llm.encode(INPUTS[:1], RAW.replace(returned_token_ids=[1]), pooling_task="token_classify")


@pytest.mark.slow
def test_bge_m3_reads_the_files_beside_its_weights(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    fixture, (vector, vector_bias, weight, weight_bias) = m3(tmp_path / "model")
    for name, arrays in (("colbert_linear", (vector, vector_bias)), ("sparse_linear", (weight, weight_bias))):
        tensors = dict(zip(("weight", "bias"), map(torch.from_numpy, arrays), strict=True))
        torch.save(tensors, tmp_path / "model" / f"{name}.pt")
    with started(tmp_path / "model") as llm:
        [found] = numbers(llm, INPUTS[:1], "token_embed")
        close(found, scaled(fixture.outputs[0] @ vector.T + vector_bias)[1:])
    (tmp_path / "model/sparse_linear.pt").unlink()
    with pytest.raises(CheckpointError, match="sparse_linear"):
        start(tmp_path / "model", **OPTIONS)


@pytest.mark.slow
def test_colbert_compares_by_late_interaction(tmp_path: Path) -> None:
    """The size of a vector is in a file of its own."""
    fixture = EncoderFixture.load("bert")
    fixture.write(tmp_path / "model", architectures=["HF_ColBERT"])
    (tmp_path / "model/artifact.metadata").write_text('{"dim": 24}')
    [vector] = heads((24, 48))
    add_tensors(tmp_path / "model", {"linear.weight": vector})
    with started(tmp_path / "model") as llm:
        expected = [scaled(hidden @ vector.T) for hidden in fixture.outputs]
        for found, own in zip(numbers(llm, INPUTS, "token_embed"), expected, strict=True):
            close(found, own)
        scores = numbers(llm, INPUTS[:2], "score")
        close((scores[0] @ scores[1].T).max(axis=1).sum(), (expected[0] @ expected[1].T).max(axis=1).sum())
        with pytest.raises(RequestError, match="has no task 'embed'; it has token_embed"):
            llm.embed(INPUTS[:1])
