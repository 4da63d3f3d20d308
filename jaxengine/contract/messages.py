"""All that passes between the front and an engine: messages in, events out, frozen values every one.

    front                               engine
    Begin                      ------->
                               <-------   StartProgress, ModelFound: while it starts
                               <-------   EngineReady
    Add, Reset, Profile,       ------->   (a reply in one of the next StepOutputs)
    LoadAdapter
    Sleep, Wake, Update,       ------->
    PauseGeneration, ResumeGeneration
    Restart                    ------->   (a supervisor's)
    Abort, Pause, Close        ------->
                               <-------   Began: what the next step runs for the first time
                               <-------   StepOutputs: replies, updates, statistics
                               <-------   Alive: once a second
                               <-------   EngineDead: the last one

An engine on a thread of the front's process is there when the front is made, and is ready at once.

They survive pickling, so that the two sides need not share a process.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np

from jaxengine.contract.facts import EngineFacts
from jaxengine.contract.metrics import EngineStatistics, FinishedRequest, FinishedSequence, StepStats
from jaxengine.contract.model_source import ModelSource
from jaxengine.contract.request import Request
from jaxengine.contract.step_updates import StepUpdates
from jaxengine.contract.updates import SequenceUpdate
from jaxengine.errors import EngineDeadError, JaxEngineError
from jaxengine.options.config import EngineConfig


@dataclass(frozen=True, slots=True)
class Add:
    """Accept these requests, all or none. `Done` or `Refused` answers under the same number, once grammars are compiled."""

    number: int
    requests: tuple[Request, ...]


@dataclass(frozen=True, slots=True)
class Abort:
    """End exactly these requests, and of others the sequences `(request_id, index)` in `stopped`; what has ended is passed over.

    `stopped` are those in whose text the front found a stop string: they count as finished, the requests as aborted, unless they
    go on `elsewhere`.
    """

    request_ids: tuple[str, ...] = ()
    stopped: tuple[tuple[str, int], ...] = ()
    elsewhere: bool = False


@dataclass(frozen=True, slots=True)
class Pause:
    """Compute no more of these requests because nobody reads what comes of them, or go on; what has ended is passed over."""

    request_ids: tuple[str, ...]
    paused: bool = True


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
class LoadAdapter:
    """Read the adapter in a directory of the engine's file system. `Done` has its digest, under which requests name it.

    It stays in the host's memory for as long as there is room, and is read again when a request needs it.
    """

    number: int
    path: str


PauseMode = Literal["abort", "wait", "keep"]
"""What becomes of requests that have not ended before an engine stops computing: they end with `abort`, end by themselves first,
or are kept and go on afterwards. Those that come meanwhile wait."""

PAUSE_MODES: tuple[PauseMode, ...] = ("abort", "wait", "keep")

WEIGHTS, KV_CACHE, SCHEDULING = "weights", "kv_cache", "scheduling"
TAGS = (WEIGHTS, KV_CACHE, SCHEDULING)
"""What sleeps, and wakes up."""


@dataclass(frozen=True, slots=True)
class PauseGeneration:
    """Compute nothing until `ResumeGeneration`.

    With `clear_cache` cached prefixes are forgotten, and what is kept is computed again.
    """

    number: int
    mode: PauseMode = "abort"
    clear_cache: bool = True


@dataclass(frozen=True, slots=True)
class ResumeGeneration:
    """Go on computing."""

    number: int


@dataclass(frozen=True, slots=True)
class Sleep:
    """Compute nothing until `Wake`, and from level 1 on give the device's memory back: the cache is lost.

    The weights are kept on the host at level 1, and dropped at level 2. With the mode None it is refused while a request has not
    ended.
    """

    number: int
    level: int = 1
    mode: PauseMode | None = None


@dataclass(frozen=True, slots=True)
class Wake:
    """Take the device's memory again, or that of what the tags name: the weights as they were, an empty cache.

    Weights that were dropped are read from their checkpoint again. Once all is awake, the engine computes.
    """

    number: int
    tags: tuple[str, ...] = TAGS


@dataclass(frozen=True, slots=True)
class Update:
    """Use other weights of the same model from now on, called `version`. Cached prefixes are forgotten.

    `source` is a checkpoint's directory in the engine's side's file system, or arrays by name: of checkpoints' tensors, or of
    parameters. Of weights that are asleep, those at level 2 can be written. What is kept is computed again with the new ones.
    With the mode None it is refused while a request has not ended.
    """

    number: int
    source: str | Mapping[str, Any]
    version: str
    mode: PauseMode | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled with arrays of the host: those of a device belong to one process."""
        source = self.source
        if not isinstance(source, str):
            source = {name: np.asarray(array) for name, array in source.items()}
        return Update, (self.number, source, self.version, self.mode)


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """The first thing that the process of an engine is told: what to build.

    With `prepare_grammars` what structured output needs is made before the first request that wants it. Its log has lines as
    `log_layout` says, from `log_level` on. It is killed with the process `parent`, by the system where that can.
    """

    config: EngineConfig
    prepare_grammars: bool = False
    log_layout: str = "plain"
    log_level: int = logging.INFO
    parent: int | None = None


