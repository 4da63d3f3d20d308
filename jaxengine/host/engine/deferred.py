"""What an engine does beside its steps: compiling grammars, writing traces, reading weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from jaxengine.contract.messages import Abort, Add, Message, Profile, Reply, Update
from jaxengine.host.engine.host import EngineHost


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    """A message, and what it waits for."""

    message: Add | Profile | Update
    futures: Sequence[Future[Any]]

    @property
    def ready(self) -> bool:
        return all(future.done() for future in self.futures)


class Deferred:
    """Messages whose replies come later than those of the messages behind them.

    Requests are added when the grammars that they bring are compiled.

    Args:
        host: whose messages they are.
    """

    def __init__(self, host: EngineHost) -> None:
        self._host = host
        self._waiting: list[_Waiting] = []

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def any_ready(self) -> bool:
        """Whether `replies` would return any."""
        return any(waiting.ready for waiting in self._waiting)

    def defer(self, message: Message) -> bool:
        """Put off a message that would hold up the next step; False when it can be taken at once."""
        match message:
            case Add():
                futures = self._compile(message)
            case Profile():
                futures = [_on_a_thread(self._host.take, message)]
            case Update(_, path) if not (self._host.has_unfinished or self._host.core.asleep):
                futures = [_on_a_thread(self._host.read_weights, path)]
            case Abort(request_ids):
                if self._waiting:
                    self._drop(frozenset(request_ids))
                return False
            case _:
                return False
        if futures:
            self._waiting.append(_Waiting(message, futures))
        return bool(futures)

    def replies(self) -> list[Reply]:
        """To messages that are ready: their requests are in, if they could be."""
        if not self._waiting:
            return []
        ready = [waiting for waiting in self._waiting if waiting.ready]
        self._waiting = [waiting for waiting in self._waiting if waiting not in ready]
        return [reply for waiting in ready if (reply := self._reply(waiting)) is not None]

    def _reply(self, waiting: _Waiting) -> Reply | None:
        match waiting.message:
            case Add():
                return self._host.take(waiting.message)
            case Update():
                return self._host.take(waiting.message, read=waiting.futures[0].result)
            case Profile():
                reply: Reply | None = waiting.futures[0].result()
                return reply

    def _compile(self, add: Add) -> list[Future[Any]]:
        """What compiles the grammars of requests that are not ready."""
        compiler = self._host.compiler
        sources = {request.grammar for request in add.requests if request.grammar is not None}
        if compiler is None or not sources:
            return []
        return [compiler.begin(source) for source in sources if not compiler.is_ready(source)]

    def _drop(self, request_ids: frozenset[str]) -> None:
        """Forget requests that have ended before they began."""
        for index, waiting in enumerate(self._waiting):
            if isinstance(waiting.message, Add):
                kept = tuple(each for each in waiting.message.requests if each.request_id not in request_ids)
                self._waiting[index] = replace(waiting, message=replace(waiting.message, requests=kept))


def _on_a_thread(function: Callable[..., Any], *arguments: Any) -> Future[Any]:
    thread = ThreadPoolExecutor(1, "deferred")
    future = thread.submit(function, *arguments)
    thread.shutdown(wait=False)
    return future
