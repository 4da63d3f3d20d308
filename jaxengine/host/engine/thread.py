"""A channel to an engine on a thread of this process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

from jaxengine.contract.messages import Close, EngineReady, Event, Message
from jaxengine.contract.metrics import UNSUPERVISED, Condition
from jaxengine.host.engine.host import EngineHost
from jaxengine.host.engine.loop import EngineLoop


class EngineThread:
    """Runs an `EngineLoop`, which nothing but its queue connects with other threads. It is a `Channel`.

    Args:
        host: the engine; nobody else may touch it once the channel is open.
    """

    def __init__(self, host: EngineHost) -> None:
        self.facts = host.facts
        self._host = host
        self._messages: SimpleQueue[Message] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def open(self, emit: Callable[[Event], None]) -> None:
        """Start the thread, on which `emit` is called."""
        emit(EngineReady(self.facts))
        loop = EngineLoop(self._host, self._messages, emit)
        self._thread = threading.Thread(target=loop.run, name="engine", daemon=True)
        self._thread.start()

    def send(self, message: Message) -> None:
        """Pass a message on."""
        self._messages.put(message)

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def condition(self) -> Condition:
        """It dies once."""
        return UNSUPERVISED

    def join(self, timeout_s: float) -> None:
        """Wait for the end of the thread, at most so long."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def kill(self) -> None:
        """End after the step in progress. A step that does not end is left behind: a thread cannot be ended from outside."""
        self._messages.put(Close())

    def close(self) -> None:
        """Close what belongs to the engine. Closing twice is fine."""
        self._host.close()
