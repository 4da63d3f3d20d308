"""`AsyncLLM` around an engine without a model: many requests at once, aborted, refused, and the end of it all."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from jaxengine import AsyncEngineArgs, AsyncLLM, AsyncLLMEngine, EngineArgs
from jaxengine.api import async_llm as module
from jaxengine.contract.batch import Batch
from jaxengine.contract.messages import Begin
from jaxengine.contract.pooling_params import PoolingParams
from jaxengine.contract.sampling_params import RequestOutputKind, SamplingParams
from jaxengine.errors import ConfigError, EngineDeadError, RequestError, UnsupportedError
from tests.fakes import EMBEDDING_SIZE, FakePending, FakeRunner, GatedRunner
from tests.fronts import TOKENIZER, make_engine, runner_of

LONG = SamplingParams(max_tokens=40, ignore_eos=True)


async def gathered(outputs: AsyncIterator[Any]) -> list[Any]:
    return [output async for output in outputs]


class Unhurried(FakeRunner):
    """Leaves the event loop time to look between two steps."""

    def launch(self, batch: Batch) -> FakePending:
        time.sleep(0.002)
        return super().launch(batch)


def test_requests_run_together_and_tell_what_they_have_so_far() -> None:
    async def go() -> None:
        async with AsyncLLM.from_engine(make_engine(runner=Unhurried)) as llm:
            streams = [llm.generate("Tom", LONG.replace(seed=seed), f"r{seed}") for seed in range(3)]
            found = await asyncio.gather(*map(gathered, streams))
            for seed, outputs in enumerate(found):
                texts = [output.outputs[0].text for output in outputs]
                assert len(texts) > 1
                assert all(later.startswith(text) for text, later in pairwise(texts))
                assert {output.request_id for output in outputs} == {f"r{seed}"}
                assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
            deltas = await gathered(llm.generate("Tom", LONG.replace(seed=0, output_kind=RequestOutputKind.DELTA), "d"))
            assert "".join(output.outputs[0].text for output in deltas) == found[0][-1].outputs[0].text
            await llm.check_health()
            assert await llm.reset_prefix_cache()
            assert await llm.get_tokenizer() is TOKENIZER

    asyncio.run(go())


def test_defaults_embeddings_and_no_adapter() -> None:
    async def go() -> None:
        async with AsyncLLM.from_engine(make_engine(sampling={"max_tokens": 3})) as llm:
            [*_, last] = await gathered(llm.generate([5, 6], None, "a", lora_request=None))
            assert len(last.outputs[0].token_ids) <= 16
            [embedding] = await gathered(llm.encode("Tom", PoolingParams(), "a"))
            assert embedding.outputs.data.shape == (EMBEDDING_SIZE,)
            with pytest.raises(RequestError, match="must be LoRARequest or None"):
                await gathered(llm.generate("a", None, "b", lora_request="adapter"))  # type: ignore[arg-type]
            llm.get_default_sampling_params().max_tokens = 1
            assert llm.get_default_sampling_params().max_tokens != 1

    asyncio.run(go())


@contextmanager
def opening_at_last(runner: Any) -> Iterator[None]:
    """Let everything run in the end, whatever failed before: an engine that waits for permission does not close."""
    try:
        yield
    finally:
        runner.open()


def test_abort_and_leaving_end_a_request_and_no_other() -> None:
    async def go() -> None:
        engine = make_engine(runner=GatedRunner)
        async with AsyncLLM.from_engine(engine) as llm:
            with opening_at_last(runner_of(engine)):
                aborted = asyncio.create_task(gathered(llm.generate("Tom", LONG, "aborted")))
                kept = asyncio.create_task(gathered(llm.generate("Mary", LONG, "kept")))
                early = asyncio.create_task(gathered(llm.generate("early", LONG, "early")))
                await asyncio.sleep(0)
                await llm.abort(["early", "unknown"])  # before the engine has heard of it
                # Else the steps may be over before the engine hears of both.
                while not {"aborted", "kept"} <= llm._client._open.keys():
                    await asyncio.sleep(0.001)
                runner_of(engine).allow(3)
                while not llm._client.statistics.num_steps:
                    await asyncio.sleep(0.001)
                await llm.abort("aborted")
                assert not any(output.finished for output in await aborted)
                runner_of(engine).open()
                assert not any(output.finished for output in await early)
                assert (await kept)[-1].finished
                runner_of(engine).shut()
                runner_of(engine).allow(3)
                left = llm.generate("Tom", LONG, "left")
                assert not (await anext(left)).finished
                await left.aclose()
                assert llm._client.num_open == 0
                runner_of(engine).open()  # a step may have been launched
        engine.core.check_idle()

    asyncio.run(go())


def test_a_request_aborted_while_it_is_read_or_taken_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine()
    reading, go_on = threading.Event(), threading.Event()
    read = engine.front.intake.request

    def slow_read(*args: Any, **options: Any) -> Any:
        reading.set()
        assert go_on.wait(10)
        return read(*args, **options)

    async def go() -> None:
        async with AsyncLLM.from_engine(engine) as llm:
            with monkeypatch.context() as patched:
                patched.setattr(engine.front.intake, "request", slow_read)
                unread = asyncio.create_task(gathered(llm.generate("Tom", LONG, "unread")))
                await asyncio.to_thread(reading.wait)
                await llm.abort("unread")
                go_on.set()
                assert await unread == []
            submit = llm._client.submit

            async def slow_submit(requests: Any) -> Any:
                stream = await submit(requests)
                while llm._client.num_open:  # the engine answers all of it meanwhile
                    await asyncio.sleep(0.001)
                await llm.abort("untaken")
                return stream

            monkeypatch.setattr(llm._client, "submit", slow_submit)
            assert await gathered(llm.generate("Tom", LONG, "untaken")) == []

    asyncio.run(go())


def test_a_name_is_taken_once_at_a_time_and_errors_are_the_callers() -> None:
    async def go() -> None:
        engine = make_engine(runner=GatedRunner)
        llm = AsyncLLM.from_engine(engine)
        first = asyncio.create_task(gathered(llm.generate("Tom", LONG, "a")))
        await asyncio.sleep(0)
        with pytest.raises(RequestError, match="'a' is in flight already"):
            await gathered(llm.generate("Tom", LONG, "a"))
        with pytest.raises(RequestError, match="cannot be empty"):
            await gathered(llm.generate([], LONG, "b"))
        with pytest.raises(RequestError, match="cannot be empty"):
            await gathered(llm.generate([], LONG, "b"))
        runner_of(engine).open()
        assert (await first)[-1].finished
        llm.shutdown()
        llm.shutdown()
        await llm.close()
        with pytest.raises(EngineDeadError, match="closed"):
            await gathered(llm.generate("Tom", LONG, "c"))

    asyncio.run(go())


def test_it_belongs_to_one_event_loop() -> None:
    llm = AsyncLLM.from_engine(make_engine())
    assert asyncio.run(gathered(llm.generate("Tom", LONG, "a")))[-1].finished
    with pytest.raises(RequestError, match="event loop of its first request"):
        asyncio.run(gathered(llm.generate("Tom", LONG, "a")))
    llm.shutdown()


def test_engine_arguments_are_options_of_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []
    monkeypatch.setattr(
        module, "start_engine", lambda model, options: started.append((model, options)) or make_engine()
    )
    arguments = AsyncEngineArgs(model="acme/tiny", gpu_memory_utilization=0.8, swap_space=4)
    assert arguments.create_engine_config().cache.memory_utilization == 0.8
    llm = AsyncLLMEngine.from_engine_args(arguments, start_engine_loop=True)
    llm.shutdown()
    assert started == [("acme/tiny", {"gpu_memory_utilization": 0.8, "swap_space": 4})]
    assert repr(EngineArgs("a")) == "EngineArgs(model='a')"
    with pytest.raises(ConfigError, match="unknown option 'max_model_length'"):
        EngineArgs(max_model_length=5)


def test_replicas_are_processes_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks: list[int | None] = []

    def start(begin: Begin) -> Any:
        ranks.append(begin.config.parallel.data_parallel_rank)
        if len(ranks) == 3:
            raise EngineDeadError("enough")
        return SimpleNamespace(close=lambda: ranks.pop())

    monkeypatch.setattr(module, "EngineProcess", start)
    with pytest.raises(EngineDeadError, match="enough"):
        AsyncLLM(enable_multiprocessing=True, data_parallel_size=3)
    assert ranks == [0], "two are closed, the third has not begun"
    with pytest.raises(ConfigError, match="data_parallel_size=2 needs 2 processes"):
        AsyncLLM(data_parallel_size=2)


def test_traces_are_asked_of_the_engine() -> None:
    async def go() -> None:
        async with AsyncLLM.from_engine(make_engine()) as llm:
            with pytest.raises(UnsupportedError, match="no device here to trace"):
                await llm.start_profile()
            with pytest.raises(UnsupportedError, match="no device here to trace"):
                await llm.stop_profile()

    asyncio.run(go())
