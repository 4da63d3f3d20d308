"""An engine that dies costs time only: every stream goes on where it was, but for what it certainly died of."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from jaxengine.contract.messages import KV_CACHE, WEIGHTS, Add, Done, EngineReady, Event, Message, Reply, StepOutputs
from jaxengine.contract.metrics import NOTHING_YET, FinishedRequest, FinishedSequence, StepStats
from jaxengine.contract.request import Request
from jaxengine.contract.sampling_params import RequestOutputKind
from jaxengine.contract.step_updates import Gained, Roster, StepUpdates
from jaxengine.contract.updates import Admission, SequenceUpdate
from jaxengine.errors import EngineDeadError, OverloadedError, PoisonError, RequestError
from jaxengine.front.async_client import AsyncClient
from jaxengine.front.postprocess import Postprocessor
from jaxengine.front.restarts import Supervision
from jaxengine.front.supervisor import Supervisor
from tests.fakes import Expected, oracle
from tests.front.mortal import POISON, Fate
from tests.front.test_async_client import settle
from tests.fronts import MAX_LEN, make_engine
from tests.harness import EOS, VOCAB, Collected, make_request


class Lost:
    """Counts what ended before its time."""

    def __init__(self) -> None:
        self.reasons: dict[str, int] = {}
        self.finished = 0
        self.tokens = 0

    def on_step(self, stats: StepStats) -> None:
        self.tokens += stats.num_generated_tokens

    def on_finished(self, sequence: FinishedSequence, request: FinishedRequest | None) -> None:
        self.finished += 1

    def on_lost(self, finish_reason: str, num_sequences: int) -> None:
        self.reasons[finish_reason] = self.reasons.get(finish_reason, 0) + num_sequences


class Rig:
    """A client of supervised engines."""

    def __init__(self, fate: Fate | None = None, *, engines: int = 1, **options: Any) -> None:
        self.fate = fate or Fate()
        self.supervisor = Supervisor(
            [self.fate.launch(index) for index in range(engines)],
            self.fate.launch,
            options=Supervision(**{"silence_s": 0.0, "max_restarts": 100, **options}),
        )
        self.lost = Lost()
        self.client = AsyncClient(self.supervisor, Postprocessor(None), listeners=lambda engine: (self.lost,))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[AsyncClient]:
        self.client.start()
        try:
            yield self.client
        finally:
            await self.client.close()
            self.supervisor.close()
            self.fate.check_idle()

    @property
    def restarts(self) -> int:
        return sum(engine.num_restarts for engine in self.supervisor.condition.engines)


def request(name: str, **options: Any) -> Request:
    start = 1 + sum(map(ord, name))
    prompt = [(start + index) % (VOCAB - 2) for index in range(options.pop("length", 6))]
    return make_request(name, prompt, **{"max_tokens": 50, **options})


def poison(name: str = "poison", **options: Any) -> Request:
    return make_request(name, [5, POISON, 6], **{"max_tokens": 12, **options})


REQUESTS = (
    *(request(f"greedy {number}", length=4 + number) for number in range(4)),
    *(request(f"seeded {number}", seed=number, temperature=0.7, logprobs=1) for number in range(4)),
    request("several", n=3, max_tokens=9, stop_token_ids=list(range(0, 40, 3))),
    request("penalties", temperature=0.8, frequency_penalty=0.5, seed=3),
    request("scored", length=40, prompt_logprobs=1, n=2),
    request("masked", min_tokens=4, eos_token_id=EOS, bad_words=((7,), (8, 9))),
)


async def collect(client: AsyncClient, *wanted: Request) -> dict[tuple[str, int], Expected]:
    """What requests of one submission yield."""
    found: dict[tuple[str, int], Collected] = {}
    prompts: dict[str, list[float]] = {}
    with await client.submit(wanted) as stream:
        async for outputs in stream:
            for output in outputs:
                prompts.setdefault(output.request_id, [])
                if output.prompt_logprobs is not None:
                    rows = zip(output.prompt_logprobs[1:], output.prompt_token_ids[1:], strict=True)
                    prompts[output.request_id] = [row[token].logprob for row, token in rows if row is not None]
                for part in output.outputs:
                    one = found.setdefault((output.request_id, part.index), Collected())
                    one.tokens, one.finish_reason, one.stop_reason = (
                        list(part.token_ids),
                        part.finish_reason,
                        part.stop_reason,
                    )
                    one.logprobs = (
                        [None] * len(part.token_ids)
                        if part.logprobs is None
                        else [row[token].logprob for row, token in zip(part.logprobs, part.token_ids, strict=True)]
                    )
    for (request_id, index), one in found.items():
        one.prompt_logprobs = prompts[request_id] if index == 0 else []
    return {key: one.expected() for key, one in found.items()}


def answers(*wanted: Request) -> dict[tuple[str, int], Expected]:
    return {
        (each.request_id, index): oracle(each, index, vocab_size=VOCAB, max_len=MAX_LEN)
        for each in wanted
        for index in range(each.sampling.n)
    }


async def check_all(rig: Rig, *wanted: Request) -> None:
    """Every request, all at once, yields the oracle's answer."""
    results = await asyncio.gather(*(collect(rig.client, each) for each in wanted))
    assert {key: value for result in results for key, value in result.items()} == answers(*wanted)


