"""What an engine does beside its steps, or once they rest: compiling grammars, reading adapters, writing traces, changing."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence, Set
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import Any

from jaxengine.contract.messages import (
    Abort,
    Add,
    Change,
    LoadAdapter,
    Message,
    Pause,
    PauseGeneration,
    Profile,
    Reply,
    ResumeGeneration,
    Sleep,
    Update,
    Wake,
)
from jaxengine.contract.updates import SequenceUpdate
from jaxengine.host.adapters.shelf import Reading
from jaxengine.host.engine.host import EngineHost


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    """A message, what it waits for, and what was asked of its requests meanwhile."""

    message: Add | Profile | LoadAdapter
    futures: Sequence[Future[Any] | Reading]
    behind: tuple[Abort | Pause, ...] = ()

    @property
    def ready(self) -> bool:
        return all(future.done() for future in self.futures)


class Deferred:
    """Messages whose replies come later than those of the messages behind them.

    Requests are added when the grammars that they bring are compiled, and then what was asked of them meanwhile is done. Changes
    are made one after the other, each once what runs has come to rest; requests that come while one waits for those before them
    to end are added after it.

    Args:
        host: whose messages they are.
    """

    def __init__(self, host: EngineHost) -> None:
        self._host = host
        self._waiting: list[_Waiting] = []
        self._changes: deque[Change] = deque()
        self._work: Future[None] | None = None
        self._updates: list[SequenceUpdate] = []

    def __bool__(self) -> bool:
        return bool(self._waiting or self._changes)

    @property
    def any_ready(self) -> bool:
        """Whether `replies` would return any, or begin what has waited."""
        if self._changes and (self._work is None or self._work.done()):
            return self._work is not None or not self._host.has_work
        return any(waiting.ready for waiting in self._waiting)

    def join(self) -> None:
        """Wait until nobody else uses the device."""
        if self._work is not None:
            wait([self._work])

    def take_updates(self) -> list[SequenceUpdate]:
        """What is to be told of requests that changes have ended."""
        updates, self._updates = self._updates, []
        return updates

    def defer(self, message: Message) -> bool:
        """Put off a message that would hold up the next step; False when it can be taken at once."""
        futures: Sequence[Future[Any] | Reading]
        match message:
            case Add():
                futures = self._compile(message)
                if self._drains:
                    self._waiting.append(_Waiting(message, futures))
                    return True
            case Profile():
                futures = [_on_a_thread(self._host.take, message)]
            case LoadAdapter():
                reading = self._host.begin_reading(message)
                futures = [] if reading is None else [reading]
            case PauseGeneration() | ResumeGeneration() | Sleep() | Wake() | Update():
                self._changes.append(message)
                return True
            case Abort() | Pause():
                if self._waiting:
                    self._follow(message)
                return False
            case _:
                return False
        if futures:
            self._waiting.append(_Waiting(message, futures))
        return bool(futures)

    def replies(self) -> list[Reply]:
        """To messages that are ready: their requests are in, if they could be."""
        replies = self._change() if self._changes else []
        if self._waiting:
            drains = self._drains
            ready = [each for each in self._waiting if each.ready and not (drains and isinstance(each.message, Add))]
            self._waiting = [waiting for waiting in self._waiting if waiting not in ready]
            replies += [reply for waiting in ready if (reply := self._reply(waiting)) is not None]
        return replies

    @property
    def _drains(self) -> bool:
        """Whether a change waits until the requests before it have ended."""
        return bool(self._changes) and not self._host.core.changes.halted

    def _change(self) -> list[Reply]:
        """Go on with the first change; at its end the reply to it."""
        host, change = self._host, self._changes[0]
        reply: Reply | None = None
        if self._work is None:
            ready, updates, reply = host.begin_change(change)
            self._updates += updates
            if ready and host.core.changes.reads(change):
                self._work = _on_a_thread(host.core.changes.work, change)
            elif ready:
                reply = host.finish_change(change, lambda: host.core.changes.work(change))
        elif self._work.done():
            work, self._work = self._work, None
            reply = host.finish_change(change, work.result)
        if reply is None:
            return []
        self._changes.popleft()
        return [reply]

    def _reply(self, waiting: _Waiting) -> Reply | None:
        match waiting.message:
            case Add():
                added = self._host.take(waiting.message)
                for message in waiting.behind:
                    self._host.take(message)
                return added
            case LoadAdapter():
                [reading] = waiting.futures
                assert isinstance(reading, Reading)
                return self._host.finish_reading(waiting.message, reading)
            case Profile():
                [future] = waiting.futures
                assert isinstance(future, Future)
                reply: Reply | None = future.result()
                return reply

    def _compile(self, add: Add) -> list[Future[Any]]:
        """What compiles the grammars of requests that are not ready."""
        compiler = self._host.compiler
        sources = dict.fromkeys(request.grammar for request in add.requests if request.grammar is not None)
        if compiler is None or not sources:
            return []
        return [compiler.begin(source) for source in sources if not compiler.is_ready(source)]

    def _follow(self, message: Abort | Pause) -> None:
        """Forget requests that end before they began; what else is asked of those that wait is done once they are in."""
        ended = frozenset(message.request_ids) if isinstance(message, Abort) else frozenset()
        for index, waiting in enumerate(self._waiting):
            if isinstance(waiting.message, Add):
                kept = tuple(each for each in waiting.message.requests if each.request_id not in ended)
                behind = (*waiting.behind, *_for_later(message, {each.request_id for each in kept}))
                self._waiting[index] = replace(waiting, message=replace(waiting.message, requests=kept), behind=behind)


def _for_later(message: Abort | Pause, request_ids: Set[str]) -> list[Abort | Pause]:
    """What of a message is about these requests, which do not end by it."""
    if isinstance(message, Pause):
        named = tuple(name for name in message.request_ids if name in request_ids)
        return [Pause(named, message.paused)] if named else []
    stopped = tuple(each for each in message.stopped if each[0] in request_ids)
    return [Abort(stopped=stopped)] if stopped else []


def _on_a_thread(function: Callable[..., Any], *arguments: Any) -> Future[Any]:
    thread = ThreadPoolExecutor(1, "deferred")
    future = thread.submit(function, *arguments)
    thread.shutdown(wait=False)
    return future
