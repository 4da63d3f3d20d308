"""A small engine that sleeps, wakes, and takes other weights: it says what an engine that was started with them says."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from jaxengine import LLM, AsyncLLM, SamplingParams
from jaxengine.errors import CheckpointError
from tests.integration.engines import SMALL, start, write_checkpoint

pytestmark = [pytest.mark.usefixtures("quick_engines"), pytest.mark.slow]

PROMPTS = [{"prompt_token_ids": list(range(3, 20))}, {"prompt_token_ids": [7, 8, 9]}]
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
OPTIONS = {**SMALL, "load_format": "auto"}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two checkpoints of one model."""
    first = write_checkpoint(tmp_path_factory.mktemp("first"))
    second = tmp_path_factory.mktemp("second")
    shutil.copy(first / "config.json", second)
    tensors = load_file(first / "model.safetensors")
    save_file(
        {name: np.ascontiguousarray(array[::-1]) for name, array in tensors.items()}, second / "model.safetensors"
    )
    return first, second


def said(llm: LLM) -> list[tuple[int, ...]]:
    return [output.outputs[0].token_ids for output in llm.generate(PROMPTS, GREEDY, use_tqdm=False)]


def test_an_engine_sleeps_and_takes_other_weights(models: tuple[Path, Path]) -> None:
    first, second = models
    with LLM.from_engine(start(second, **OPTIONS)) as other:
        wanted = said(other)
    engine = start(first, **OPTIONS)
    with LLM.from_engine(engine) as llm:
        own = said(llm)
        assert own != wanted
        for _ in range(2):
            llm.sleep()
            llm.wake_up()
            assert said(llm) == own
        llm.update_weights(second)
        assert said(llm) == wanted
        llm.sleep()
        llm.wake_up()
        assert said(llm) == wanted
        with pytest.raises(CheckpointError, match="no directory with a checkpoint"):
            llm.update_weights("nowhere")
        narrow = write_checkpoint(second.parent / "narrow", hidden_size=16)
        with pytest.raises(CheckpointError):
            llm.update_weights(narrow)
        assert said(llm) == wanted
        assert engine.compile_counter.count == 0
        engine.core.check_idle()


def test_so_does_one_behind_an_event_loop(models: tuple[Path, Path]) -> None:
    first, second = models

    async def go() -> None:
        async with AsyncLLM.from_engine(start(first, **OPTIONS)) as llm:

            async def one() -> tuple[int, ...]:
                async for output in llm.generate(PROMPTS[0], GREEDY, "r"):
                    tokens = output.outputs[0].token_ids
                return tokens

            own = await one()
            await llm.sleep()
            assert await llm.is_sleeping()
            await llm.wake_up()
            assert not await llm.is_sleeping()
            assert await one() == own
            await llm.update_weights(second)
            assert await one() != own
            await llm.update_weights(first)
            assert await one() == own

    asyncio.run(go())
