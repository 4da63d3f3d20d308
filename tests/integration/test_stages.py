"""Layers over several meshes: the bits of one stage, whatever else a step brings, and nothing compiles."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from jaxengine import LLM
from jaxengine.contract.outputs import RequestOutput
from jaxengine.contract.pooling_params import PoolingParams
from jaxengine.contract.sampling_params import SamplingParams, StructuredOutputsParams
from jaxengine.errors import ConfigError
from jaxengine.options.config import EngineConfig
from jaxengine.startup.build import Engine, build_engine
from tests.integration.engines import SMALL, greedy, run, start, token_ids, write_checkpoint, write_config
from tests.integration.test_deterministic import bits
from tests.integration.test_hosts import GREEDY, KINDS, PLAIN, RANDOM, requests
from tests.quick import slow_but

pytestmark = pytest.mark.usefixtures("quick_engines")

NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}
STAGES: dict[str, dict[str, Any]] = {
    "two": {"pipeline_parallel_size": 2},
    "three": {"pipeline_parallel_size": 3},
    "two of two": {"pipeline_parallel_size": 2, "tensor_parallel_size": 2},
}
TIGHT = {"num_pages": 18, "buckets": ("4x8", "4x1"), "dtype": "float32", "max_logprobs": 2}


def write(directory: Path, config: dict[str, Any]) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 4}))
    return directory


def answers(engine: Engine, *, logprobs: bool) -> tuple[list[Any], list[Any]]:
    """Tokens, or log probabilities to the last bit, of more requests than run at once, and of the same again."""
    work = requests()
    params = [
        SamplingParams(**each["params"], detokenize=False, **({"logprobs": 2} if logprobs else {})) for each in work
    ]
    outputs: list[RequestOutput] = []
    for _ in range(2):
        outputs += run(engine, [each["prompt"] for each in work], params)
    found = list(map(bits, outputs)) if logprobs else token_ids(outputs)
    return found, [output.num_cached_tokens or 0 for output in outputs]


def check_ended(engine: Engine) -> None:
    engine.core.check_idle()
    assert engine.compile_counter.count == 0
    engine.close()


@pytest.mark.parametrize("stages", slow_but(STAGES, (), often={"two of two"}))
@pytest.mark.parametrize("kind", slow_but(["plain", *KINDS], {"plain"}, often={"hybrid"}))
def test_stages_say_what_one_says(kind: str, stages: str, tmp_path: Path) -> None:
    """With pages for too few, prefixes that are found again, and n-gram drafts: to the last bit.

    Where layers keep states the last bits depend on the shape of a step with one stage too, so there the tokens are compared,
    with room for copies of states, and without drafts.
    """
    hybrid = kind == "hybrid"
    model = write(tmp_path, PLAIN if kind == "plain" else KINDS[kind])
    tensors = STAGES[stages].get("tensor_parallel_size", 1)
    options = {**TIGHT, "num_pages": 80, "mamba_block_size": 8} if hybrid else {**TIGHT, "speculative_config": NGRAM}
    alone = start(model, **options, tensor_parallel_size=tensors)
    expected, _ = answers(alone, logprobs=not hybrid)
    alone.close()
    engine = start(model, **options, **STAGES[stages])
    found, cached = answers(engine, logprobs=not hybrid)
    assert found == expected
    assert any(cached)
    if kind in ("plain", "mixture"):
        assert engine.core.scheduler.stats.num_preemptions > 0
    check_ended(engine)


@pytest.mark.slow
@pytest.mark.parametrize("stages", slow_but(STAGES, {"two"}, often={"two of two"}))
def test_the_embedded_model_follows_grammars(stages: str) -> None:
    """Tokens of one device, in the order in which they were asked for."""
    options = {**SMALL, **TIGHT, "load_format": "auto", "skip_tokenizer_init": False}
    prompts = ["The sea", "One two three", "Once upon a time", "A"]
    each = [
        SamplingParams(
            temperature=0.8, seed=3, max_tokens=12, structured_outputs=StructuredOutputsParams(regex="[0-9]{3}x")
        ),
        SamplingParams(**GREEDY),
        SamplingParams(temperature=0, max_tokens=16, structured_outputs=StructuredOutputsParams(choice=["yes", "no"])),
        SamplingParams(**RANDOM),
    ]

    def said(**more: Any) -> list[tuple[int, ...]]:
        engine = build_engine(EngineConfig.from_options(**{**options, **more}))
        found = token_ids(run(engine, prompts, each))
        assert len(found) == len(prompts)
        check_ended(engine)
        return found

    assert said(**STAGES[stages]) == said()


@pytest.mark.slow
@pytest.mark.parametrize("tied", [True, False])
def test_weights_leave_and_others_come(tied: bool, tmp_path: Path) -> None:
    """Of tied embeddings both stages have a copy."""
    first = write_checkpoint(tmp_path / "first", tie_word_embeddings=tied)
    second = tmp_path / "second"
    second.mkdir()
    shutil.copy(first / "config.json", second)
    tensors = load_file(first / "model.safetensors")
    save_file(
        {name: np.ascontiguousarray(array[::-1]) for name, array in tensors.items()}, second / "model.safetensors"
    )
    prompts = [{"prompt_token_ids": list(range(3, 20))}, {"prompt_token_ids": [7, 8, 9]}]

    def said(llm: LLM) -> Sequence[tuple[int, ...]]:
        return token_ids(llm.generate(prompts, greedy(8), use_tqdm=False))

    with LLM.from_engine(start(second, load_format="auto")) as other:
        wanted = said(other)
    engine = start(first, load_format="auto", pipeline_parallel_size=2)
    assert any(path.startswith("first.") for path in engine.space.all_parameters) == tied
    with LLM.from_engine(engine) as llm:
        own = said(llm)
        assert own != wanted
        llm.sleep()
        llm.wake_up()
        assert said(llm) == own
        llm.update_weights(second)
        assert said(llm) == wanted
        llm.sleep(level=2)
        llm.wake_up(tags=["weights"])
        llm.update_weights(second)
        llm.wake_up()
        assert said(llm) == wanted
        assert engine.compile_counter.count == 0


@pytest.mark.slow
def test_uneven_stages_and_those_of_a_deterministic_engine(tmp_path: Path) -> None:
    model = write(tmp_path, PLAIN)
    alone = start(model, deterministic=True, bucket_planner="tokens", buckets=None)
    expected, _ = answers(alone, logprobs=True)
    alone.close()
    options = {"pipeline_parallel_size": 3, "pipeline_layer_partition": "1,2,1"}
    engine = start(model, deterministic=True, bucket_planner="tokens", buckets=None, **options)
    assert [len(view.layers) for view in engine.space.views] == [1, 2, 1]
    assert answers(engine, logprobs=True)[0] == expected
    check_ended(engine)


@pytest.mark.slow
def test_embeddings(tmp_path: Path) -> None:
    model = write(tmp_path, PLAIN)
    prompts = [[5, 6, 7, 8 + number] for number in range(6)]

    def pooled(**options: Any) -> list[Any]:
        engine = start(model, runner="pooling", **options)
        found = [np.asarray(output.outputs.data).tolist() for output in run(engine, prompts, PoolingParams())]
        check_ended(engine)
        return found

    assert pooled(pipeline_parallel_size=2) == pooled()


@pytest.mark.slow
def test_a_quantised_cache_with_scales_that_are_measured(tmp_path: Path) -> None:
    model = write(tmp_path, PLAIN)

    def said(**options: Any) -> list[Any]:
        engine = start(model, kv_cache_dtype="int8", dtype="float32", **options)
        found, _ = answers(engine, logprobs=False)
        check_ended(engine)
        return found

    assert said(pipeline_parallel_size=2) == said()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"enable_lora": True}, "enable_lora is not built with pipeline_parallel_size=2: stages work with"),
        ({"kv_offloading_size": 1.0}, "kv_offloading_size is not built with"),
        ({"cpu_offload_gb": 1.0}, "cpu_offload_gb is not built with"),
        ({"speculative_config": {"method": "mtp", "num_speculative_tokens": 1}}, "drafts that the device makes"),
        ({"pipeline_layer_partition": "1,1,1"}, "'1,1,1' must give each of pipeline_parallel_size=2 stages"),
        ({"pipeline_layer_partition": "1,2"}, "is of 3 layers, and this model has 2"),
        ({"pipeline_parallel_size": 3}, "pipeline_parallel_size=3 is more than the 2 layers"),
        ({"pipeline_parallel_size": 2, "tensor_parallel_size": 64}, "needs 128 devices"),
    ],
)
def test_what_is_not_built_is_refused(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        start(write_config(tmp_path), **{"pipeline_parallel_size": 2, **options})
