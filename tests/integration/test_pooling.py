"""Models that pool from their checkpoints to embeddings, classes, scores and rewards, which are transformers' or follow from its
hidden states by sentence-transformers' arithmetic."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from jaxengine import LLM, PoolingParams
from jaxengine.contract.arrays import Floats
from jaxengine.errors import CheckpointError, ConfigError, ContextLengthError, RequestError, UnsupportedError
from tests.device.models.cases import PROMPTS, ClassifyingFixture, random_tensors
from tests.integration.engines import SMALL, start

OPTIONS = {
    **SMALL,
    "load_format": "auto",
    "max_model_len": 32,
    "max_num_batched_tokens": 32,
    "buckets": ("4x8", "4x4"),
}
MAX_ERROR = 1e-4
RAW = PoolingParams(use_activation=False)
E = 64


@pytest.fixture(scope="module")
def fixture() -> ClassifyingFixture:
    return ClassifyingFixture.load("classes")


@contextmanager
def started(directory: Path, **options: Any) -> Iterator[LLM]:
    engine = start(directory, **{**OPTIONS, **options})
    try:
        yield LLM.from_engine(engine)
        engine.core.check_idle()
    finally:
        engine.close()


def softmax(x: Floats) -> Floats:
    shares: Floats = np.exp(x - x.max(axis=-1, keepdims=True))
    return shares / shares.sum(axis=-1, keepdims=True)


def unit(x: Floats) -> Floats:
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(np.asarray(found), expected, atol=MAX_ERROR, rtol=0)


def encoded(llm: LLM, prompts: Any = PROMPTS, **options: Any) -> list[Floats]:
    return [output.outputs.data for output in llm.encode(prompts, use_tqdm=False, **options)]


def weights(**shapes: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Numbers for these tensors, of which `__` in a name stands for a dot."""
    return random_tensors({name.replace("__", "."): shape for name, shape in shapes.items()})


def sentence_files(directory: Path, *modules: str, pooling: Mapping[str, Any] | None = None) -> Path:
    entries = [
        {"path": f"{i}_{name}" if i else "", "type": f"sentence_transformers.models.{name}"}
        for i, name in enumerate(modules)
    ]
    (directory / "modules.json").write_text(json.dumps(entries))
    if pooling is not None:
        (directory / "1_Pooling").mkdir()
        (directory / "1_Pooling/config.json").write_text(json.dumps(pooling))
    return directory


def test_classes_are_transformers_alone_and_in_company(fixture: ClassifyingFixture, tmp_path: Path) -> None:
    with started(fixture.write(tmp_path / "model")) as llm:
        for output, logits in zip(llm.classify(PROMPTS, use_tqdm=False), fixture.logits, strict=True):
            close(output.outputs.probs, softmax(logits))
            assert output.outputs.num_classes == 3
        raw = [output.outputs.probs for output in llm.classify(PROMPTS, pooling_params=RAW, use_tqdm=False)]
        for numbers, logits in zip(raw, fixture.logits, strict=True):
            close(numbers, logits)
        weight = random_tensors(fixture.shapes)["score.weight"]
        each = encoded(llm, pooling_task="token_classify", pooling_params=RAW)
        for numbers, hidden in zip(each, fixture.hidden, strict=True):
            close(numbers, hidden @ weight.T)
        # a mixed batch, of prompts whole and in parts, changes no bit
        params = [RAW, RAW.replace(task="token_classify")] * 3
        mixed = encoded(llm, [prompt for prompt in PROMPTS for _ in range(2)], pooling_params=params)
        assert [numbers.tolist() for numbers in mixed[::2]] == raw
        assert [numbers.tolist() for numbers in mixed[1::2]] == [numbers.tolist() for numbers in each]
        with pytest.raises(RequestError, match="cannot compare texts: it has more than one label"):
            llm.score("a", "b")
        with pytest.raises(UnsupportedError, match="generates nothing: its tasks are classify, token_classify"):
            llm.generate([5])
        with pytest.raises(RequestError, match="no task 'embed'; it has classify, token_classify"):
            llm.embed([5])
        with pytest.raises(RequestError, match="dimensions must be left out: this model classifies"):
            llm.classify([5], pooling_params=PoolingParams(dimensions=2))
        assert llm.get_metrics()["num_compilations"] == 0


@pytest.mark.slow
def test_classes_of_each_token_are_transformers(tmp_path: Path) -> None:
    tokens = ClassifyingFixture.load("tokens")
    with started(tokens.write(tmp_path / "model")) as llm:
        for output, logits in zip(llm.encode(PROMPTS, use_tqdm=False), tokens.logits, strict=True):
            close(output.outputs.data, softmax(logits))


