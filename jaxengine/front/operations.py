"""What is asked of an engine beside requests, and the replies that are waited for."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxengine.contract.channel import Channel
from jaxengine.contract.messages import (
    TAGS,
    Done,
    LoadAdapter,
    PauseGeneration,
    PauseMode,
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
from jaxengine.errors import EngineDeadError, JaxEngineError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Asked:
    """Somebody waits for a reply. `done` is called at its place among the events, before what follows a `Done`."""

    reply: asyncio.Future[Reply]
    done: Callable[[], None]


class Operations:
    """Asks by a channel what the engine answers with a reply; what runs there goes on meanwhile.

    Args:
        channel: the way to the engine.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._numbers = itertools.count()
        self._versions = itertools.count(1)
        self._questions: dict[int, _Asked] = {}
        self._error: EngineDeadError | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes. False when requests still hold some of them.

        Raises:
            EngineDeadError: the engine has stopped.
        """
        return (await self._ask(Reset(next(self._numbers)))).success

    async def profile(self, *, begin: bool) -> None:
        """Begin a trace of device and host, or end it and write it.

        Raises:
            RequestError: it was not asked for at the start, one is running already, or none is.
            EngineDeadError: the engine has stopped.
        """
        await self._ask(Profile(next(self._numbers), begin))

    async def load_adapter(self, path: str) -> str:
        """Read the adapter in a directory of the engine's file system; the digest of its contents.

        Raises:
            CheckpointError: its files are missing or damaged, or are another model's.
            RequestError: it is larger than slots are, or of a kind that is not built, or the engine has no adapters.
            EngineDeadError: the engine has stopped.
        """
        return (await self._ask(LoadAdapter(next(self._numbers), path))).digest

    async def pause(self, mode: PauseMode, *, clear_cache: bool) -> None:
        """Compute nothing until `resume`.

        Raises:
            EngineDeadError: the engine has stopped.
        """
        await self._ask(PauseGeneration(next(self._numbers), mode, clear_cache))

    async def resume(self) -> None:
        """Go on computing.

        Raises:
            EngineDeadError: the engine has stopped.
        """
        await self._ask(ResumeGeneration(next(self._numbers)))

    async def sleep(self, level: int = 1, mode: PauseMode | None = None) -> None:
        """Compute nothing until `wake`, and from level 1 on give the device's memory back.

        Raises:
            RequestError: a request has not ended, and there is no mode.
            EngineDeadError: the engine has stopped.
        """
        await self._ask(Sleep(next(self._numbers), level, mode))

    async def wake(self, tags: Sequence[str] = TAGS) -> None:
        """Take the device's memory again, or that of what the tags name. Nothing compiles.

        Raises:
            EngineDeadError: the engine has stopped.
        """
        await self._ask(Wake(next(self._numbers), tuple(tags)))

    async def update(
        self, source: str | Mapping[str, Any], version: str | None = None, mode: PauseMode | None = None
    ) -> None:
        """Use other weights of the same model from now on, called `version` or by a number. Cached prefixes are forgotten.

        Raises:
            RequestError: a request has not ended, and there is no mode, or the arrays are not the model's.
            CheckpointError: there is no such checkpoint, or it is of another model.
            OverloadedError: the engine sleeps, with its weights on the host.
            EngineDeadError: the engine has stopped.
        """
        name = str(next(self._versions)) if version is None else version
        await self._ask(Update(next(self._numbers), source, name, mode))

    async def restart(self, engine: int, *, patience_s: float) -> None:
        """Start an engine again while others serve: drained, closed, replaced. Returns when the next one is ready.

        Raises:
            RequestError: there is no such engine.
            OverloadedError: it is not ready.
            UnsupportedError: it is on a thread, and nobody can start another.
            EngineDeadError: it does not start again.
        """
        await self._ask(Restart(next(self._numbers), engine, patience_s))

    async def _ask(self, question: Question, *, done: Callable[[], None] = lambda: None) -> Done:
        """What came of a question.

        Raises:
            JaxEngineError: the engine refuses it.
            EngineDeadError: the engine has stopped.
        """
        if self._error is not None:
            raise self._error
        assert self._loop is not None, "start() comes first"
        answered: asyncio.Future[Reply] = self._loop.create_future()
        self._questions[question.number] = _Asked(answered, done)
        self._channel.send(question)
        try:
            reply = await answered
        finally:
            self._questions.pop(question.number, None)
        if isinstance(reply, Refused):
            raise reply.error
        return reply

    def _answer(self, reply: Reply) -> None:
        question = self._questions.pop(reply.number, None)
        if question is None or question.reply.done():
            return  # whoever asked has gone
        try:
            if isinstance(reply, Done):
                question.done()
        except Exception:
            logger.exception("the engine could not take in a request")
            error = JaxEngineError("the engine could not take in a request, and the log says why")
            question.reply.set_exception(error)  # whoever asked closes the stream, which aborts
        else:
            question.reply.set_result(reply)

    def _fail_questions(self, error: EngineDeadError) -> None:
        """The engine has stopped and answers nothing any more."""
        for question in self._questions.values():
            if not question.reply.done():
                question.reply.set_exception(error)
