"""The loop: one step of the engine on one screen, and what happens when a step fails."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from buckets import ReadyShapes
from jaxengine.contract.batch import Batch, Pending, Runner, Weights
from jaxengine.contract.messages import Abort
from jaxengine.contract.request import Request
from jaxengine.contract.updates import SequenceUpdate
from jaxengine.errors import EngineDeadError, OverloadedError, RequestError
from jaxengine.grammar.matching import Grammar
from jaxengine.host.engine.recorder import Recorder
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
          launch    moves, forward and sampling, or where masks need the tokens of the steps before, forward alone
          before    wait for the first step in flight, commit, return its updates: while the device runs this one
          masks     made from what has come back, then sampling

    As many steps are in flight as the scheduler plans ahead. With one a step is waited for before the next is planned. The tokens
    are the same.

    Updates are token ids: text is made of them elsewhere (`postprocess.py`), and whoever finds a stop string there calls `stop`.

    A request that is invalid ends alone. A step that fails on the device ends the engine: the state of the KV pool is unknown
    then. `recorder` tells whoever listens to it about every step.
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
        self._flights: deque[_Flight] = deque()
        self._dead: str | None = None
        self.asleep = False

    @property
    def has_unfinished(self) -> bool:
        """Whether any request has not ended."""
        return self.scheduler.has_unfinished

    def add(self, request: Request, grammar: Grammar | None = None) -> None:
        """Accept a request; `grammar` is compiled of the request's.

        Raises:
            RequestError: it is invalid or can never fit; nothing else is affected.
            OverloadedError: the engine sleeps.
            EngineDeadError: the engine has stopped.
        """
        self._check_alive()
        self._check_awake()
        self.scheduler.add(request, grammar)
        self.recorder.add(request)

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

    def end(self, message: Abort) -> None:
        """Abort and stop what the message names."""
        for request_id in message.request_ids:
            self.abort(request_id)
        for request_id, index in message.stopped:
            self.stop(request_id, index)

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes; False, and nothing changed, while any request has not ended."""
        return self.scheduler.reset_prefix_cache()

    def sleep(self) -> None:
        """Give the device's memory back until `wake`; asleep already is fine.

        Raises:
            RequestError: a request has not ended. Nothing was changed.
            EngineDeadError: the device could not be released; the engine has stopped.
        """
        self._check_without_requests("sleep")
        if not self.asleep:
            self._operate(self._runner.release)
            self.asleep = True
            self.scheduler.reset_prefix_cache()

    def wake(self) -> None:
        """Take the device's memory again, with the same weights; awake already is fine.

        Raises:
            EngineDeadError: the memory could not be had; the engine has stopped.
        """
        self._check_alive()
        if self.asleep:
            self._operate(self._runner.restore)
            self.asleep = False

    def write(self, weights: Weights) -> None:
        """Use other weights from now on. Cached prefixes, which were computed with those before, are forgotten.

        Raises:
            RequestError: a request has not ended, or the weights are of another model. Nothing was changed.
            OverloadedError: the engine sleeps.
        """
        self.check_can_write()
        try:
            self._runner.write(weights)
        except ValueError as error:
            raise RequestError(str(error), param="path") from error
        self.scheduler.reset_prefix_cache()

    def check_can_write(self) -> None:
        """Return when other weights can be written.

        Raises:
            RequestError: a request has not ended.
            OverloadedError: the engine sleeps.
            EngineDeadError: it has stopped.
        """
        self._check_without_requests("take other weights")
        self._check_awake()

    def _check_without_requests(self, act: str) -> None:
        self._check_alive()
        if self.has_unfinished:
            raise RequestError(f"the engine cannot {act} while requests run; let them end or abort them first")

    def _operate(self, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:
            raise self._die(f"the device's memory could not be changed: {type(error).__name__}: {error}") from error

    def _check_awake(self) -> None:
        if self.asleep:
            raise OverloadedError("the engine sleeps; wake it up first")

    def step(self) -> list[SequenceUpdate]:
        """Launch one step, and return what those changed that it had to wait for, in no particular order.

        Raises:
            EngineDeadError: a step failed, or the engine had stopped before. Every request in flight is lost.
        """
        self._check_alive()
        try:
            news = self._advance()
        except Exception as error:
            raise self._die(f"a step failed: {type(error).__name__}: {error}") from error
        changed: list[SequenceUpdate] = []
        for flight, ready, updates in news:
            self.recorder.take(updates, ready)
            self.recorder.end_step(flight.batch, launched=flight.launched, ready=ready, more=self.has_unfinished)
            changed += updates
        self._forget_idle_steps()
        return changed

    def _forget_idle_steps(self) -> None:
        """Without any request nobody waits for what the step in flight brings."""
        if not self.has_unfinished:
            self._flights.clear()
            self.scheduler.forget_steps()

    def _advance(self) -> list[_Committed]:
        """Plan and launch a step, and take the results of those before it that have to make room, or that its masks need."""
        batch = self._schedule()
        if batch is None:
            return [self._commit_first()] if self._flights else []
        launched = time.monotonic()
        with self._watch():
            self._flights.append(_Flight(batch, self._runner.launch(batch), launched))
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
            self._die("the engine was closed")
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

    def _check_alive(self) -> None:
        if self._dead is not None:
            raise EngineDeadError(f"the engine has stopped ({self._dead}); make a new one")

    def _die(self, reason: str) -> EngineDeadError:
        """Give up everything in flight, so that the ledger balances and nobody waits for ever."""
        self._dead = reason
        self._flights.clear()
        lost = self.scheduler.abort_all()
        for request_id in lost:
            self.recorder.lose(request_id, "error")
        return EngineDeadError(f"the engine has stopped ({reason}); {len(lost)} requests in flight are lost")


_Committed = tuple[_Flight, float, list[SequenceUpdate]]
"""A step, when its result was on the host, and what it brought."""
