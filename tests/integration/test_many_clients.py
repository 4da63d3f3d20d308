"""Clients of engines in processes that die, on an event loop that is held up: each is told what its request says alone."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import defaultdict
from contextlib import suppress
from random import Random
from typing import Any

import pytest

from jaxengine import LLM, AsyncLLM, RequestOutputKind, SamplingParams
from jaxengine.errors import EngineDeadError, OverloadedError

pytestmark = pytest.mark.slow

SMALL: dict[str, Any] = {
    "max_num_seqs": 4,
    "max_model_len": 256,
    "bucket_planner": "explicit",
    "buckets": ("4x8",),
    "num_pages": 60,
}
WORDS = (
    "once",
    "upon",
    "a",
    "time",
    "the",
    "fox",
    "who",
    "lived",
    "near",
    "river",
    "and",
    "said",
    "hello",
    "sun",
    "red",
)
SECONDS = 12.0

Told = list[tuple[str, tuple[int, ...], str | None, int | str | None, int]]
"""Of each sequence the text, the tokens, why it ended, and how many log probabilities stand beside the tokens."""


def draw(random: Random) -> tuple[str, SamplingParams]:
    """A prompt and what is asked of it."""
    words = random.choice([1, 4, 12, 40])
    options: dict[str, Any] = {"max_tokens": random.choice([1, 5, 20, 60]), "temperature": 0.0}
    if random.random() < 0.5:
        options |= {"temperature": 0.9, "seed": random.randrange(100), "n": random.randint(1, 3)}
    for chance, option in (
        (0.25, {"stop": random.sample([".", "e ", " the", "o", ", "], 2)}),
        (0.15, {"stop_token_ids": random.sample(range(3, 400), 40)}),
        (0.2, {"logprobs": random.choice([0, 2])}),
        (0.2, {"min_tokens": 1}),
        (0.2, {"frequency_penalty": 0.6}),
    ):
        if random.random() < chance:
            options |= option
    return " ".join(random.choice(WORDS) for _ in range(words)), SamplingParams(**options)


def told(outputs: list[Any], kind: RequestOutputKind) -> Told:
    """What a request came to, by all its outputs."""
    parts: defaultdict[int, list[Any]] = defaultdict(list)
    for output in outputs if kind is RequestOutputKind.DELTA else outputs[-1:]:
        for part in output.outputs:
            parts[part.index].append(part)
    return [
        (
            "".join(part.text for part in of_one),
            tuple(token for part in of_one for token in part.token_ids),
            of_one[-1].finish_reason,
            of_one[-1].stop_reason,
            sum(len(part.logprobs or ()) for part in of_one),
        )
        for _, of_one in sorted(parts.items())
    ]


@pytest.mark.parametrize("engines", [1, 2])
def test_every_client_is_told_what_its_request_says_alone(engines: int) -> None:
    random = Random(engines)
    requests = [draw(random) for _ in range(40)]
    with LLM(**SMALL, enable_prefix_caching=False) as library:
        alone = [library.generate([prompt], params, use_tqdm=False) for prompt, params in requests]
    wanted = [told(outputs, RequestOutputKind.FINAL_ONLY) for outputs in alone]
    until, checked = 0.0, 0

    def goes_on() -> bool:
        """A slow machine takes its time."""
        return time.monotonic() < until or checked <= 20

    async def client(llm: AsyncLLM, number: int) -> None:
        nonlocal checked
        random = Random(f"client {number}")
        while goes_on():
            which, kind = random.randrange(len(requests)), random.choice(list(RequestOutputKind))
            prompt, params = requests[which]
            leaves_after, pause_s = random.choice([0, *[1000] * 4]), random.choice([0.0, 0.0, 0.02])
            outputs: list[Any] = []
            answer = llm.generate(prompt, params.replace(output_kind=kind), f"client {number}")
            try:
                async for output in answer:
                    outputs.append(output)
                    if len(outputs) > leaves_after:
                        break
                    await asyncio.sleep(pause_s)
                else:
                    assert told(outputs, kind) == wanted[which], (prompt, params)
                    checked += 1
            except OverloadedError:  # it sleeps
                await asyncio.sleep(0.02)
            finally:
                await answer.aclose()

    async def trouble(llm: AsyncLLM) -> None:
        """Hold up the event loop, kill engines, let them sleep."""
        random = Random("trouble")
        while goes_on():
            await asyncio.sleep(random.uniform(0.0, 0.3))
            time.sleep(random.choice([0.005, 0.05, 0.2]))
            ward = random.choice(supervisor_of(llm)._wards)
            if random.random() < 0.15 and ward.is_ready:
                with suppress(ProcessLookupError):  # which was not heard of
                    os.kill(ward.engine.pid, signal.SIGKILL)
            elif random.random() < 0.1:
                with suppress(EngineDeadError):  # one died before it slept
                    await llm.sleep(1, mode="keep")
                await llm.wake_up()

    async def scenario() -> None:
        nonlocal until
        async with AsyncLLM(enable_multiprocessing=True, data_parallel_size=engines, **SMALL) as llm:
            until = time.monotonic() + SECONDS
            async with asyncio.timeout(SECONDS + 300):
                await asyncio.gather(trouble(llm), *(client(llm, number) for number in range(8)))
            supervisor = supervisor_of(llm)
            assert not llm._client.num_open
            assert not len(supervisor._dispatcher._book)
            assert not any(ward.entries for ward in supervisor._wards)
            assert sum(ward.deaths["killed"] for ward in supervisor._wards), "some have died"
        assert checked > 20

    asyncio.run(scenario())


def supervisor_of(llm: AsyncLLM) -> Any:
    return llm._client._channel
