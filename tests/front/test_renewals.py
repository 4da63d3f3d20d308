"""An engine that is restarted on purpose costs nobody anything: others serve, its requests end or go on."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from jaxengine.errors import EngineDeadError, OverloadedError, RequestError, UnsupportedError
from jaxengine.front.async_client import AsyncClient
from jaxengine.front.postprocess import Postprocessor
from jaxengine.front.restarts import Supervision
from jaxengine.front.router import Router
from jaxengine.front.supervisor import Supervisor
from tests.front.mortal import Fate
from tests.front.test_supervisor import REQUESTS, Rig, answers, check_all, collect, request


@pytest.mark.parametrize(("engines", "patience_s"), [(1, 0.0), (2, 0.0), (3, 30.0)])
def test_every_stream_is_that_of_an_engine_that_was_left_alone(engines: int, patience_s: float) -> None:
    async def scenario() -> None:
        rig = Rig(engines=engines)
        async with rig.running() as client:
            streams = asyncio.ensure_future(check_all(rig, *REQUESTS))
            for index in range(engines):
                due = rig.lost.tokens + 20
                while rig.lost.tokens < due and not streams.done():
                    await asyncio.sleep(0)
                await client.restart(index, patience_s=patience_s)
            await streams
            await check_all(rig, request("afterwards"))
        assert len(rig.fate.engines) == 2 * engines, "one more in each place"
        assert rig.restarts == 0, "none of them has died"
        assert [engine.deaths for engine in rig.supervisor.condition.engines] == [{}] * engines
        assert rig.lost.reasons == {}

    asyncio.run(scenario())


def test_an_engine_that_is_drained_gets_no_requests_and_keeps_those_that_it_has() -> None:
    async def scenario() -> None:
        rig = Rig(engines=2)
        async with rig.running() as client:
            long = asyncio.ensure_future(collect(client, request("long", max_tokens=50)))
            while rig.lost.tokens < 3:
                await asyncio.sleep(0)
            restart = asyncio.ensure_future(client.restart(0, patience_s=60))
            await asyncio.sleep(0.01)
            first, second = rig.supervisor.condition.engines
            assert (first.ready, first.draining, first.num_requests) == (False, True, 1)
            assert second.ready
            client.check_health()
            with pytest.raises(OverloadedError, match="engine 0 cannot be restarted now: it is drained"):
                await client.restart(0, patience_s=0)
            short = request("short", max_tokens=2)
            assert await collect(client, short) == answers(short)
            assert not restart.done()
            assert await long == answers(request("long", max_tokens=50))
            await restart
            assert all(engine.ready for engine in rig.supervisor.condition.engines)
            assert sum(engine.num_resumed for engine in rig.supervisor.condition.engines) == 0

    asyncio.run(scenario())


def test_the_next_engine_has_the_weights_of_the_one_before() -> None:
    async def scenario() -> None:
        rig = Rig(engines=2)
        async with rig.running() as client:
            await client.update("elsewhere")
            await client.restart(1, patience_s=0)
            assert [len(engine.core._runner.written) for engine in rig.fate.engines] == [1, 1, 1]

    asyncio.run(scenario())


def test_what_cannot_be_restarted() -> None:
    async def scenario() -> None:
        rig = Rig(engines=2)
        async with rig.running() as client:
            with pytest.raises(RequestError, match="there is no engine 2; there are 2"):
                await client.restart(2, patience_s=0)
        fate = Fate()
        alone = Supervisor([fate.launch(0)], options=Supervision(silence_s=0.0))
        client = AsyncClient(alone, Postprocessor(None))
        client.start()
        with pytest.raises(UnsupportedError, match="an engine on a thread of the server cannot be restarted"):
            await client.restart(0, patience_s=0)
        await client.close()
        alone.close()

    asyncio.run(scenario())


def test_a_restart_that_comes_to_nothing_says_so() -> None:
    async def scenario() -> None:
        rig = Rig(engines=2, max_restarts=0)
        async with rig.running() as client:
            await check_all(rig, request("before"))
            rig.supervisor._launch = lambda index: 1 / 0  # type: ignore[assignment, return-value]
            with pytest.raises(EngineDeadError, match="is not started again"):
                await client.restart(0, patience_s=0)
            await check_all(rig, request("a"), request("b"))

    asyncio.run(scenario())


def test_a_router_hears_of_every_cache_that_is_gone() -> None:
    async def scenario() -> None:
        fate, forgotten = Fate(), list[int]()
        engines = [fate.launch(index) for index in range(2)]
        router = Router(page_size=engines[0].facts.page_size, num_pages=50)
        supervisor = Supervisor(
            engines,
            fate.launch,
            options=Supervision(silence_s=0.0),
            choose=router.choose,
            forget=forgotten.append,
        )
        client = AsyncClient(supervisor, Postprocessor(None))
        client.start()
        while not all(engine.ready for engine in supervisor.condition.engines):
            await asyncio.sleep(0.001)
        await client.restart(1, patience_s=0)
        assert forgotten == [1]
        await client.reset_prefix_cache()
        assert forgotten == [1, 0, 1]
        first = replace(request("conversation", length=30, max_tokens=3), data_parallel_rank=1)
        assert await collect(client, first) == answers(first)
        again = request("conversation", length=30, max_tokens=3)
        assert await collect(client, again) == answers(again)
        stats = client.engines[1].scheduler
        assert stats.prefix_cache_hits == 28, "the seven full pages of the same prompt"
        await client.close()
        supervisor.close()
        fate.check_idle()

    asyncio.run(scenario())
