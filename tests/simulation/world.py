"""Runs a scenario: the real front, a simulated network, real engines on simulated devices; then proves that all was well."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from random import Random

from jaxengine.contract.batch import Batch
from jaxengine.errors import (
    ContextLengthError,
    DeadlineError,
    EngineDeadError,
    JaxEngineError,
    OverloadedError,
    PoisonError,
)
from jaxengine.front.admission import Admission
from jaxengine.front.async_client import AsyncClient
from jaxengine.front.output_stream import OutputStream
from jaxengine.front.postprocess import Postprocessor
from jaxengine.front.restarts import Supervision
from jaxengine.front.router import Router
from jaxengine.front.supervisor import Supervisor
from jaxengine.host.engine.traffic_log import TrafficLog
from jaxengine.text.tokenizer import Tokenizer
from tests.grammar.characters import character_tokenizer
from tests.simulation.clients import Client, Outcome
from tests.simulation.device import DeviceError
from tests.simulation.engine import SimulatedEngine
from tests.simulation.event_loop import SimulatedLoop, StuckError, simulated_time
from tests.simulation.oracle import errors_of
from tests.simulation.scenario import Fault, Scenario
from tests.simulation.tiers import Outer

LONGEST_S = 600.0
"""Simulated seconds after which whoever still waits would wait for ever."""
SETTLE_S = 15
"""Simulated seconds in which what is under way arrives, and engines that are ill are found to be."""
MOST_TRIES = 3
"""Engines that may die of one request."""
FULL_DISK = "/dev/full"
"""A file that can be opened, and not written to."""


@dataclass(frozen=True, slots=True)
class History:
    """A scenario that was run: what was wrong, and everything that happened, in order. Equal digests are equal histories."""

    scenario: Scenario
    errors: tuple[str, ...]
    events: tuple[tuple[float, tuple[object, ...]], ...]
    counts: Counter[str]

    @property
    def log(self) -> list[str]:
        """The events as lines: `<-` is sent to an engine, `->` by it, and what arrives of that is `->->`."""
        return [" ".join([f"{time:.6f}", *map(str, event)]) for time, event in self.events]

    @property
    def digest(self) -> str:
        """Of the log."""
        return hashlib.blake2b("\n".join(self.log).encode(), digest_size=8).hexdigest()


def run(scenario: Scenario) -> History:
    """Run a scenario to its end."""
    return World(scenario).run()


class World:
    """All parts of one simulation.

    Attributes:
        errors: what must not be and was.
        counts: how often what happened, so that it can be seen that a workload does what it is meant to.
    """

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.errors: list[str] = []
        self.counts: Counter[str] = Counter()
        sizes = scenario.sizes
        self.loop = SimulatedLoop(Random(f"order {scenario.seed}"), read_s=sizes.read_s)
        self._random = Random(f"world {scenario.seed}")
        self._events: list[tuple[float, tuple[object, ...]]] = []
        self._engines: dict[int, SimulatedEngine] = {}
        self._started: list[SimulatedEngine] = []
        self._outer: Outer = {}
        self._lives: Counter[int] = Counter()
        self._num_deaths = 0
        self._poisoned: set[str] = set()
        self._steps: Counter[int] = Counter()
        self._clients = [Client(visit) for visit in scenario.visits]

    def run(self) -> History:
        """Everything, from the first callback to the last check."""
        try:
            with simulated_time(self.loop), _listening(_Ears(self.errors)):
                self.loop.run_until_complete(self._live())
                self._check_end()
        except Exception as error:
            self.errors.append(f"{type(error).__name__}: {error}")
        finally:
            self._give_up()
            self.loop.close()
        self.errors += self.loop.errors
        return History(self.scenario, tuple(self.errors), tuple(self._events), self.counts)

    def _give_up(self) -> None:
        """Let no task outlive a simulation that has failed."""
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        if tasks:
            with suppress(StuckError):
                self.loop.run_until_complete(asyncio.wait(tasks, timeout=1))

    async def _live(self) -> None:
        sizes, read_clock = self.scenario.sizes, self.loop.read_clock
        router = Router(page_size=sizes.page_size, num_pages=sizes.num_pages)
        self.supervisor = Supervisor(
            [self._launch(index) for index in range(sizes.engines)],
            self._launch,
            options=Supervision(
                max_restarts=sizes.max_restarts, step_timeout_s=sizes.step_timeout_s, silence_s=sizes.silence_s
            ),
            choose=router.choose,
            forget=router.forget,
        )
        admission = Admission(
            max_requests=sizes.max_requests,
            max_tokens=sizes.max_tokens,
            max_unread=sizes.max_unread,
            timeout_s=sizes.timeout_s,
        )
        listeners = [TrafficLog(FULL_DISK, clock=read_clock)] if sizes.disk_full else []
        self.client = AsyncClient(
            self.supervisor,
            Postprocessor(_tokenizer(), clock=read_clock),
            admission=admission,
            listeners=lambda engine: listeners,
        )
        self.client.start()
        while self.supervisor.condition.trouble is not None:  # until then the front refuses all requests
            await asyncio.sleep(0.01)
        for fault in self.scenario.faults:
            if fault.at < math.inf:
                self.loop.call_later(fault.at, self._strike, fault)
        tasks = [self.loop.create_task(client.run(self.client)) for client in self._clients]
        waiting = (await asyncio.wait(tasks, timeout=LONGEST_S))[1] if tasks else set()
        for client, task in zip(self._clients, tasks, strict=True):
            if task in waiting:
                self.errors.append(f"{[each.request_id for each in client.visit.requests]} wait for ever")
                task.cancel()
            elif (error := task.exception()) is not None:
                self.errors.append(f"a client failed: {error!r}")
        if timers := self.loop.timers_of(OutputStream):
            self.errors.append(f"{timers} streams are over, and their timers run")
        await self._settle()
        self._check_idle()
        await self.client.close()
        self.supervisor.close()
        for listener in listeners:
            listener.close()
        await self._settle()

    async def _settle(self) -> None:
        """Second by second, for a front that stalls meanwhile to have its time afterwards."""
        for _ in range(SETTLE_S):
            await asyncio.sleep(1.0)

    def _launch(self, index: int) -> SimulatedEngine:
        """A process for the engine `index`, not started."""
        self._lives[index] += 1
        engine = SimulatedEngine(
            self.loop,
            self._random,
            self.scenario.sizes,
            outer=self._outer,
            log=self._note,
            fault_of=partial(self._fault_of, index),
            name=f"engine {index}.{self._lives[index]}",
        )
        self._engines[index] = engine
        self._started.append(engine)
        return engine

    def _fault_of(self, index: int, engine: SimulatedEngine, batch: Batch) -> str | None:
        """What happens to the engine `index` in a step of it."""
        self._steps[index] += 1
        for fault in self.scenario.faults:
            if (fault.engine, fault.step) == (index, self._steps[index]):
                self.counts[fault.kind] += 1
                return fault.kind
        for poison in self.scenario.poison:
            if engine.computes(batch, poison.request_id, after=poison.after):
                self._poisoned.add(engine.name)
                return poison.kind
        return None

    def _strike(self, fault: Fault) -> None:
        """A fault at a time."""
        engine = self._engines[fault.engine]
        self._note(fault)
        self.counts[fault.kind] += 1
        match fault.kind:
            case "kill":
                engine.kill()
            case "freeze":
                engine.freeze()
                self.loop.call_later(fault.seconds, engine.thaw)
            case "stall":
                self.loop.stall(fault.seconds)
            case _:
                self.loop.create_task(self._operate(fault))

    async def _operate(self, fault: Fault) -> None:
        client = self.client
        operations: dict[str, Callable[[], Awaitable[object]]] = {
            "reset": client.reset_prefix_cache,
            "sleep": client.sleep,
            "doze": partial(client.sleep, 1, "keep"),
            "wake": client.wake,
            "pause": partial(client.pause, "keep", clear_cache=False),
            "clear": partial(client.pause, "keep", clear_cache=True),
            "resume": client.resume,
            "restart": partial(client.restart, fault.engine, patience_s=fault.seconds),
        }
        try:
            await operations[fault.kind]()
        except JaxEngineError as error:
            self._note(fault.kind, error)

    def _note(self, *event: object) -> None:
        self._events.append((self.loop.time(), event))

    def _check_idle(self) -> None:
        """Nobody is left, so nothing is held for anybody."""
        dispatcher = self.supervisor._dispatcher
        held = {
            "requests are open": self.client.num_open,
            "entries are in the book": len(dispatcher._book),
            "requests are suspected": len(dispatcher._suspects),
            "requests wait for an engine": dispatcher.num_waiting,
            "submissions wait to be accepted": len(dispatcher._submissions),
            "requests are noted as an engine's": sum(len(ward.entries) for ward in self.supervisor._wards),
            "questions are unanswered": sum(len(ward.asked) for ward in self.supervisor._wards),
        }
        if self.supervisor.is_alive:  # else all that was open has failed, and nothing of it goes anywhere any more
            self.errors += [f"{count} {what}, and nobody waits" for what, count in held.items() if count]
        encoders = [engine.host.statistics.scheduler.encoders for engine in self._started]
        self.counts["items"] += sum(stats.queries for stats in encoders)
        self.counts["items found"] += sum(stats.hits for stats in encoders)
        self._num_deaths = sum(not engine.runs for engine in self._started)
        in_use = [ward.engine for ward in self.supervisor._wards]
        for engine in self._started:
            if engine.runs:
                if engine not in in_use:
                    self.errors.append(f"{engine.name} runs, and nobody uses it")
                if engine.host.has_unfinished:
                    self.errors.append(f"{engine.name} works on requests that nobody waits for")
                engine.check()

    def _check_end(self) -> None:
        """All clients have what they may have, and all tasks and timers have ended."""
        capacity = self._engines[0].host.core.scheduler.capacity_tokens
        max_len = min(self.scenario.sizes.max_model_len, capacity + 1)
        for client in self._clients:
            for outcome in client.outcomes:
                self._check_outcome(outcome, max_len, capacity)
        self._check_poison()
        if tasks := asyncio.all_tasks(self.loop):
            self.errors.append(f"tasks are left: {tasks}")
        if self.loop.num_timers:
            self.errors.append(f"{self.loop.num_timers} timers are left")

    def _check_outcome(self, outcome: Outcome, max_len: int, capacity: int) -> None:
        ends = [received.finished for received in outcome.received]
        how = "left" if outcome.left else "whole" if outcome.error is None else type(outcome.error).__name__
        self.counts[how] += 1
        if outcome.error is not None and not self._may_fail(outcome, capacity):
            self.errors.append(f"{[each.request.request_id for each in outcome.received]} failed: {outcome.error!r}")
        if how == "whole" and not all(ends):
            self.errors.append(f"{[each.request.request_id for each in outcome.received]} ended without their ends")
        for received, whole in zip(outcome.received, ends, strict=True):
            self.counts["tokens"] += sum(len(answer.tokens) for answer in received.sequences.values())
            for error in errors_of(received, self.scenario.sizes, max_len, whole=whole):
                self.errors.append(f"{received.request.request_id}: {error}")

    def _may_fail(self, outcome: Outcome, capacity: int) -> bool:
        """Whether a visit may have ended with this error."""
        sizes, faults = self.scenario.sizes, {fault.kind for fault in self.scenario.faults}
        requests = [received.request for received in outcome.received]
        deaths = self._num_deaths
        match outcome.error:
            case ContextLengthError():
                return any(len(request.prompt_token_ids) > capacity for request in requests)
            case DeadlineError():
                return bool(sizes.timeout_s)
            case OverloadedError():
                refuses = sizes.max_requests or sizes.max_tokens or faults & {"sleep", "doze"}
                return bool(refuses) and not outcome.accepted
            case PoisonError():
                poison = {poison.request_id for poison in self.scenario.poison}
                return (
                    not poison.isdisjoint(request.request_id for request in requests)
                    or (self._num_kills and deaths >= MOST_TRIES)
                    or sizes.loses
                )
            case EngineDeadError():
                resumes = all(request.resume for request in requests)
                return (not resumes and deaths > 0) or deaths >= sizes.max_restarts
            case _:
                return False

    def _check_poison(self) -> None:
        """A request that kills is tried three times, where nothing else dies and no evidence is lost."""
        poison = {poison.request_id for poison in self.scenario.poison}
        visits = sum(
            not poison.isdisjoint(received.request.request_id for received in outcome.received)
            for client in self._clients
            for outcome in client.outcomes
        )
        kills = self.counts["poisoned"] = len(self._poisoned)
        if len(poison) == 1 and not (self._num_kills or self.scenario.sizes.loses) and kills > MOST_TRIES * visits:
            self.errors.append(f"engines died {kills} times of one request")

    @property
    def _num_kills(self) -> int:
        """Deaths that are nobody's fault: the third death in a row may have seemed to be somebody's."""
        return sum(self.counts[kind] for kind in ("kill", "raise", "hang", "freeze"))


class _Ears(logging.Handler):
    """Hears of exceptions that the code under test has caught and logged, of which only planted ones may be."""

    def __init__(self, errors: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._errors = errors

    def emit(self, record: logging.LogRecord) -> None:
        """Note what was not planted."""
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not isinstance(error.__cause__ or error, DeviceError):
            self._errors.append(f"{record.getMessage()}: {error!r}")


@contextmanager
def _listening(ears: _Ears) -> Iterator[None]:
    logger = logging.getLogger("jaxengine")
    propagate, logger.propagate = logger.propagate, False
    logger.addHandler(ears)
    try:
        yield
    finally:
        logger.removeHandler(ears)
        logger.propagate = propagate


@cache
def _tokenizer() -> Tokenizer:
    return character_tokenizer()
