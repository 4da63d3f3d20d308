"""An engine in a process of its own: it answers as one on a thread does, and whatever ends it is told."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from jaxengine.contract.messages import Alive, EngineDead, EngineReady, Event, ModelFound, StartProgress
from jaxengine.contract.sampling_params import SamplingParams
from jaxengine.errors import ConfigError, EngineDeadError
from jaxengine.front.async_client import AsyncClient
from jaxengine.front.engine_process import EngineProcess, describe_end
from jaxengine.front.output_stream import OutputStream
from jaxengine.front.postprocess import Postprocessor
from tests.far_engine import ENTRY, begin
from tests.fronts import make_engine
from tests.harness import make_request

PATIENCE_S = 60


@pytest.fixture
def engine() -> Iterator[EngineProcess]:
    made = EngineProcess(begin(), entry=ENTRY)
    yield made
    made.close()


async def tokens_of(client: AsyncClient, *, number: int = 6) -> list[tuple[int, ...]]:
    """What comes of some requests at once, and then of one more."""
    params = SamplingParams(temperature=0.8, seed=5, max_tokens=9, ignore_eos=True)
    requests = [
        make_request(f"r{index}", range(index, index + 7), max_tokens=params.max_tokens or 0, seed=index)
        for index in range(number)
    ]
    found: dict[str, list[int]] = {request.request_id: [] for request in requests}
    async with asyncio.timeout(PATIENCE_S):
        with await client.submit(requests) as stream:
            async for outputs in stream:
                for output in outputs:
                    found[output.request_id] = list(output.outputs[0].token_ids)
    return [tuple(tokens) for tokens in found.values()]


async def to_end(stream: OutputStream) -> None:
    async for _ in stream:
        pass


def test_it_answers_as_one_on_a_thread_does(engine: EngineProcess) -> None:
    async def scenario(client: AsyncClient) -> list[tuple[int, ...]]:
        client.start()
        try:
            return await tokens_of(client)
        finally:
            await client.close()

    here = make_engine(tokenizer=None, vocab_size=2048)
    expected = asyncio.run(scenario(AsyncClient(here.front.channel, Postprocessor(None))))
    assert engine.ready.result(PATIENCE_S) == here.host.facts
    assert engine.source.result().config == begin().config
    assert engine.phases.seconds == {"resolve": 0.25}
    os.kill(engine.pid, signal.SIGINT)  # which a terminal sends to both, and only the front decides
    os.kill(engine.pid, signal.SIGTERM)
    answers = asyncio.run(scenario(AsyncClient(engine, Postprocessor(None))))
    assert answers == expected
    assert all(len(tokens) == 9 for tokens in answers)
    assert not engine.is_alive


def test_events_are_kept_for_who_opens_late_and_signs_of_life_come(engine: EngineProcess) -> None:
    engine.ready.result(PATIENCE_S)
    events: list[Event] = []
    engine.open(events.append)
    assert [type(event) for event in events[:3]] == [StartProgress, ModelFound, EngineReady]
    deadline = time.monotonic() + PATIENCE_S
    while not any(isinstance(event, Alive) for event in events):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    engine.close()
    assert isinstance(events[-1], EngineDead)
    assert str(events[-1].error) == "the engine was closed"
    engine.close()


def test_what_runs_when_the_process_is_killed_is_told_why(engine: EngineProcess) -> None:
    async def scenario() -> None:
        client = AsyncClient(engine, Postprocessor(None))
        client.start()
        with await client.submit([make_request("r", range(9), max_tokens=80)]) as stream:
            await anext(stream)
            engine.kill()
            with pytest.raises(EngineDeadError, match="SIGKILL"):
                await asyncio.wait_for(to_end(stream), PATIENCE_S)
        with pytest.raises(EngineDeadError, match="SIGKILL"):
            client.check_health()
        with pytest.raises(EngineDeadError, match="SIGKILL"):
            await client.reset_prefix_cache()
        await client.close()

    engine.ready.result(PATIENCE_S)
    asyncio.run(scenario())


def test_a_step_that_fails_ends_the_process() -> None:
    engine = EngineProcess(begin(), entry=ENTRY, environment={"TEST_STEP_FAILS": "yes"})

    async def scenario() -> None:
        client = AsyncClient(engine, Postprocessor(None))
        client.start()
        with pytest.raises(EngineDeadError, match="a step failed"):
            await tokens_of(client)
        await client.close()

    engine.ready.result(PATIENCE_S)
    asyncio.run(scenario())
    assert not engine.is_alive
    engine.close()


@pytest.mark.parametrize(
    ("model", "error", "text"),
    [
        ("refused", ConfigError, "no such model: refused"),
        ("faulty", EngineDeadError, "the log says why"),
        ("killed", EngineDeadError, "SIGABRT"),
    ],
)
def test_a_start_that_fails(model: str, error: type[Exception], text: str) -> None:
    engine = EngineProcess(begin(model), entry=ENTRY)
    with pytest.raises(error, match=text):
        engine.ready.result(PATIENCE_S)
    with pytest.raises(error, match=text):
        engine.source.result(PATIENCE_S)
    engine.close()
    assert not engine.is_alive


def test_a_start_that_is_given_up_ends_at_once() -> None:
    engine = EngineProcess(begin("endless"), entry=ENTRY)
    deadline = time.monotonic() + PATIENCE_S
    while "compile" not in engine.phases.running:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    engine.close()
    assert not engine.is_alive


@pytest.mark.parametrize("on_a_thread", [False, True], ids=["by the system", "by the socket"])
def test_the_process_ends_with_its_front(on_a_thread: bool) -> None:
    script = f"""
import os, signal
from concurrent.futures import ThreadPoolExecutor
from jaxengine.front.engine_process import EngineProcess
from tests.far_engine import ENTRY, begin
make = lambda: EngineProcess(begin(), entry=ENTRY)
engine = ThreadPoolExecutor().submit(make).result() if {on_a_thread} else make()
engine.ready.result()
print(engine.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == -signal.SIGKILL, done.stderr
    status = Path(f"/proc/{int(done.stdout)}/status")
    deadline = time.monotonic() + PATIENCE_S
    while status.exists() and "State:\tZ" not in status.read_text():
        assert time.monotonic() < deadline, "it lives on"
        time.sleep(0.01)


def test_ends_are_described() -> None:
    assert "status 3" in describe_end(3)
    assert "SIGSEGV" in describe_end(-signal.SIGSEGV)
    assert "lack of memory" in describe_end(-signal.SIGKILL)
