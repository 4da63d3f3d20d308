"""A host that follows the first: its part of the engine, and what it does with it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from jaxengine.contract.facts import EngineFacts
from jaxengine.contract.messages import Close, EngineDead, Event
from jaxengine.errors import EngineDeadError
from jaxengine.host.engine.loop import Messages
from jaxengine.startup.group.following import FollowingGroup
from jaxengine.startup.group.replay import replay
from jaxengine.startup.part import Part
from jaxengine.startup.weights import read_weights


class Follower:
    """A part that is ready to repeat what the first host does."""

    def __init__(self, part: Part) -> None:
        self._part = part

    @property
    def facts(self) -> EngineFacts:
        """Those that are known where another host decides."""
        start = self._part.start
        return EngineFacts(vocab_size=start.space.vocab_size, max_model_len=start.limits.max_model_len)

    def run(self, messages: Messages, emit: Callable[[Event], None]) -> None:
        """Repeat until the first host has had enough. A `Close` ends the process at once: there is nothing to finish here."""
        part, group, runner = self._part, self._part.group, self._part.runner
        assert isinstance(group, FollowingGroup)

        def end() -> None:
            while not isinstance(messages.get(True, None), Close):
                pass
            os._exit(0)

        threading.Thread(target=end, name="until closed", daemon=True).start()
        replay(
            runner,
            group.calls(),
            group,
            read=lambda checkpoint: read_weights(part.config, part.model, checkpoint.directory),
        )
        runner.close()
        emit(EngineDead(EngineDeadError("the first host has closed the engine"), elsewhere=True))