@pytest.mark.slow
def test_a_model_with_classes_may_embed_instead(fixture: ClassifyingFixture, tmp_path: Path) -> None:
    """Without its head, pooled by the mean, in parts where a text is longer than the context."""
    directory = fixture.write(tmp_path / "model", left="score")
    config = {"pooling_type": "MEAN", "enable_chunked_processing": True, "max_embed_len": 80}
    with started(directory, convert="embed", pooler_config=config) as llm:
        means = [unit(hidden.mean(axis=0)) for hidden in fixture.hidden]
        for output, expected in zip(llm.embed(PROMPTS, use_tqdm=False), means, strict=True):
            close(output.outputs.embedding, expected)
        long = PROMPTS[0] * 3  # 45 tokens, of 32 in a part
        parts = encoded(llm, [long[:32], long[32:]], pooling_params=RAW)
        [whole] = llm.embed([long], use_tqdm=False)
        close(whole.outputs.embedding, unit((32 * parts[0] + 13 * parts[1]) / 45))
        assert whole.prompt_token_ids == tuple(long)
        with pytest.raises(ContextLengthError, match=r"90 tokens, more than max_embed_len \(80\)"):
            llm.embed([PROMPTS[0] * 6])
        with pytest.raises(ContextLengthError, match="only embeddings are made of parts"):
            llm.encode([long], pooling_task="token_embed")


@pytest.mark.slow
def test_the_first_token_a_projection_and_dimensions(fixture: ClassifyingFixture, tmp_path: Path) -> None:
    """A folder of sentence-transformers with a projection behind its pooling."""
    directory = fixture.write(tmp_path / "model", left="score", architectures=["Qwen3Model"])
    sentence_files(directory, "Transformer", "Pooling", "Dense", "Normalize", pooling={"pooling_mode_cls_token": True})
    dense = weights(linear__weight=(24, E), linear__bias=(24,))
    (directory / "2_Dense").mkdir()
    activation = {"in_features": E, "out_features": 24, "activation_function": "torch.nn.modules.activation.Tanh"}
    (directory / "2_Dense/config.json").write_text(json.dumps(activation))
    save_file(dense, directory / "2_Dense/model.safetensors")
    firsts = np.tanh([hidden[0] @ dense["linear.weight"].T + dense["linear.bias"] for hidden in fixture.hidden])
    with started(directory) as llm:
        for output, expected in zip(llm.embed(PROMPTS, use_tqdm=False), unit(firsts), strict=True):
            close(output.outputs.embedding, expected)
        cut = encoded(llm, pooling_params=PoolingParams(dimensions=5))
        close(cut, unit(firsts[:, :5]))
        with pytest.raises(RequestError, match="from 1 to 24"):
            llm.embed([5], pooling_params=PoolingParams(dimensions=25))
    with pytest.raises(ConfigError, match="dimensions must be at most 24, got 30"):
        start(directory, **OPTIONS, pooler_config={"dimensions": 30})
    (directory / "2_Dense/model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="2_Dense"):
        start(directory, **OPTIONS)


@pytest.mark.slow
def test_a_vector_for_each_token(fixture: ClassifyingFixture, tmp_path: Path) -> None:
    directory = fixture.write(tmp_path / "model", left="score")
    with started(directory, convert="embed", pooler_config={"pooling_type": "ALL", "normalize": True}) as llm:
        for numbers, hidden in zip(encoded(llm), fixture.hidden, strict=True):
            close(numbers, unit(hidden))
        with pytest.raises(RequestError, match="no task 'embed'; it has token_embed"):
            llm.embed([5])


@pytest.mark.slow
def test_rewards_of_tokens_and_of_steps(fixture: ClassifyingFixture, tmp_path: Path) -> None:
    head = weights(score__0__weight=(E, E), score__0__bias=(E,), score__2__weight=(2, E), score__2__bias=(2,))
    inner = [np.maximum(hidden @ head["score.0.weight"].T + head["score.0.bias"], 0) for hidden in fixture.hidden]
    logits = [hidden @ head["score.2.weight"].T + head["score.2.bias"] for hidden in inner]
    process = fixture.write(
        tmp_path / "process",
        head,
        left="score",
        architectures=["Qwen3ForProcessRewardModel"],
        id2label=None,
        num_labels=2,
    )
    tag = PROMPTS[0][4]
    with started(
        process, pooler_config={"pooling_type": "STEP", "step_tag_id": tag, "returned_token_ids": [1, 0]}
    ) as llm:
        [found] = llm.reward([PROMPTS[0]], use_tqdm=False)
        close(found.outputs.data, softmax(logits[0][4:5, ::-1]))
    head |= {name: head[name][:1] for name in ("score.2.weight", "score.2.bias")}
    plain = fixture.write(tmp_path / "plain", head, left="score", architectures=["Qwen3ForRewardModel"])
    with started(plain) as llm:
        for output, expected in zip(llm.reward(PROMPTS, use_tqdm=False), logits, strict=True):
            close(output.outputs.data, expected[:, :1])


def test_options_that_contradict_the_model(fixture: ClassifyingFixture, tmp_path: Path) -> None:
    directory = fixture.write(tmp_path / "model")
    with pytest.raises(ConfigError, match=r"max_model_len \(32\) is more than max_num_batched_tokens \(16\)"):
        start(directory, **{**OPTIONS, "max_num_batched_tokens": 16}, pooler_config={"pooling_type": "MEAN"})
    with pytest.raises(ConfigError, match="lm_head_dtype='int8' was asked for, and this model generates nothing"):
        start(directory, **OPTIONS, lm_head_dtype="int8")
    headless = fixture.write(tmp_path / "headless", left="score")
    with pytest.raises(CheckpointError, match=r"pooler\.projections\.0\.matrix"):
        start(headless, **OPTIONS)
