"""An engine that starts beside the front, and how far it is."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Protocol

from jaxengine.contract.channel import Channel
from jaxengine.contract.facts import EngineFacts
from jaxengine.contract.messages import StartProgress
from jaxengine.contract.model_source import ModelSource


class StartPhases:
    """Takes in what an engine says of its start. One thread writes, any may read."""

    def __init__(self) -> None:
        self._done: dict[str, float] = {}
        self._begun: dict[str, float] = {}

    def take(self, progress: StartProgress) -> None:
        """The start goes on."""
        if progress.seconds is None:
            return
        if progress.done:
            self._done = {**self._done, progress.phase: progress.seconds}
            self._begun = {name: begun for name, begun in self._begun.items() if name != progress.phase}
        else:
            self._begun = {**self._begun, progress.phase: time.monotonic() - progress.seconds}

    @property
    def seconds(self) -> Mapping[str, float]:
        """Those that each phase has taken so far, in the order in which they began or ended."""
        now = time.monotonic()
        return {**self._done, **{name: now - begun for name, begun in self._begun.items()}}

    @property
    def running(self) -> tuple[str, ...]:
        """The phases that have not ended."""
        return tuple(self._begun)


class StartingEngine(Channel, Protocol):
    """A channel to an engine that may not be there yet. The two futures have the error of a start that fails."""

    @property
    def phases(self) -> StartPhases:
        """How far the start is."""
        ...

    @property
    def source(self) -> Future[ModelSource]:
        """Where the model's files are, once they are found."""
        ...

    @property
    def ready(self) -> Future[EngineFacts]:
        """The facts, once messages are taken. The channel has them from then on."""
        ...
