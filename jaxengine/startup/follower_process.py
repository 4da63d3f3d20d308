"""What the process of a host does that follows the first: it builds its part of the engine, and repeats what that one does."""

from __future__ import annotations

from collections.abc import Callable

from jaxengine.contract.messages import Begin, Event
from jaxengine.startup.engine_process import Work, live


def main(descriptor: int) -> None:
    """The whole life of the process; `descriptor` is its end of the socket."""
    live(descriptor, _build)


def _build(begin: Begin, emit: Callable[[Event], None]) -> Work:
    from jaxengine.startup.group.follower import Follower
    from jaxengine.startup.part import build_part

    return Follower(build_part(begin.config, tell=emit))
