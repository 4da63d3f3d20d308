"""A simulated process with a real engine in it, which stops, hangs, fails and dies when it is told to."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty
from random import Random
from typing import Any

from jaxengine.contract.batch import Batch
from jaxengine.contract.cache_traits import CacheTraits
from jaxengine.contract.facts import EngineFacts
from jaxengine.contract.messages import Alive, EngineDead, EngineReady, Event, Message
from jaxengine.contract.metrics import UNSUPERVISED, Condition
from jaxengine.contract.pooling import PoolerTraits
from jaxengine.errors import EngineDeadError
from jaxengine.grammar.matching import Grammar
from jaxengine.host.adapters.shelf import AdapterShelf
from jaxengine.host.adapters.slots import AdapterSlots
from jaxengine.host.engine.core import EngineCore
from jaxengine.host.engine.host import EngineHost
from jaxengine.host.engine.loop import EngineLoop
from jaxengine.host.kvcache.host_tier import HostTier
from jaxengine.host.kvcache.ledger import Ledger
from jaxengine.host.kvcache.pool import PagePool
from jaxengine.host.kvcache.prefix import Prefixes, keyed_hash
from jaxengine.host.kvcache.snapshots import Snapshots
from jaxengine.host.media.encoders import Encoders
from jaxengine.host.scheduler.limits import SchedulerLimits
from jaxengine.host.scheduler.scheduler import Scheduler
from jaxengine.options.speculation import DraftSpeculation, Method, NgramSpeculation, Speculation
from tests.fakes import EMBEDDING_SIZE, GRAMMARS
from tests.harness import FILES, VOCAB, make_deterministic_grid, make_grid
from tests.media_items import make_facts
from tests.simulation.device import DeviceError, SimulatedDevice
from tests.simulation.event_loop import SimulatedLoop
from tests.simulation.network import Pipe
from tests.simulation.scenario import Sizes
from tests.simulation.tiers import Outer, SimulatedTiers

SECRET = b"that of a store which engines share"
ALIVE_S = 1.0
"""How often a process tells that it lives."""


class SimulatedEngine:
    """Both ends of a channel to a process, and the process. It is a `MortalEngine`.

    A turn of the engine's loop takes the time of its step: messages that come meanwhile wait for the next, what it has to tell
    is written when the step is over, and what kills it in between loses that.

    Args:
        outer: what a store that engines share has.
        log: is told what happens, in order.
        fault_of: what is to happen in the step that begins, `raise`, `kill`, `hang` or nothing.
        name: for the log.
    """

    def __init__(
        self,
        loop: SimulatedLoop,
        random: Random,
        sizes: Sizes,
        *,
        outer: Outer,
        log: Callable[..., None],
        fault_of: Callable[[SimulatedEngine, Batch], str | None],
        name: str,
    ) -> None:
        self.name = name
        self.host = _build(self, sizes, loop, random, outer)
        self.facts = self.host.facts
        self._loop, self._random, self._sizes = loop, random, sizes
        self._log = log
        self._fault_of = fault_of
        self._to_engine = Pipe(loop, random, self._receive, delay_s=sizes.delay_s)
        self._to_front = Pipe(loop, random, self._deliver, delay_s=sizes.delay_s)
        self._messages: deque[Message] = deque()
        self._engine = EngineLoop(self.host, self, self._tell)
        self._told: deque[Event] = deque()
        self._emit: Callable[[Event], None] = lambda event: None
        self._runs = self._frozen = self._planned = self._ended = self._killed = False
        self._step_s = 0.0
        self._busy_until = math.inf
        self.is_alive = False

    def open(self, emit: Callable[[Event], None]) -> None:
        """Start the process; it takes messages once it has started."""
        self._emit = emit
        self._runs = self.is_alive = True
        start_s = self._sizes.start_s * self._random.uniform(0.5, 1.5)
        self._busy_until = self._loop.time() + start_s
        self._told.append(EngineReady(self.facts))
        self._heartbeat()
        self.wake()

    def send(self, message: Message) -> None:
        """Write to the process."""
        self._log(self.name, "<-", message)
        self._to_engine.send(message)

    @property
    def condition(self) -> Condition:
        """It dies once."""
        return UNSUPERVISED

    def join(self, timeout_s: float) -> None:
        """A loop whose time stands still can wait for nothing."""
        raise NotImplementedError

    def close(self) -> None:
        """Nothing is left of a process that has ended."""
        self.kill()

    def kill(self) -> None:
        """End the process where it is: what was written arrives, unless pipes lose it, and then the pipe is found closed.

        A stubborn one, as a thread or a process that waits in the kernel is, ends after its step.
        """
        if self._runs and self._sizes.stubborn and self._loop.time() < self._busy_until:
            self._killed = True
        elif self._runs:
            self._log(self.name, "is killed")
            if self._sizes.loses:
                self._to_front.lose()
            self._end()

    @property
    def runs(self) -> bool:
        """Whether the process does; that it does not is seen later at the other end."""
        return self._runs

    def freeze(self) -> None:
        """SIGSTOP."""
        self._frozen = True

    def thaw(self) -> None:
        """SIGCONT."""
        self._frozen = False
        self.wake()

    def get(self, block: bool, timeout: float | None) -> Message:
        """The next message for the loop, which never blocks here."""
        assert not block
        if not self._messages:
            raise Empty
        return self._messages.popleft()

    def wake(self) -> None:
        """Let the process do what it can do now, or once its step has ended."""
        if self._runs and not self._planned and self._busy_until < math.inf:
            self._planned = True
            self._loop.call_at(self._busy_until, self._turn)

    def computes(self, batch: Batch, request_id: str, *, after: int) -> bool:
        """Whether a step computes with a sequence of the request that has so many output tokens."""
        slots = {row.slot for row in batch.rows}
        running = self.host.core.scheduler._placement.running
        return any(
            sequence.slot in slots and sequence.request_id == request_id and sequence.num_output >= after
            for sequence in running
        )

    def check(self) -> None:
        """Every page is accounted for; an engine without requests holds none."""
        core = self.host.core
        core.scheduler._ledger.check()
        if core.scheduler.encoders is not None:
            core.scheduler.encoders.check()
        if not core.has_unfinished:
            core.check_idle()

    def _turn(self) -> None:
        """What the process does without a pause: tell what the last step brought, take messages, begin a step."""
        self._planned = False
        if not self._runs or self._frozen:
            return
        while self._told:
            self._write(self._told.popleft())
        if self._ended or self._killed:
            self._end()
            return
        self._step_s = 0.0
        self._ended = not self._engine.turn(wait=False)
        self.check()
        self._busy_until = self._loop.time() + self._step_s
        if self.host.has_work or self._told or self._messages or self._ended or self._engine.any_ready:
            self.wake()

    def _pause(self, seconds: float) -> None:
        """The loop has nothing to do for so long."""
        self._step_s = max(self._step_s, seconds)

    def _before_step(self, batch: Batch) -> DeviceError | None:
        self._step_s = self._sizes.step_s * self._random.uniform(0.5, 1.5) * (1 + batch.num_tokens / 32)
        fault = self._fault_of(self, batch)
        if fault is not None:
            self._log(self.name, f"step {batch.number}: {fault}")
        if fault == "kill":
            self._loop.call_later(self._step_s * self._random.random(), self.kill)
        if fault == "hang":
            self._step_s = self._sizes.hang_s
        return DeviceError("a step fails") if fault == "raise" else None

    def _tell(self, event: Event) -> None:
        """What comes of a step is told when it is over."""
        if self._step_s:
            self._told.append(event)
        else:
            self._write(event)

    def _heartbeat(self) -> None:
        if self._runs:
            self._alive = self._loop.call_later(ALIVE_S, self._heartbeat)
            if not self._frozen:
                self._to_front.send(Alive())

    def _write(self, event: Event) -> None:
        self._log(self.name, "->", event)
        self._to_front.send(event)

    def _end(self) -> None:
        """The process is gone. When what it wrote last has arrived, its end is seen."""
        self._runs = False
        self._alive.cancel()
        self._to_engine.close()
        self._to_front.send(EngineDead(EngineDeadError("the process has ended"), cause="signal"))
        self._to_front.close()

    def _receive(self, message: Message) -> None:
        self._messages.append(message)
        self.wake()

    def _deliver(self, event: Event) -> None:
        if self.is_alive:
            self.is_alive = not isinstance(event, EngineDead)
            self._log(self.name, "->->", type(event).__name__)
            self._emit(event)


def _build(process: SimulatedEngine, sizes: Sizes, loop: SimulatedLoop, random: Random, outer: Outer) -> EngineHost:
    """An engine as `HostedEngine.assemble` makes one, around the simulated device."""
    pools = [PagePool(sizes.num_pages, keeps) for keeps in sizes.keeps]
    prefixes = Prefixes(hash=keyed_hash(SECRET))
    caching, block = sizes.caching and (not sizes.recurrent or sizes.snapshots > 0), sizes.block * sizes.page_size
    snapshots = (
        Snapshots(sizes.snapshots, page_size=sizes.page_size, block=block, every=sizes.every * block)
        if sizes.snapshots
        else None
    )
    tier = None
    if sizes.host_blocks:
        blocks = [sizes.host_blocks] * len(pools)
        of_snapshots = sizes.host_blocks if caching and snapshots is not None else 0
        tier = HostTier(blocks, most_leaving=20, outer=sizes.outer, snapshots=of_snapshots)
    ledger = Ledger(
        pools, sizes.page_size, enable_prefix_caching=caching, prefixes=prefixes, tier=tier, snapshots=snapshots
    )
    make = make_deterministic_grid if sizes.deterministic else make_grid
    grid = make(max_num_seqs=sizes.max_num_seqs)
    limits = SchedulerLimits(
        max_num_seqs=sizes.max_num_seqs,
        max_num_batched_tokens=sizes.max_num_batched_tokens,
        scheduling_policy=sizes.policy,
        deterministic=sizes.deterministic,
        speculation=_speculation(sizes),
        cache=CacheTraits(rewinds=not sizes.recurrent),
    )
    chunk = 1 if sizes.recurrent else None
    media = (
        make_facts(sizes.media_pages, page_size=sizes.media_page_size, sight=sizes.sight) if sizes.media_pages else None
    )
    device = SimulatedDevice(
        sizes.num_pages,
        sizes.page_size,
        VOCAB,
        keeps=sizes.keeps,
        chunk=chunk,
        num_drafts=sizes.drafts if sizes.device_drafts else 0,
        media=media,
    )
    device.before_step = process._before_step
    device.files = FILES
    adapters = None
    if sizes.adapter_slots:
        delays = Random(f"adapters {random.random()}")
        adapters = AdapterSlots(sizes.adapter_slots, _Shelf(process, device, sizes.adapters_on_host, loop, delays))
    scheduler = Scheduler(
        limits,
        grid,
        ledger,
        vocab_size=VOCAB,
        max_in_flight=sizes.max_in_flight,
        turns=sizes.turns,
        clock=loop.read_clock,
        adapters=adapters,
        encoders=None if media is None else Encoders(media, budget=sizes.encoder_budget),
    )
    device.tiers = SimulatedTiers(
        loop,
        Random(f"tiers {random.random()}"),
        outer,
        delay_s=sizes.tier_delay_s,
        failing=sizes.tier_failing,
        pause=process._pause,
    )
    facts = EngineFacts(
        vocab_size=VOCAB,
        pooler=PoolerTraits(size=EMBEDDING_SIZE),
        max_model_len=sizes.max_model_len,
        max_num_seqs=sizes.max_num_seqs,
        max_num_batched_tokens=sizes.max_num_batched_tokens,
        page_size=ledger.page_size,
        num_pages=ledger.pools.num_pages,
        kv_tokens=scheduler.capacity_tokens,
        media=media,
        shapes=grid.buckets,
    )
    compiler: Any = _Compiler(process.wake, loop, random)
    return EngineHost(EngineCore(scheduler, device), facts, compiler=compiler)


class _Shelf(AdapterShelf):
    """Reads adapters in simulated time."""

    def __init__(
        self, process: SimulatedEngine, device: SimulatedDevice, most: int, loop: SimulatedLoop, delays: Random
    ) -> None:
        self._process = process
        self._loop = loop
        self._delays = delays
        super().__init__(device, most, submit=self._read_later)

    def wait(self, timeout_s: float) -> None:
        """The loop looks again then."""
        self._process._pause(timeout_s)

    def _read_later(self, read: Callable[[], str]) -> Future[str]:
        future: Future[str] = Future()

        def end() -> None:
            future.set_result(read())
            self._process.wake()

        self._loop.call_later(self._delays.uniform(0, 0.05), end)
        return future


def _speculation(sizes: Sizes) -> Speculation | None:
    if not sizes.drafts:
        return None
    if sizes.device_drafts:
        return DraftSpeculation(num_tokens=sizes.drafts, method=Method.DRAFT_MODEL, model="the device's")
    return NgramSpeculation(num_tokens=sizes.drafts, min_length=1, max_length=3)


class _Compiler:
    """Takes its time for each grammar, once."""

    def __init__(self, wake: Callable[[], None], loop: SimulatedLoop, random: Random) -> None:
        self._wake = wake
        self._loop = loop
        self._random = random
        self._ready: set[str] = set()

    def is_ready(self, source: str) -> bool:
        """Whether it was compiled before."""
        return source in self._ready

    def begin(self, source: str) -> Future[Grammar]:
        """Compile meanwhile."""
        future: Future[Grammar] = Future()
        self._loop.call_later(self._random.uniform(0, 0.05), self._end, source, future)
        return future

    def compile(self, source: str) -> Grammar:
        """What was compiled."""
        assert source in self._ready, "the loop waits for a grammar"
        return GRAMMARS[source]

    def close(self) -> None:
        """There are no threads."""

    def _end(self, source: str, future: Future[Grammar]) -> None:
        self._ready.add(source)
        future.set_result(GRAMMARS[source])
        self._wake()
