"""The loop: one step of the engine on one screen, and what happens when a step fails."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from buckets import ReadyShapes
from jaxengine.contract.batch import Batch
from jaxengine.contract.messages import Abort, Pause
from jaxengine.contract.request import Request
from jaxengine.contract.runner import Pending, Runner
from jaxengine.contract.step_updates import StepUpdates
from jaxengine.contract.tiers import NO_TIER_STATS, TierStats
from jaxengine.contract.updates import SequenceUpdate
from jaxengine.errors import EngineDeadError
from jaxengine.grammar.matching import Grammar
from jaxengine.host.engine.changes import Changes
from jaxengine.host.engine.recorder import Recorder
from jaxengine.host.engine.tier_transfers import TierTransfers
from jaxengine.host.scheduler.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class _Flight:
    """A launched step whose result has not been taken yet."""

    batch: Batch
    pending: Pending
    launched: float


class EngineCore:
    """Runs requests step by step. Not thread-safe: one thread owns it.

        step()
          batch   = scheduler.schedule()      plans from what launched steps will have done
          tiers     what has come from them, before; what is to move beside the steps, behind
          adapters  those that have come to a slot are written there
          encode    what prompts show, as far as the budget goes
          launch    moves, forward and sampling, or where masks need the tokens of the steps before, forward alone
          before    wait for the first step in flight, commit, return its updates: while the device runs this one
          masks     made from what has come back, then sampling

    As many steps are in flight as the scheduler plans ahead. With one a step is waited for before the next is planned. The tokens
    are the same.

    Updates are token ids: text is made of them elsewhere (`postprocess.py`), and whoever finds a stop string there calls `stop`.

    A request that is invalid ends alone. A step that fails on the device ends the engine: the state of the KV pool is unknown
    then. `recorder` tells whoever listens to it about every step, `announce` is told before a step whose requests begin in it.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        *,
        shapes: ReadyShapes | None = None,
        watch: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """`shapes` grows while programs are compiled behind the engine; `watch` surrounds the device's part of a step."""
        self.scheduler = scheduler
        self.recorder = Recorder()
        self._runner = runner
        self._shapes = shapes
        self._watch = watch
        self._tiers = None if scheduler.tier is None else TierTransfers(scheduler, scheduler.tier, runner)
        self._flights: deque[_Flight] = deque()
        self._dead: str | None = None
        self.changes = Changes(self, runner)
        self.announce: Callable[[tuple[str, ...]], None] = lambda request_ids: None

    @property
    def has_unfinished(self) -> bool:
        """Whether any request has not ended."""
        return self.scheduler.has_unfinished

    @property
    def tier_stats(self) -> TierStats:
        """What lies behind the device's pages, and what moved."""
        return NO_TIER_STATS if self._tiers is None else self._tiers.stats

    def add(self, request: Request, grammar: Grammar | None = None) -> None:
        """Accept a request; `grammar` is compiled of the request's.

        Raises:
            RequestError: it is invalid or can never fit; nothing else is affected.
            OverloadedError: the device's memory was given back.
            EngineDeadError: the engine has stopped.
        """
        self.check_alive()
        self.changes.check_awake()
        self.scheduler.add(request, grammar)
        self.recorder.add(request, time.monotonic())

    def abort(self, request_id: str) -> bool:
        """End exactly this request without a further update; False when it has ended already or never was."""
        self.recorder.lose(request_id, "abort")
        aborted = self.scheduler.abort(request_id)
        self._forget_idle_steps()
        return aborted

    def stop(self, request_id: str, index: int) -> None:
        """End this sequence without a further update, because of a stop string in its text; it may have ended already."""
        self.scheduler.stop(request_id, index)
        self.recorder.stop(request_id, index)
        self._forget_idle_steps()

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._flights) if self.changes.halted else self.scheduler.has_work

    @property
    def any_in_flight(self) -> bool:
        """Whether a step was launched whose result was not taken."""
        return bool(self._flights)

    def pause(self, message: Pause) -> None:
        """Take requests out of what runs, or let them go on."""
        for request_id in message.request_ids:
            self.scheduler.pause(request_id, paused=message.paused)

    def end(self, message: Abort) -> None:
        """Abort and stop what the message names."""
        for request_id in message.request_ids:
            if message.elsewhere:
                self.recorder.forget(request_id)
            self.abort(request_id)
        for request_id, index in message.stopped:
            self.stop(request_id, index)

    def abort_all(self) -> list[SequenceUpdate]:
        """End all requests with `abort`; what is told of that."""
        self.check_alive()
        updates = self.scheduler.aborted()
        for request_id in dict.fromkeys(update.request_id for update in updates):
            self.abort(request_id)
        return updates

    def forget_cache(self) -> None:
        """Let nothing that was computed be used again; requests that are kept are computed from their beginning.

        Pages that were to leave the device do that first. No step may be in flight.
        """
        self.scheduler.preempt_all()
        if self._tiers is not None:
            self._tiers.flush()
        if self.scheduler.adapters is not None:
            self.scheduler.adapters.forget()
        self.scheduler.reset_prefix_cache()

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes; False, and nothing changed, while any request has not ended."""
        return self.scheduler.reset_prefix_cache()

    def step(self) -> StepUpdates:
        """Launch one step, and return what those changed that it had to wait for, in no particular order.

        Raises:
            EngineDeadError: a step failed, or the engine had stopped before. Every request in flight is lost.
        """
        self.check_alive()
        try:
            news = self._advance()
        except Exception as error:
            raise self.die(f"a step failed: {type(error).__name__}: {error}") from error
        changed: list[Sequence[SequenceUpdate]] = [self.scheduler.take_stranded()]
        self.recorder.take(changed[0], time.monotonic())
        for flight, ready, updates in news:
            self.recorder.take(updates, ready)
            self.recorder.end_step(flight.batch, launched=flight.launched, ready=ready, more=self.has_unfinished)
            changed.append(updates)
        self._forget_idle_steps()
        return StepUpdates.joined(changed)

    def _forget_idle_steps(self) -> None:
        """Without any request nobody waits for what the step in flight brings."""
        if not self.has_unfinished:
            self._flights.clear()
            self.scheduler.forget_steps()
            if self._tiers is not None:
                self._tiers.flush()

    def _advance(self) -> list[_Committed]:
        """Plan and launch a step, and take the results of those before it that have to make room, or that its masks need."""
        tiers = self._tiers
        if tiers is not None:
            tiers.take_ended()
        batch = None if self.changes.halted else self._schedule()
        adapters = self.scheduler.adapters
        if adapters is not None:
            adapters.place()
        if tiers is not None:
            tiers.begin()
        if self.scheduler.encoders is not None:
            self._encode()
        if batch is None:
            if tiers is not None:
                tiers.move(wait=not self._flights)
            if adapters is not None and adapters.is_reading and not self._flights:
                adapters.wait()
            return [self._commit_first()] if self._flights else []
        if batch.begin:
            self.announce(self.scheduler.beginning)
        launched = time.monotonic()
        with self._watch():
            self._flights.append(_Flight(batch, self._runner.launch(batch), launched))
        if tiers is not None:
            tiers.begin_later()
        news = []
        if batch.masked:
            while len(self._flights) > 1:
                news.append(self._commit_first())
            masks = self.scheduler.masks(batch)
            with self._watch():
                self._runner.masks(batch.number, masks)
        while len(self._flights) >= self.scheduler.max_in_flight:
            news.append(self._commit_first())
        return news

    def _encode(self) -> None:
        """Launch encoders for steps to come, the next one included."""
        encodings, request_ids = self.scheduler.take_encodings()
        if encodings:
            self.announce(request_ids)
        for encoding in encodings:
            with self._watch():
                self._runner.encode(encoding)

    def _commit_first(self) -> _Committed:
        """Wait for the first step in flight, and commit it."""
        flight = self._flights.popleft()
        result = flight.pending.wait()  # the only wait of the loop
        return flight, time.monotonic(), self.scheduler.commit(flight.batch, result)

    def check_idle(self) -> None:
        """Prove that an engine without work holds no page and has lost none.

        Raises:
            AssertionError: it does or has; the message names the pages.
        """
        self.scheduler.check_idle()

    def close(self) -> None:
        """Abort what is in flight and free the device. Closing twice is fine."""
        if self._dead is None:
            self.die("the engine was closed")
        self._runner.close()

    def _schedule(self) -> Batch | None:
        """The next step, in shapes whose programs exist by now."""
        shapes = self._shapes
        if shapes is None:
            return self.scheduler.schedule()
        self.scheduler.use(shapes.grid)
        batch = self.scheduler.schedule()
        if batch is not None and not shapes.complete:
            shapes.note(len(batch.rows), batch.num_tokens)
        return batch

    def check_alive(self) -> None:
        """Return when the engine has not stopped.

        Raises:
            EngineDeadError: it has.
        """
        if self._dead is not None:
            raise EngineDeadError(f"the engine has stopped ({self._dead}); make a new one")

    def die(self, reason: str) -> EngineDeadError:
        """Give up everything in flight, so that the ledger balances and nobody waits for ever; the error to raise."""
        self._dead = reason
        self._flights.clear()
        lost = self.scheduler.abort_all()
        for request_id in lost:
            self.recorder.lose(request_id, "error")
        return EngineDeadError(f"the engine has stopped ({reason}); {len(lost)} requests in flight are lost")


_Committed = tuple[_Flight, float, StepUpdates]
"""A step, when its result was on the host, and what it brought."""