@pytest.mark.parametrize("engines", [1, 2, 3])
def test_every_stream_is_that_of_an_engine_that_lives(engines: int) -> None:
    async def scenario() -> None:
        for seed in range(1 if engines > 1 else 2):
            rig = Rig(engines=engines)
            async with rig.running():
                striking = asyncio.ensure_future(strike(rig, random.Random(seed)))
                await check_all(rig, *REQUESTS)
                striking.cancel()
            assert rig.restarts > 0
            assert sum(engine.num_resumed for engine in rig.supervisor.condition.engines) > 0
            assert rig.lost.reasons == {}
            assert rig.lost.finished == len(answers(*REQUESTS))

    asyncio.run(scenario())


async def strike(rig: Rig, chance: random.Random) -> None:
    """Kill an engine each time that some tokens have come."""
    while True:
        due = rig.lost.tokens + chance.randint(60, 180)
        while rig.lost.tokens < due:
            await asyncio.sleep(0.001)
        rig.fate.strike()


def test_requests_of_one_submission_outlive_engines_together() -> None:
    async def scenario() -> None:
        rig = Rig(Fate(kills=lambda step: step in (2, 7)), engines=2)
        async with rig.running() as client:
            assert await collect(client, *REQUESTS) == answers(*REQUESTS)
        assert rig.restarts == 2

    asyncio.run(scenario())


def test_while_an_engine_starts_again_health_says_so_and_requests_wait() -> None:
    async def scenario() -> None:
        fate = Fate(kills=lambda step: step == 4)
        rig = Rig(fate)
        gate = asyncio.Event()
        later = rig.supervisor._later

        def wait_for_gate(seconds: float, act: Any) -> None:
            if seconds == 0.0:
                asyncio.get_running_loop().create_task(gate.wait()).add_done_callback(lambda _: act())
            else:
                later(seconds, act)

        rig.supervisor._later = wait_for_gate  # type: ignore[method-assign]
        async with rig.running() as client:
            await settle(lambda: rig.supervisor.condition.trouble is None)
            client.check_health()
            first = asyncio.ensure_future(collect(client, request("first")))
            await settle(lambda: rig.supervisor.condition.trouble is not None)
            with pytest.raises(OverloadedError, match=r"has died \(step\) and is started again"):
                client.check_health()
            second = asyncio.ensure_future(collect(client, request("second")))
            await asyncio.sleep(0.02)
            assert not first.done()
            assert not second.done()
            gate.set()
            assert await first == answers(request("first"))
            assert await second == answers(request("second"))
            client.check_health()

    asyncio.run(scenario())


def test_without_restarts_everything_fails_at_once() -> None:
    async def scenario() -> None:
        rig = Rig(Fate(kills=lambda step: step == 4), max_restarts=0)
        async with rig.running() as client:
            results = await asyncio.gather(*(collect(client, each) for each in REQUESTS), return_exceptions=True)
            assert all(isinstance(result, EngineDeadError) for result in results)
            with pytest.raises(EngineDeadError, match="not started again"):
                client.check_health()
            with pytest.raises(EngineDeadError):
                await collect(client, request("later"))

    asyncio.run(scenario())


