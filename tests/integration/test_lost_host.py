"""A host that is killed or stopped during many streams: its group ends, starts again, and every stream is as if it had not."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from jaxengine.api.async_llm import AsyncLLM
from jaxengine.contract.sampling_params import SamplingParams
from tests.integration.engines import SMALL, write_config
from tests.integration.hosts import environment, followers, free_port

NUM_STREAMS = 50
NUM_TOKENS = 24


def child_of(pid: int) -> int:
    """The process that holds a host's part of the engine: the only child of what was started there."""
    [child] = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)


async def answers(llm: AsyncLLM, when: Any = None) -> list[tuple[int, ...]]:
    """The tokens of all streams; `when` is called once, when some have come of each that runs."""
    begun: list[int] = []

    async def one(number: int) -> tuple[int, ...]:
        params = SamplingParams(max_tokens=NUM_TOKENS, temperature=0.8, seed=number, ignore_eos=True)
        tokens: tuple[int, ...] = ()
        async for output in llm.generate(
            {"prompt_token_ids": list(range(3, 12 + number % 5))}, params, f"{number} of {when}"
        ):
            tokens = tuple(output.outputs[0].token_ids)
            if len(tokens) == 10:
                begun.append(number)
                if len(begun) == 4 and when is not None:
                    when()
        return tokens

    return list(await asyncio.gather(*map(one, range(NUM_STREAMS))))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("split", "number", "why"),
    [
        ("tensor", signal.SIGKILL, "its process has ended"),
        pytest.param("tensor", signal.SIGSTOP, "no sign of life", marks=pytest.mark.rare),
        pytest.param("pipeline", signal.SIGKILL, "its process has ended", marks=pytest.mark.rare),
    ],
)
def test_streams_survive_a_host(
    split: str,
    number: signal.Signals,
    why: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    model = str(write_config(tmp_path))
    options = {**SMALL, "max_num_seqs": 16, "buckets": ["16x4"], "model": model, "dtype": "float32"}
    options |= {f"{split}_parallel_size": 2, "nnodes": 2, "master_port": free_port()}
    for name, value in environment(1).items():
        monkeypatch.setenv(name, value)

    async def scenario() -> None:
        with followers(options, hosts=2, devices=1) as [host]:
            async with AsyncLLM(enable_multiprocessing=True, **options) as llm, asyncio.timeout(240):
                expected = await answers(llm)
                times: list[float] = []

                def harm() -> None:
                    times.append(time.monotonic())
                    os.kill(child_of(host.pid), number)

                assert await answers(llm, harm) == expected
                print(f"{number.name}: all {NUM_STREAMS} streams ended {time.monotonic() - times[0]:.1f} s after it")

    asyncio.run(scenario())
    said = capfd.readouterr()
    with capfd.disabled():
        print(said.out.strip().splitlines()[-1])
    [line] = re.findall(r"host 1 of 2 \(127\.0\.0\.1\) is lost: .*", said.err)
    assert why in line
