"""The loop: one step of the engine on one screen, and what happens when a step fails."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from buckets import ReadyShapes
from jaxengine.batch import Batch, Runner
from jaxengine.engine.postprocess import Postprocessor
from jaxengine.engine.recorder import Recorder
from jaxengine.errors import EngineDeadError
from jaxengine.outputs import CompletionOutput, RequestOutput
from jaxengine.request import Request
from jaxengine.scheduler.scheduler import Scheduler
from jaxengine.scheduler.updates import SequenceUpdate

logger = logging.getLogger(__name__)


class EngineCore:
    """Runs requests step by step. Not thread-safe: one thread owns it.

    A request that is invalid, or whose outputs cannot be built, ends alone. A step that fails on the device ends the engine:
    the state of the KV pool is unknown then. `recorder` tells whoever listens to it about every step.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner[Any],
        postprocessor: Postprocessor,
        *,
        shapes: ReadyShapes | None = None,
        watch: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """`shapes` grows while programs are compiled behind the engine; `watch` surrounds the device's part of a step."""
        self.scheduler = scheduler
        self.recorder = Recorder()
        self._runner = runner
        self._postprocessor = postprocessor
        self._shapes = shapes
        self._watch = watch
        self._requests: dict[str, Request] = {}
        self._dead: str | None = None

    @property
    def has_unfinished(self) -> bool:
        """Whether any request has not ended."""
        return self.scheduler.has_unfinished

    def add(self, request: Request) -> None:
        """Accept a request.

        Raises:
            RequestError: it is invalid or can never fit; nothing else is affected.
            EngineDeadError: the engine has stopped.
        """
        self._check_alive()
        self.scheduler.add(request)
        try:
            self._postprocessor.add(request)
        except Exception:
            self.scheduler.abort(request.request_id)
            raise
        self._requests[request.request_id] = request
        self.recorder.add(request)

    def abort(self, request_id: str) -> bool:
        """End exactly this request without a further output; False when it has ended already or never was."""
        self._postprocessor.discard(request_id)
        self._requests.pop(request_id, None)
        self.recorder.lose(request_id, "abort")
        return self.scheduler.abort(request_id)

    def step(self) -> list[RequestOutput]:
        """Run one step and return what it has to tell, in no particular order.

        Raises:
            EngineDeadError: the step failed, or the engine had stopped before. Every request in flight is lost.
        """
        self._check_alive()
        try:
            batch = self._schedule()
            if batch is None:
                return []
            launched = time.monotonic()
            with self._watch():
                hidden = self._runner.forward(batch)
                masks = self.scheduler.masks(batch)  # while the device computes
                result = self._runner.sample(batch, hidden, masks).wait()  # the only wait of the loop
            ready = time.monotonic()
            updates = self.scheduler.commit(batch, result)
        except Exception as error:
            raise self._die(f"a step failed: {type(error).__name__}: {error}") from error
        self.recorder.take(updates, ready)
        outputs = [output for news in _by_request(updates) for output in self._deliver(news)]
        self.recorder.end_step(batch, launched=launched, ready=ready, more=self.has_unfinished)
        return outputs

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
            shapes.note([len(row.tokens) for row in batch.prefill], len(batch.decode))
        return batch

    def _deliver(self, news: Sequence[SequenceUpdate]) -> list[RequestOutput]:
        """Turn the news of one request into outputs; an error in there ends this request only."""
        request_id = news[0].request_id
        try:
            outputs, stopped = self._postprocessor.process(news)
        except Exception:
            logger.exception("request %s is aborted: its output cannot be built", request_id)
            outputs, stopped = [_aborted(self._requests[request_id])], []
            self.abort(request_id)
        for sequence in stopped:
            self.scheduler.stop(*sequence)
            self.recorder.stop(*sequence)
        for output in outputs:
            if output.finished:
                self._requests.pop(output.request_id, None)
        return outputs

    def _check_alive(self) -> None:
        if self._dead is not None:
            raise EngineDeadError(f"the engine has stopped ({self._dead}); make a new one")

    def _die(self, reason: str) -> EngineDeadError:
        """Give up everything in flight, so that the ledger balances and nobody waits for ever."""
        self._dead = reason
        lost = self.scheduler.abort_all()
        for request_id in lost:
            self._postprocessor.discard(request_id)
            self.recorder.lose(request_id, "error")
        self._requests.clear()
        return EngineDeadError(f"the engine has stopped ({reason}); {len(lost)} requests in flight are lost")


def _by_request(updates: Sequence[SequenceUpdate]) -> list[list[SequenceUpdate]]:
    grouped: dict[str, list[SequenceUpdate]] = {}
    for update in updates:
        grouped.setdefault(update.request_id, []).append(update)
    return list(grouped.values())


def _aborted(request: Request) -> RequestOutput:
    return RequestOutput(
        request_id=request.request_id,
        prompt=request.prompt,
        prompt_token_ids=request.prompt_token_ids,
        outputs=tuple(
            CompletionOutput(index=index, text="", token_ids=(), finish_reason="abort")
            for index in range(request.sampling.n)
        ),
        finished=True,
    )
