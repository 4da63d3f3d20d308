"""One engine, whole: what the front's messages ask of it is done here, and what belongs to it is closed here."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from jaxengine.contract.facts import EngineFacts
from jaxengine.contract.messages import (
    Abort,
    Add,
    Change,
    Done,
    LoadAdapter,
    Pause,
    PauseGeneration,
    Profile,
    Question,
    Refused,
    Reply,
    Reset,
    Restart,
    ResumeGeneration,
    Sleep,
    Update,
    Wake,
)
from jaxengine.contract.metrics import EngineStatistics
from jaxengine.contract.request import Request
from jaxengine.contract.step_updates import StepUpdates
from jaxengine.contract.updates import SequenceUpdate
from jaxengine.errors import EngineDeadError, JaxEngineError, RequestError, UnsupportedError
from jaxengine.grammar.compiler import GrammarCompiler
from jaxengine.grammar.matching import Grammar
from jaxengine.host.adapters.shelf import Reading
from jaxengine.host.engine.changes import DeviceFailure, ReadWeights
from jaxengine.host.engine.core import EngineCore
from jaxengine.options.transfer import Address

logger = logging.getLogger(__name__)


class Programs(Protocol):
    """The compiled programs behind an engine, which may grow while it serves."""

    @property
    def num_programs(self) -> int:
        """How many are ready."""
        ...

    @property
    def num_compilations(self) -> int:
        """How many were compiled since the engine was ready, in any thread and unplanned."""
        ...


class NoPrograms:
    """Those of a runner that compiles nothing."""

    num_programs = 0
    num_compilations = 0


class Tracer(Protocol):
    """Writes traces of device and host. May be asked from any thread."""

    def start(self) -> None:
        """Begin one.

        Raises:
            RequestError: one is running, or traces were not asked for at the start.
        """
        ...

    def stop(self) -> None:
        """End it and write it, which may take seconds.

        Raises:
            RequestError: none is running.
        """
        ...


class EngineHost:
    """A core, and what an engine has beside it. It is an `InlineEngine`.

    Not thread-safe: one thread owns it. A `Profile` may be taken on another.

    Args:
        core: nobody else may step it.
        facts: what the front is told of the engine.
        compiler: compiles grammars; None where requests bring none.
        programs: are counted in the statistics.
        tracer: writes traces; None where there is no device to trace.
        read_weights: reads other weights; None where there are none to read.
        know_peer: is told where another engine serves pages, before a request that names it is added.
        closing: is called when the engine closes, in order: first what must end before the device is given up.
    """

    def __init__(
        self,
        core: EngineCore,
        facts: EngineFacts,
        *,
        compiler: GrammarCompiler | None = None,
        programs: Programs | None = None,
        tracer: Tracer | None = None,
        read_weights: ReadWeights | None = None,
        know_peer: Callable[[Address], None] | None = None,
        closing: Sequence[Callable[[], None]] = (),
    ) -> None:
        self.core = core
        self.facts = facts
        self.compiler = compiler
        self._programs = programs or NoPrograms()
        self._tracer = tracer
        if read_weights is not None:
            core.changes.read = read_weights
        self._know_peer = know_peer
        self._closing = closing
        self._num_steps = 0

    @property
    def has_unfinished(self) -> bool:
        """Whether any request has not ended."""
        return self.core.has_unfinished

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything: not where all requests are paused."""
        return self.core.has_work

    @property
    def statistics(self) -> EngineStatistics:
        """Counts as of now."""
        return EngineStatistics(
            scheduler=self.core.scheduler.stats,
            num_steps=self._num_steps,
            num_programs=self._programs.num_programs,
            num_compilations=self._programs.num_compilations,
            asleep=self.core.changes.asleep,
            sleep_level=self.core.changes.sleep_level,
            paused=self.core.changes.paused,
            weight_version=self.core.changes.weight_version,
            tiers=self.core.tier_stats,
        )

    def step(self) -> StepUpdates:
        """Run a step; what it, or the one before it, changed.

        Raises:
            EngineDeadError: a step failed, or the engine had stopped before. Every request in flight is lost.
        """
        updates = self.core.step()
        self._num_steps += 1
        return updates

    def take(self, message: Question | Abort | Pause) -> Reply | None:
        """Do what a message asks for. None where nobody is told what came of it. A change waits for no request.

        Raises:
            EngineDeadError: the engine has stopped because of it.
        """
        match message:
            case Abort():
                self.core.end(message)
                return None
            case Pause():
                self.core.pause(message)
                return None
            case PauseGeneration() | ResumeGeneration() | Sleep() | Wake() | Update():
                return self._change(message)
            case _:
                return self._answer(message, lambda: self._do(message))

    def begin_change(self, change: Change) -> tuple[bool, Sequence[SequenceUpdate], Reply | None]:
        """Stop computing for a change: whether it can be made, what is told of requests that it ended, and perhaps its refusal.

        Raises:
            EngineDeadError: the engine has stopped.
        """
        try:
            return (*self.core.changes.begin(change), None)
        except EngineDeadError:
            raise
        except JaxEngineError as error:
            self.core.changes.give_up()
            return False, (), Refused(change.number, error.with_traceback(None))

    def finish_change(self, change: Change, work: Callable[[], object]) -> Reply:
        """The answer to a change that has begun. `work` is what it does to the device, or tells what came of that.

        Raises:
            EngineDeadError: the engine has stopped because of it.
        """
        changes = self.core.changes

        def finish() -> Reply:
            work()
            changes.finish(change)
            return Done(change.number)

        try:
            reply = self._answer(change, finish)
        except DeviceFailure as failure:
            raise self.core.die(str(failure)) from failure
        if isinstance(reply, Refused):
            changes.give_up()
        return reply

    def _change(self, change: Change) -> Reply:
        """Make a change at once, on this thread."""
        ready, refusal = False, None
        if not (self.core.has_unfinished and not isinstance(change, ResumeGeneration | Wake)):
            ready, _, refusal = self.begin_change(change)
        if refusal is None and not ready:
            self.core.changes.give_up()
            error = RequestError("requests run; let them end or abort them first")
            refusal = Refused(change.number, error)
        return refusal or self.finish_change(change, lambda: self.core.changes.work(change))

    def close(self) -> None:
        """Give up what runs, and free the device. Closing twice is fine."""
        closing, self._closing = self._closing, ()
        for close in closing:
            close()
        self.core.close()
        if self.compiler is not None:
            self.compiler.close()

    def begin_reading(self, message: LoadAdapter) -> Reading | None:
        """Begin to read an adapter; None where there are none."""
        adapters = self.core.scheduler.adapters
        return None if adapters is None else adapters.shelf.read(message.path)

    def finish_reading(self, message: LoadAdapter, reading: Reading | None) -> Reply:
        """The answer to a message when its adapter was read, waiting for it."""

        def finish() -> Reply:
            if reading is None:
                raise RequestError("the engine was started without enable_lora, and has no adapters", param="lora_path")
            return Done(message.number, digest=reading.result())

        return self._answer(message, finish)

    def _do(self, question: Add | Reset | Profile | LoadAdapter | Restart) -> Reply:
        match question:
            case Add(number, requests):
                self._add(requests)
                return Done(number)
            case Reset(number):
                return Done(number, self.core.reset_prefix_cache())
            case LoadAdapter():
                return self.finish_reading(question, self.begin_reading(question))
            case Profile(number, begin):
                self._trace(begin=begin)
                return Done(number)
            case Restart():
                raise UnsupportedError("an engine that nobody supervises cannot be restarted; end it and start another")

    def _answer(self, question: Question, act: Callable[[], Reply]) -> Reply:
        """What came of a question, were it an error."""
        try:
            return act()
        except (EngineDeadError, DeviceFailure):
            raise
        except JaxEngineError as error:
            return Refused(question.number, error.with_traceback(None))  # a value: no frames of this side
        except Exception:
            logger.exception("the engine could not do what a %s asks for", type(question).__name__)
            wish = "take in a request" if isinstance(question, Add) else "do what was asked for"
            return Refused(question.number, JaxEngineError(f"the engine could not {wish}, and the log says why"))

    def _add(self, requests: Sequence[Request]) -> None:
        """Accept requests, all or none."""
        added = []
        try:
            for request in requests:
                self._note_peer(request)
                self.core.add(request, self._grammar(request))
                added.append(request.request_id)
        except BaseException:
            for request_id in added:
                self.core.abort(request_id)
            raise

    def _note_peer(self, request: Request) -> None:
        source = None if request.transfer is None else request.transfer.source
        if source is not None and self._know_peer is not None:
            self._know_peer(source)

    def _grammar(self, request: Request) -> Grammar | None:
        if request.grammar is None:
            return None
        assert self.compiler is not None, "a request brings a grammar, and nothing compiles it"
        return self.compiler.compile(request.grammar)

    def _trace(self, *, begin: bool) -> None:
        if self._tracer is None:
            raise UnsupportedError("there is no device here to trace")
        (self._tracer.start if begin else self._tracer.stop)()
