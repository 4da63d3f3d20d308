"""All that passes between the front and an engine: messages in, two events out, frozen values every one.

    front                               engine
    Add, Reset, Profile        ------->   (a reply in one of the next StepOutputs)
    Sleep, Wake, Update        ------->
    Abort, Close               ------->
                               <-------   StepOutputs: replies, updates, statistics
                               <-------   EngineDead: the last one

They survive pickling, so that the two sides need not share a process.
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxengine.contract.metrics import EngineStatistics, FinishedRequest, FinishedSequence, StepStats
from jaxengine.contract.request import Request
from jaxengine.contract.updates import SequenceUpdate
from jaxengine.errors import EngineDeadError, JaxEngineError


@dataclass(frozen=True, slots=True)
class Add:
    """Accept these requests, all or none. `Done` or `Refused` answers under the same number, once grammars are compiled."""

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
    """Forget all cached prefixes. `Done` answers under the same number, with False while requests hold some of them."""

    number: int


@dataclass(frozen=True, slots=True)
class Profile:
    """Begin a trace of device and host, or end it. `Done` or `Refused` answers under the same number."""

    number: int
    begin: bool


@dataclass(frozen=True, slots=True)
class Sleep:
    """Give the device's memory back, with the weights kept on the host. Refused while a request has not ended."""

    number: int


@dataclass(frozen=True, slots=True)
class Wake:
    """Take the device's memory again: the same weights, an empty cache."""

    number: int


@dataclass(frozen=True, slots=True)
class Update:
    """Read the weights of another checkpoint of the same model, from the engine's side's file system, and use them from now on.

    Refused while a request has not ended. Cached prefixes are forgotten.
    """

    number: int
    path: str


@dataclass(frozen=True, slots=True)
class Close:
    """End after the step in progress and free the device."""


Question = Add | Reset | Profile | Sleep | Wake | Update
"""What is replied to."""

Message = Question | Abort | Close


@dataclass(frozen=True, slots=True)
class Done:
    """What was asked for is done, or with a `success` of False it could not be."""

    number: int
    success: bool = True


@dataclass(frozen=True, slots=True)
class Refused:
    """What was asked for is not done, for the reason that `error` gives. Of requests none is in."""

    number: int
    error: JaxEngineError


Reply = Done | Refused


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
    """What there is to tell after messages, after a step, or after a while of neither.

    `updates` are what the step changed, in no particular order; those of a sequence come in order. `finished_steps`, `finished`
    and `lost` are what a `StatsListener` hears. `busy` says that another step follows at once.
    """

    statistics: EngineStatistics
    busy: bool
    replies: tuple[Reply, ...] = ()
    updates: tuple[SequenceUpdate, ...] = ()
    finished_steps: tuple[StepStats, ...] = ()
    finished: tuple[Finished, ...] = ()
    lost: tuple[Lost, ...] = ()


@dataclass(frozen=True, slots=True)
class EngineDead:
    """The engine has ended. Nothing follows, and whatever was open is lost."""

    error: EngineDeadError


Event = StepOutputs | EngineDead
