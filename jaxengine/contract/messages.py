"""All that passes between the front and the engine's loop: four messages in, two events out, frozen values every one.

    front                      loop
    Add, Reset      ------->   (a reply in the next StepOutputs)
    Abort, Close    ------->
                    <-------   StepOutputs: replies, updates, counts, statistics
                    <-------   EngineDead: the last one

They survive pickling, so that the two sides need not share a process. A request with a compiled grammar is the exception
(`LLMatcher` does not pickle): a loop elsewhere would have to compile `sampling.structured_outputs` itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxengine.contract.metrics import FinishedRequest, FinishedSequence, SchedulerStats, StepStats
from jaxengine.contract.request import Request
from jaxengine.contract.updates import SequenceUpdate
from jaxengine.errors import EngineDeadError, JaxEngineError


@dataclass(frozen=True, slots=True)
class Add:
    """Accept these requests, all or none. `Accepted` or `Refused` answers under the same number."""

    number: int
    requests: tuple[Request, ...]


@dataclass(frozen=True, slots=True)
class Abort:
    """End exactly these requests, and of others the sequences `(request_id, index)` in `stopped`; what has ended is passed over.

    `stopped` are those in whose text the front found a stop string: they count as finished, the requests as aborted.
    """

    request_ids: tuple[str, ...] = ()
    stopped: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Reset:
    """Forget all cached prefixes. `WasReset` answers under the same number."""

    number: int


@dataclass(frozen=True, slots=True)
class Close:
    """End after the step in progress and free the device."""


Message = Add | Abort | Reset | Close


@dataclass(frozen=True, slots=True)
class Accepted:
    """The requests are in."""

    number: int


@dataclass(frozen=True, slots=True)
class Refused:
    """None of the requests is in, for the reason that `error` gives."""

    number: int
    error: JaxEngineError


@dataclass(frozen=True, slots=True)
class WasReset:
    """Whether the cached prefixes were forgotten; not while requests hold some of them."""

    number: int
    success: bool


Reply = Accepted | Refused | WasReset


@dataclass(frozen=True, slots=True)
class Finished:
    """A sequence ended by itself; the last one of a request brings that."""

    sequence: FinishedSequence
    request: FinishedRequest | None


@dataclass(frozen=True, slots=True)
class Lost:
    """So many sequences ended before their time."""

    finish_reason: str
    num_sequences: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutputs:
    """What the loop has to tell after messages or after a step.

    `num_steps` counts steps since the start, `stats` are the scheduler's counts of this moment. `updates` are what the step
    changed, in no particular order; those of a sequence come in order. `finished_steps`, `finished` and `lost` are what a
    `StatsListener` hears. `busy` says that another step follows at once.
    """

    num_steps: int
    busy: bool
    stats: SchedulerStats
    replies: tuple[Reply, ...] = ()
    updates: tuple[SequenceUpdate, ...] = ()
    finished_steps: tuple[StepStats, ...] = ()
    finished: tuple[Finished, ...] = ()
    lost: tuple[Lost, ...] = ()


@dataclass(frozen=True, slots=True)
class EngineDead:
    """The loop has ended. Nothing follows, and whatever was open is lost."""

    error: EngineDeadError


Event = StepOutputs | EngineDead