@pytest.mark.parametrize("per_request", [False, True])
def test_who_does_not_want_to_wait_fails_at_once(per_request: bool) -> None:
    async def scenario() -> None:
        rig = Rig(Fate(kills=lambda step: step == 4), resume=per_request)
        async with rig.running() as client:
            wanted = [replace(each, resume=not per_request) for each in REQUESTS[:3]]
            results = await asyncio.gather(*(collect(client, each) for each in wanted), return_exceptions=True)
            assert [str(result) for result in results] == [
                "the engine that ran this request died (step); send it again"
            ] * 3
            assert all(isinstance(result, EngineDeadError) for result in results)
            assert await collect(client, request("later")) == answers(request("later"))
        assert rig.lost.reasons == {"error": 3}

    asyncio.run(scenario())


@pytest.mark.parametrize(("poison_at", "engines", "first"), [(0, 1, True), (0, 1, False), (5, 1, True), (9, 2, False)])
def test_poison_ends_alone_and_its_neighbours_finish(poison_at: int, engines: int, first: bool) -> None:
    async def scenario() -> None:
        rig = Rig(Fate(poison_at=poison_at), engines=engines)
        neighbours = [
            request(f"r{number}", length=3 + number % 7, max_tokens=12) for number in range(50 if first else 12)
        ]
        async with rig.running() as client:
            tasks = []
            if not first:
                tasks = [asyncio.ensure_future(collect(client, each)) for each in neighbours]
                await asyncio.sleep(0.01)
            culprit = asyncio.ensure_future(collect(client, poison()))
            if first:
                tasks = [asyncio.ensure_future(collect(client, each)) for each in neighbours]
            with pytest.raises(PoisonError, match="died each time it ran this request"):
                await culprit
            results = await asyncio.gather(*tasks)
            assert {key: value for result in results for key, value in result.items()} == answers(*neighbours)
        assert rig.restarts == 3, "two deaths among others, one alone"
        assert sum(engine.num_poisoned for engine in rig.supervisor.condition.engines) == 1

    asyncio.run(scenario())


def test_several_poisoned_requests() -> None:
    async def scenario() -> None:
        rig = Rig(Fate(poison_at=4))
        culprits = [poison(f"poison {number}") for number in range(3)]
        async with rig.running() as client:
            wanted = [*culprits, *REQUESTS]
            results = await asyncio.gather(*(collect(client, each) for each in wanted), return_exceptions=True)
            assert all(isinstance(result, PoisonError) for result in results[:3])
            whole = {key: value for result in results[3:] if isinstance(result, dict) for key, value in result.items()}
            assert whole == answers(*REQUESTS)
        assert rig.restarts <= 9

    asyncio.run(scenario())


def test_a_poisoned_request_that_is_given_up_holds_up_nobody() -> None:
    async def scenario() -> None:
        rig = Rig(Fate(poison_at=4))
        async with rig.running() as client:
            culprit = asyncio.ensure_future(collect(client, poison()))
            await settle(lambda: rig.restarts >= 2)  # it may die once more before this is seen
            culprit.cancel()
            await check_all(rig, *REQUESTS)
            assert client.num_open == 0

    asyncio.run(scenario())


def test_a_step_that_hangs_is_a_death() -> None:
    async def scenario() -> None:
        fate = Fate(hangs=threading.Event())
        rig = Rig(fate, step_timeout_s=1.5)
        async with rig.running() as client:
            wanted = asyncio.ensure_future(collect(client, request("a")))
            await settle(lambda: fate.steps == 1)
            hung, fate.hangs = fate.hangs, None
            assert await asyncio.wait_for(wanted, 30) == answers(request("a"))
            assert set(rig.supervisor.condition.engines[0].deaths) == {"hang"}
            assert hung is not None
            hung.set()

    asyncio.run(scenario())


