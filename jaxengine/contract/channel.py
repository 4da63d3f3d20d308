"""How the front holds an engine: as the other end of messages, or step by step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from jaxengine.contract.facts import EngineFacts
from jaxengine.contract.messages import Abort, Event, Message, Question, Reply
from jaxengine.contract.metrics import Condition, EngineStatistics
from jaxengine.contract.updates import SequenceUpdate


class Channel(Protocol):
    """An engine that runs beside its caller, in a thread or elsewhere: messages go there, events come from there."""

    @property
    def facts(self) -> EngineFacts:
        """What is true of the engine."""
        ...

    def open(self, emit: Callable[[Event], None]) -> None:
        """Start it. `emit` is given every event, in order, on whatever thread they come."""
        ...

    def send(self, message: Message) -> None:
        """Pass a message on, in order; it is never waited for."""
        ...

    @property
    def is_alive(self) -> bool:
        """Whether it runs: from `open` until its last event."""
        ...

    @property
    def condition(self) -> Condition:
        """How it is, and what it has survived."""
        ...

    def join(self, timeout_s: float) -> None:
        """Wait for its end, at most so long."""
        ...

    def kill(self) -> None:
        """End it now, whatever it does. `EngineDead` follows where it still can."""
        ...

    def close(self) -> None:
        """Give up what is left of it, and free the device. Closing twice is fine."""
        ...


class InlineEngine(Protocol):
    """An engine whose steps its caller runs, on one thread."""

    @property
    def facts(self) -> EngineFacts:
        """What is true of the engine."""
        ...

    @property
    def has_unfinished(self) -> bool:
        """Whether any request has not ended."""
        ...

    @property
    def statistics(self) -> EngineStatistics:
        """Counts as of now."""
        ...

    def take(self, message: Question | Abort) -> Reply | None:
        """Do what a message asks for. None where nobody is told what came of it."""
        ...

    def step(self) -> Sequence[SequenceUpdate]:
        """Run a step; what it, or the one before it, changed.

        Raises:
            EngineDeadError: a step failed, or the engine had stopped before. Every request in flight is lost.
        """
        ...

    def close(self) -> None:
        """Give up what runs, and free the device. Closing twice is fine."""
        ...
