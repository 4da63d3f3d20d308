"""One engine, whole: what the front's messages ask of it is done here, and what belongs to it is closed here."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from jaxengine.contract.batch import Weights
from jaxengine.contract.facts import EngineFacts
from jaxengine.contract.messages import Abort, Add, Done, Profile, Question, Refused, Reply, Reset, Sleep, Update, Wake
from jaxengine.contract.metrics import EngineStatistics
from jaxengine.contract.request import Request
from jaxengine.contract.updates import SequenceUpdate
from jaxengine.errors import EngineDeadError, JaxEngineError, UnsupportedError
from jaxengine.grammar.compiler import GrammarCompiler
from jaxengine.grammar.matching import Grammar
from jaxengine.host.engine.core import EngineCore

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
        read_weights: reads those of another checkpoint, by its path; None where there are none to read.
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
        read_weights: Callable[[str], Weights] | None = None,
        closing: Sequence[Callable[[], None]] = (),
    ) -> None:
        self.core = core
        self.facts = facts
        self.compiler = compiler
        self._programs = programs or NoPrograms()
        self._tracer = tracer
        self._read_weights = read_weights
        self._closing = closing
        self._num_steps = 0

    @property
    def has_unfinished(self) -> bool:
        """Whether any request has not ended."""
        return self.core.has_unfinished

    @property
    def statistics(self) -> EngineStatistics:
        """Counts as of now."""
        return EngineStatistics(
            scheduler=self.core.scheduler.stats,
            num_steps=self._num_steps,
            num_programs=self._programs.num_programs,
            num_compilations=self._programs.num_compilations,
            asleep=self.core.asleep,
        )

    def step(self) -> list[SequenceUpdate]:
        """Run a step; what it, or the one before it, changed.

        Raises:
            EngineDeadError: a step failed, or the engine had stopped before. Every request in flight is lost.
        """
        updates = self.core.step()
        self._num_steps += 1
        return updates

    def take(self, message: Question | Abort, *, read: Callable[[], Weights] | None = None) -> Reply | None:
        """Do what a message asks for. None where nobody is told what came of it.

        `read` returns what an `Update` asks to be read; otherwise it is read here.

        Raises:
            EngineDeadError: the engine has stopped because of it.
        """
        match message:
            case Abort():
                self.core.end(message)
                return None
            case _:
                return self._answer(message, read)

    def close(self) -> None:
        """Give up what runs, and free the device. Closing twice is fine."""
        closing, self._closing = self._closing, ()
        for close in closing:
            close()
        self.core.close()
        if self.compiler is not None:
            self.compiler.close()

    def _answer(self, question: Question, read: Callable[[], Weights] | None) -> Reply:
        try:
            match question:
                case Add(number, requests):
                    self._add(requests)
                    return Done(number)
                case Reset(number):
                    return Done(number, self.core.reset_prefix_cache())
                case Profile(number, begin):
                    self._trace(begin=begin)
                    return Done(number)
                case Sleep(number):
                    self.core.sleep()
                    return Done(number)
                case Wake(number):
                    self.core.wake()
                    return Done(number)
                case Update(number, path):
                    self.core.check_can_write()
                    self.core.write(self.read_weights(path) if read is None else read())
                    return Done(number)
        except EngineDeadError:
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
                self.core.add(request, self._grammar(request))
                added.append(request.request_id)
        except BaseException:
            for request_id in added:
                self.core.abort(request_id)
            raise

    def _grammar(self, request: Request) -> Grammar | None:
        if request.grammar is None:
            return None
        assert self.compiler is not None, "a request brings a grammar, and nothing compiles it"
        return self.compiler.compile(request.grammar)

    def read_weights(self, path: str) -> Weights:
        """What an `Update` asks for; the engine may run meanwhile.

        Raises:
            CheckpointError: there is no such checkpoint, or it is not of this engine's model.
            UnsupportedError: this engine reads no weights.
        """
        if self._read_weights is None:
            raise UnsupportedError("this engine was made without a checkpoint and reads none")
        return self._read_weights(path)

    def _trace(self, *, begin: bool) -> None:
        if self._tracer is None:
            raise UnsupportedError("there is no device here to trace")
        (self._tracer.start if begin else self._tracer.stop)()
