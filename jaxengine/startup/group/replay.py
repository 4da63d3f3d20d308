"""What a host that follows does with its runner: what the first host did, in the same order."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, Protocol

from jaxengine.contract.batch import Batch
from jaxengine.contract.runner import Checkpoint, Pending, Runner, Weights
from jaxengine.startup.group.adapter_reads import AdapterReads
from jaxengine.startup.group.following import RunnerCall
from jaxengine.startup.group.leading_runner import digest_of

logger = logging.getLogger("jaxengine")


class Reports(Protocol):
    """Who is told how calls ended, as `FollowingGroup` has it."""

    def report(self, number: int, error: str) -> None: ...

    def note(self, step: int, result: int) -> None: ...


def replay(
    runner: Runner, calls: Iterable[RunnerCall], reports: Reports, *, read: Callable[[Checkpoint], Weights]
) -> None:
    """Make each call, until there are no more. `read` reads the weights that the first host has read of a checkpoint.

    Steps are waited for as the first host does, so that no more of them are under way here than there. Adapters are read beside
    them, and waited for where they are used. A call that fails is told: whether that is the end is for the first host to say,
    where it may have failed too.
    """
    underway: deque[tuple[int, Pending]] = deque()
    adapters = AdapterReads(runner, reports.report)
    for call in calls:
        try:
            match call.name:
                case "load_adapter":
                    adapters.begin(call.number, *call.arguments)
                    continue
                case "place_adapter" | "drop_adapter":
                    adapters.wait(call.arguments[0])
                case "launch":
                    while len(underway) >= runner.max_in_flight:
                        number, pending = underway.popleft()
                        result = pending.wait()
                        if len(result.tokens):  # where steps end on another host there are none
                            reports.note(number, digest_of(result))
            arguments = tuple(_here(argument, read) for argument in call.arguments)
            made = attrgetter(call.name)(runner)(*arguments, **call.keywords)
            if call.name == "launch":
                [batch] = call.arguments
                assert isinstance(batch, Batch)
                underway.append((batch.number, made))
            runner.tiers.ended()  # which the scheduler of the first host looks at, and nobody here
        except Exception as error:
            logger.exception("call %d of the first host (%s) has failed here", call.number, call.name)
            reports.report(call.number, f"{call.name}: {type(error).__name__}: {error}")
    adapters.close()


def _here(argument: Any, read: Callable[[Checkpoint], Weights]) -> Any:
    return read(argument.of) if isinstance(argument, Weights) and argument.of is not None else argument
