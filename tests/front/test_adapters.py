"""Adapters of engines that die, and of several: requests go on with theirs, and all read the same."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from jaxengine.contract.adapters import Adapter
from jaxengine.contract.messages import Add, Done, LoadAdapter, Refused, StepOutputs
from jaxengine.contract.request import Request
from jaxengine.errors import CheckpointError, RequestError
from tests.front.mortal import Fate
from tests.front.test_supervisor import Rig, check_all, request
from tests.fronts import ADAPTERS, runner_of
from tests.harness import VOCAB
from tests.host.engine.test_loop import Turned

OPTIONS = {"tokenizer": None, "vocab_size": VOCAB, "max_loras": 2}


def with_adapter(name: str, number: int) -> Request:
    path, digest = list(ADAPTERS.items())[number]
    return replace(request(name), adapter=Adapter(path, path, digest))


@pytest.mark.parametrize("engines", [1, 2])
def test_requests_go_on_with_their_adapters_when_engines_die(engines: int) -> None:
    async def go() -> None:
        killed = []

        def kills(step: int) -> bool:
            """Once; engines that begin steps together may see the same number, or miss one."""
            if step < 9 or killed:
                return False
            killed.append(step)
            return True

        fate = Fate(kills=kills, options=OPTIONS)
        rig = Rig(fate, engines=engines)
        async with rig.running() as client:
            digests = [await client.load_adapter(path) for path in ADAPTERS]
            assert digests == list(ADAPTERS.values())
            await check_all(rig, request("plain"), *(with_adapter(f"r{number}", number % 5) for number in range(12)))
            assert sum(sum(engine.deaths.values()) for engine in rig.supervisor.condition.engines) >= 1

    asyncio.run(go())


def test_replicas_that_read_different_files_refuse_them() -> None:
    async def go() -> None:
        rig = Rig(Fate(options=OPTIONS), engines=2)
        async with rig.running() as client:
            runner_of(rig.fate.engines[1]).files["/adapters/one"] = "f" * 32
            with pytest.raises(CheckpointError, match="the adapter changed while the replicas read it"):
                await client.load_adapter("/adapters/one")
            with pytest.raises(CheckpointError, match="/adapters/ten is no adapter"):
                await client.load_adapter("/adapters/ten")

    asyncio.run(go())


def test_an_engine_without_adapters_says_so() -> None:
    async def go() -> None:
        rig = Rig()
        async with rig.running() as client:
            with pytest.raises(RequestError, match="without enable_lora"):
                await client.load_adapter("/adapters/one")

    asyncio.run(go())


def test_steps_go_on_while_an_adapter_is_read() -> None:
    reads = iter([10_000, 3])
    turned = Turned(adapter_slots=1, delay_of=lambda: next(reads))
    turned.messages.put(LoadAdapter(7, "adapter1"))
    turned.messages.put(Add(8, (request("a", max_tokens=4),)))
    told: list[Done | Refused] = []
    for _ in range(12):
        turned.turn()
        told += [reply for event in turned.events if isinstance(event, StepOutputs) for reply in event.replies]
    assert told == [Done(8)]
    assert turned.rig.runner.steps >= 4
    while len(told) < 2:
        turned.rig.reads.hurry()
        turned.turn()
        told += [reply for event in turned.events if isinstance(event, StepOutputs) for reply in event.replies]
    assert told[1] == Done(7, digest=f"{1:032x}")