@dataclass(frozen=True, slots=True)
class Restart:
    """Empty an engine, end it and start another in its place; `Done` answers when that is ready. For whoever supervises engines.

    It gets no more requests. Those that it has have so many seconds to end; then they go on at another.
    """

    number: int
    engine: int
    patience_s: float


@dataclass(frozen=True, slots=True)
class Close:
    """End after the step in progress and free the device."""


Change = PauseGeneration | ResumeGeneration | Sleep | Wake | Update
"""What an engine does while it computes nothing. They are done in the order in which they come."""

Question = Add | Reset | Profile | LoadAdapter | Change | Restart
"""What is replied to."""

Message = Question | Abort | Pause | Close


@dataclass(frozen=True, slots=True)
class Done:
    """What was asked for is done, or with a `success` of False it could not be; `digest` is that of an adapter that was read."""

    number: int
    success: bool = True
    digest: str = ""


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


@dataclass(frozen=True, slots=True)
class Failed:
    """A request ends here with an error of its own, after what came of it before. Told by who supervises engines."""

    request_id: str
    error: JaxEngineError


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutputs:
    """What there is to tell after messages, after a step, or after a while of neither.

    `updates` are what the step changed, in no particular order; those of a sequence come in order. `finished_steps`, `finished`
    and `lost` are what a `StatsListener` hears. `busy` says that another step follows at once. `engine` is the number of the one
    that tells it, where there are several: whoever has them sets it. `failed` are requests that end.
    """

    statistics: EngineStatistics
    busy: bool
    engine: int = 0
    replies: tuple[Reply, ...] = ()
    updates: Sequence[SequenceUpdate] = ()
    finished_steps: tuple[StepStats, ...] = ()
    finished: tuple[Finished, ...] = ()
    lost: tuple[Lost, ...] = ()
    failed: tuple[Failed, ...] = ()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled with the updates by field."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return _from_values, ({**values, "updates": StepUpdates.joined([self.updates])},)


def _from_values(values: dict[str, Any]) -> StepOutputs:
    return StepOutputs(**values)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartProgress:
    """An engine that starts says how far it is.

    `seconds` are those that the phase has taken so far, all of them where it is `done`, and None where nobody counts them. `text`
    is the line of the log, where there is one.
    """

    phase: str
    seconds: float | None = None
    done: bool = False
    text: str | None = None


@dataclass(frozen=True, slots=True)
class ModelFound:
    """The model's files are there, and the front may read what they say of text while the engine goes on starting."""

    source: ModelSource


@dataclass(frozen=True, slots=True)
class EngineReady:
    """The start is over: messages are taken from now on."""

    facts: EngineFacts


@dataclass(frozen=True, slots=True)
class Began:
    """The next step runs sequences of these requests for the first time, or again after a preemption.

    Told before the step is launched: whoever hears of no end of it knows what was running.
    """

    request_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Alive:
    """The engine's process lives, whatever its loop does: told once a second from a thread of its own."""


@dataclass(frozen=True, slots=True)
class EngineDead:
    """The engine has ended. Nothing follows, and whatever was open is lost.

    `start_error` is why it could not start, where that is something that users can mend. `cause` is a word for metrics.
    `elsewhere`: it followed another host that has closed the engine or is gone, and nothing has failed here.
    """

    error: EngineDeadError
    start_error: JaxEngineError | None = None
    cause: Cause = "exit"
    elsewhere: bool = False


Cause = Literal["exit", "signal", "killed", "step", "hang", "silence", "start"]
"""Of what engines die: their process ends by itself, by a signal, or by SIGKILL, which comes from others; a step fails or
does not end, no sign of life comes, the start fails."""

Event = StartProgress | ModelFound | EngineReady | Began | StepOutputs | Alive | EngineDead