def test_an_id_in_use_is_refused_and_its_owner_goes_on() -> None:
    async def scenario() -> None:
        rig = Rig()
        async with rig.running() as client:
            owner = asyncio.ensure_future(collect(client, request("a", max_tokens=40)))
            await settle(lambda: client.num_open == 1)
            with pytest.raises(RequestError, match="in use"):
                await collect(client, request("a"))
            assert await owner == answers(request("a", max_tokens=40))

    asyncio.run(scenario())


def test_what_was_asked_beside_requests_survives() -> None:
    async def scenario() -> None:
        rig = Rig(Fate(kills=lambda step: step == 4))
        async with rig.running() as client:
            await client.update("elsewhere")
            await check_all(rig, request("a"))
            assert rig.restarts == 1
            assert [len(engine.core._runner.written) for engine in rig.fate.engines] == [1, 1], (
                "the next reads them too"
            )
            await client.update({"salt": np.array([1])}, "mine")
            await client.update({"other": np.array([2])})
            await client.update({"salt": np.array([3]), "other": np.array([4])}, "last")
            await client.sleep(1)
            await client.wake([KV_CACHE])
            rig.fate.engines[-1].front.channel.kill()
            await settle(lambda: len(rig.fate.engines) == 3)
            successor = rig.fate.engines[-1].core
            await settle(lambda: successor.changes.asleep and not successor._runner.released & {"state"})
            assert (client.statistics.sleep_level, successor.changes.weight_version) == (1, "last")
            await client.wake([WEIGHTS])
            await client.pause("keep", clear_cache=False)
            assert [sorted(weights.values) for weights in successor._runner.written] == [["source"], ["other", "salt"]]
            assert not client.statistics.asleep
            assert not successor._runner.released
            rig.fate.engines[-1].front.channel.kill()
            await settle(lambda: len(rig.fate.engines) == 4 and rig.fate.engines[-1].core.changes.paused)
            await client.resume()
            assert not client.statistics.paused

    asyncio.run(scenario())


class Scripted:
    """A channel of an engine that tells what the test says."""

    facts: Any = make_engine().front.channel.facts
    is_alive = True

    def __init__(self) -> None:
        self.added: list[Add] = []

    def open(self, emit: Callable[[Event], None]) -> None:
        self.emit = emit
        emit(EngineReady(self.facts))

    def send(self, message: Message) -> None:
        if isinstance(message, Add):
            self.added.append(message)

    def tell(self, *updates: SequenceUpdate | Gained, replies: tuple[Reply, ...] = ()) -> None:
        parts = [update if isinstance(update, Gained) else [update] for update in updates]
        self.emit(StepOutputs(statistics=NOTHING_YET, busy=True, replies=replies, updates=StepUpdates(parts)))


def test_tokens_stay_in_order_while_another_request_is_taken_in_and_the_event_loop_is_behind() -> None:
    async def scenario() -> tuple[int, ...]:
        channel, admission = Scripted(), Admission()
        client = AsyncClient(Supervisor([channel]), Postprocessor(None))  # type: ignore[list-item]
        client.start()
        roster = Roster(["first"], [0], [admission])

        def gained(position: int) -> Gained:
            return Gained(roster, np.array([10 + position], np.int32), np.array([position], np.int32))

        def accepted(number: int) -> tuple[Done]:
            return (Done(channel.added[number].number),)

        async def submit(number: int, name: str) -> Any:
            submission = asyncio.create_task(client.submit([request(name, output_kind=RequestOutputKind.FINAL_ONLY)]))
            await settle(lambda: len(channel.added) > number)
            return submission

        first = await submit(0, "first")
        channel.tell(SequenceUpdate.of_token("first", 0, 10, None, admission, 0), replies=accepted(0))
        for position in (1, 2):
            channel.tell(gained(position))
            await asyncio.sleep(0.01)  # it is known where its tokens go
        second = await submit(1, "second")
        channel.tell(gained(3))  # which is looked at by itself, for there is a request that was not answered yet
        channel.tell(gained(4), replies=accepted(1))
        channel.tell(gained(5))
        end = SequenceUpdate("first", 0, (16,), (None,), admission, finish_reason="length", position=6)
        channel.tell(end)
        [[output]] = [outputs async for outputs in await first]
        (await second).close()
        return tuple(output.outputs[0].token_ids)

    assert asyncio.run(scenario()) == tuple(range(10, 17))


