"""Real engines that are given other weights: as arrays under either kind of name, quantised on the way, amid requests."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from jaxengine import LLM, AsyncLLM, SamplingParams
from jaxengine.errors import CheckpointError, RequestError
from jaxengine.startup.build import Engine
from tests.integration.engines import SMALL, start, write_checkpoint

pytestmark = [pytest.mark.usefixtures("quick_engines"), pytest.mark.slow]

PROMPTS = [{"prompt_token_ids": list(range(3, 20))}, {"prompt_token_ids": [7, 8, 9]}]
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
OPTIONS = {**SMALL, "load_format": "auto"}


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("first"))


def tensors(model: Path, number: int) -> dict[str, np.ndarray]:
    """Those of a checkpoint, changed: matrices turned by so many rows."""
    return {
        name: np.ascontiguousarray(np.roll(array, number, 0))
        for name, array in load_file(model / "model.safetensors").items()
    }


def changed(model: Path, number: int) -> Path:
    """A checkpoint of changed tensors."""
    directory = model.parent / f"{model.name}-{number}"
    if not directory.exists():
        directory.mkdir()
        shutil.copy(model / "config.json", directory)
        save_file(tensors(model, number), directory / "model.safetensors")
    return directory


def said(llm: LLM) -> list[tuple[int, ...]]:
    return [output.outputs[0].token_ids for output in llm.generate(PROMPTS, GREEDY, use_tqdm=False)]


def fresh(model: Path, **options: Any) -> list[tuple[int, ...]]:
    """What an engine says that was started with these weights."""
    with LLM.from_engine(start(model, **{**OPTIONS, **options})) as llm:
        return said(llm)


@pytest.fixture(scope="module")
def wanted(first: Path) -> list[list[tuple[int, ...]]]:
    """What engines say that were started with changed weights: before any is measured, as compilations are counted in all."""
    return [fresh(changed(first, number)) for number in range(11)]


@pytest.fixture
def engine(wanted: object, first: Path) -> Iterator[Engine]:
    engine = start(first, **OPTIONS)
    yield engine
    assert engine.compile_counter.count == 0
    engine.core.check_idle()
    engine.close()


def test_ten_updates_with_generation_between_are_ten_engines(
    engine: Engine, first: Path, wanted: list[list[tuple[int, ...]]]
) -> None:
    llm = LLM.from_engine(engine)
    own, paths = said(llm), {path: np.asarray(array) for path, array in llm.get_weights().items()}
    assert own == wanted[0]
    assert len(set(map(tuple, wanted))) == 11, "weights make no difference"
    for number in range(1, 11):
        match number % 3:
            case 0:
                llm.update_weights(changed(first, number))
            case 1:  # by the names of the checkpoint, some of them in a tree
                flat = tensors(first, number)
                norm = flat.pop("model.norm.weight")
                llm.update_weights({**flat, "model": {"norm": {"weight": norm}}}, weight_version=f"step {number}")
            case 2:  # by the paths of parameters, as they lie on the device
                roots = {path: jax.device_put(np.roll(array, number, 0)) for path, array in paths.items()}
                llm.update_weights(roots.items())
                assert all(
                    llm.get_weights()[path].unsafe_buffer_pointer() == array.unsafe_buffer_pointer()
                    for path, array in roots.items()
                )
        assert said(llm) == wanted[number], number
        assert engine.compile_counter.count == 0
    assert llm.weight_version == "step 10"
    llm.update_weights(paths)
    assert said(llm) == own


@pytest.mark.parametrize("quantization", ["int8", "int4", "fp8"])
def test_they_are_quantised_on_the_way(first: Path, quantization: str) -> None:
    options = {"quantization": quantization}
    wanted = fresh(changed(first, 3), **options)
    with LLM.from_engine(start(changed(first, 3), **OPTIONS)) as plain:
        paths = {path: np.asarray(array) for path, array in plain.get_weights().items()}
    engine = start(first, **{**OPTIONS, **options})
    with LLM.from_engine(engine) as llm:
        own = said(llm)
        llm.update_weights(tensors(first, 3))
        assert said(llm) == wanted != own
        llm.update_weights(tensors(first, 0))
        assert said(llm) == own
        llm.update_weights(paths)
        assert said(llm) == wanted, "parameters of a plain engine are quantised as well"
        assert engine.compile_counter.count == 0


def test_what_does_not_fit_changes_nothing(engine: Engine, first: Path, wanted: list[list[tuple[int, ...]]]) -> None:
    llm = LLM.from_engine(engine)
    own, given = said(llm), tensors(first, 1)
    for wrong, error, message in (
        ({**given, "model.norm.bias": np.ones(32, np.float32)}, CheckpointError, "no rule maps"),
        ({**given, "model.norm.weight": np.ones(31, np.float32)}, CheckpointError, "wrong shape"),
        ({"model.norm.weight": np.ones(32, np.complex64)}, RequestError, "dtype complex64"),
        ({}, RequestError, "no arrays"),
    ):
        with pytest.raises(error, match=message):
            llm.update_weights(wrong)
    assert said(llm) == own
    llm.update_weights({name: array for name, array in given.items() if "norm" in name})
    llm.sleep(2)
    with pytest.raises(RequestError, match=r"were dropped, and .* not among those to write"):
        llm.update_weights({"model.norm.weight": given["model.norm.weight"]})
    llm.update_weights(given, weight_version="all")
    llm.wake_up()
    assert said(llm) == wanted[1]
    llm.sleep(2)
    llm.wake_up(["weights"])
    llm.wake_up(["kv_cache"])
    assert (said(llm), llm.weight_version) == (own, "0")


def test_requests_that_are_kept_go_on_as_with_the_other_weights(first: Path) -> None:
    long = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)

    async def go() -> list[Any]:
        async with AsyncLLM.from_engine(engine) as llm:
            begun = asyncio.Event()

            async def one(number: int) -> Any:
                async for output in llm.generate(PROMPTS[number], long, f"r{number}"):
                    if len(output.outputs[0].token_ids) > 5:
                        begun.set()
                return output

            requests = [asyncio.ensure_future(one(number)) for number in range(2)]
            await begun.wait()
            await llm.update_weights(tensors(first, 1), weight_version="next", mode="keep")
            await llm.pause_generation(mode="keep", clear_cache=False)
            assert await llm.is_paused()
            await llm.sleep(1, mode="keep")
            await llm.wake_up()
            await llm.resume_generation()
            outputs = await asyncio.gather(*requests)
            assert engine.compile_counter.count == 0
            engine.core.check_idle()
            return outputs

    engine = start(first, **OPTIONS)
    outputs = asyncio.run(go())
    with LLM.from_engine(start(changed(first, 1), **OPTIONS)) as other:
        for output in outputs:
            [(before, count), *after] = output.outputs[0].weight_versions
            if before == "next":
                continue  # it had not begun
            assert (before, after) == ("0", [("next", 60 - count)])
            tokens = output.outputs[0].token_ids
            prompt = [*output.prompt_token_ids, *tokens[:count]]
            rest = SamplingParams(temperature=0, max_tokens=60 - count, ignore_eos=True)
            [alone] = other.generate({"prompt_token_ids": prompt}, rest, use_tqdm=False)
            assert tokens[count:] == alone.outputs[0].token_ids
    assert any(len(output.outputs[0].weight_versions) == 2 for output in outputs)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_rollout_is_scored_as_it_was_sampled(first: Path, dtype: str) -> None:
    """By the same programs on a CPU to the last bit, whether the prompt's pages are found or computed."""
    numbers = np.random.default_rng(1)
    prompts = [
        {"prompt_token_ids": numbers.integers(3, 250, size).tolist()} for size in numbers.integers(1, 50, 32).tolist()
    ]
    with LLM.from_engine(start(first, **{**OPTIONS, "dtype": dtype})) as llm:
        sampling = SamplingParams(temperature=1.0, top_p=0.9, max_tokens=40, ignore_eos=True, logprobs=0, seed=3)
        rollouts = llm.generate(prompts, sampling, use_tqdm=False)
        for caching in (True, False):
            if not caching:
                llm.reset_prefix_cache()
            whole = [
                {"prompt_token_ids": [*rollout.prompt_token_ids, *rollout.outputs[0].token_ids]} for rollout in rollouts
            ]
            scored = llm.generate(whole, SamplingParams(max_tokens=1, prompt_logprobs=0), use_tqdm=False)
            for rollout, score in zip(rollouts, scored, strict=True):
                tokens, start_at = rollout.outputs[0].token_ids, len(rollout.prompt_token_ids)
                sampled = [
                    row[token].logprob for row, token in zip(rollout.outputs[0].logprobs or (), tokens, strict=True)
                ]
                rows = (score.prompt_logprobs or ())[start_at:]
                assert [row[token].logprob for row, token in zip(rows, tokens, strict=True) if row] == sampled