def test_requests_that_no_engine_has_are_counted_once_and_only_until_one_has_them() -> None:
    async def scenario() -> None:
        rig = Rig(engines=2)
        async with rig.running() as client:
            later, restarts = rig.supervisor._later, list[Callable[[], None]]()
            rig.supervisor._later = lambda seconds, act: later(seconds, act) if seconds else restarts.append(act)  # type: ignore[method-assign]
            await settle(lambda: all(engine.ready for engine in rig.supervisor.condition.engines))
            wanted = [request(f"long {number}") for number in range(8)]
            reading = asyncio.gather(*(collect(client, each) for each in wanted))
            await settle(lambda: rig.lost.tokens > 20)
            rig.fate.engines[0].front.channel.kill()
            await settle(lambda: len(restarts) == 1)
            assert client.engines[0].scheduler.num_waiting == 0, "the other engine has them"
            rig.fate.engines[1].front.channel.kill()
            await settle(lambda: len(restarts) == 2)
            await settle(lambda: client.statistics.scheduler.num_waiting == client.num_open)
            reading.cancel()
            await settle(lambda: client.statistics.scheduler.num_waiting == client.num_open == 0)

    asyncio.run(scenario())


@pytest.mark.parametrize("engines", [1, 2])
def test_requests_that_are_kept_outlive_an_engine_that_dies_asleep(engines: int) -> None:
    async def scenario() -> None:
        rig = Rig(engines=engines)
        async with rig.running() as client:
            wanted = [request(f"kept {number}") for number in range(4)]
            kept = asyncio.gather(*(collect(client, each) for each in wanted))
            await settle(lambda: rig.lost.tokens > 20)
            await client.sleep(1, "keep")
            rig.fate.engines[0].front.channel.kill()
            await settle(lambda: rig.restarts == 1 and rig.supervisor.condition.engines[0].ready)
            with pytest.raises(OverloadedError, match="sleeps"):
                await collect(client, request("new"))
            assert client.num_open == len(wanted)
            await client.wake()
            found = await asyncio.wait_for(kept, 30)
            assert {key: value for result in found for key, value in result.items()} == answers(*wanted)

    asyncio.run(scenario())


def test_what_is_asked_of_an_engine_that_is_not_started_again_is_answered() -> None:
    async def scenario() -> None:
        rig = Rig(engines=2, max_restarts=1)
        restarts: list[Callable[[], None]] = []

        def launch(index: int) -> Any:
            raise RuntimeError("no room for another")

        def later(seconds: float, act: Callable[[], None]) -> None:
            if seconds == 0.0:
                restarts.append(act)

        async with rig.running() as client:
            await settle(lambda: all(engine.ready for engine in rig.supervisor.condition.engines))
            rig.supervisor._later, rig.supervisor._launch = later, launch  # type: ignore[method-assign]
            rig.fate.engines[0].front.channel.kill()
            await settle(lambda: bool(restarts))
            pausing = asyncio.ensure_future(client.pause("keep", clear_cache=False))
            await asyncio.sleep(0.01)
            restarts[0]()
            with pytest.raises(EngineDeadError, match="before it had done this"):
                await asyncio.wait_for(pausing, 10)

    asyncio.run(scenario())


def test_a_front_that_stood_still_blames_no_engine() -> None:
    """Of time in which nobody listened no look makes silence, the late one and those after it."""

    async def scenario() -> None:
        rig = Rig(silence_s=100.0)
        async with rig.running() as client:
            await collect(client, request("before"))
            supervisor = rig.supervisor
            [ward] = supervisor._wards
            supervisor._looked -= 400.0
            ward.watch._heard -= 400.0
            ward.watch._told -= 400.0
            for _ in range(2):
                supervisor._look()
                assert ward.condemned is None
            assert await collect(client, request("after")) == answers(request("after"))
        assert rig.restarts == 0

    asyncio.run(scenario())
