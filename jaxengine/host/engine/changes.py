"""What is done to an engine while it computes nothing: pausing it, letting it sleep, giving it other weights.

begin    on the loop's thread, again and again until nothing runs that is to end first
work     where weights are read on a thread of its own: the runner is nobody else's meanwhile
finish   on the loop's thread
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jaxengine.contract.messages import (
    KV_CACHE,
    SCHEDULING,
    WEIGHTS,
    Change,
    PauseGeneration,
    PauseMode,
    ResumeGeneration,
    Sleep,
    Update,
    Wake,
)
from jaxengine.contract.runner import Runner, UnfitWeightsError, Weights
from jaxengine.contract.updates import FIRST_VERSION, SequenceUpdate
from jaxengine.errors import OverloadedError, RequestError, UnsupportedError

if TYPE_CHECKING:
    from jaxengine.host.engine.core import EngineCore

ReadWeights = Callable[[Any], Weights]
"""Other weights, of a directory with a checkpoint, of arrays by name, or of None: those of the start."""


def no_weights(source: object) -> Weights:
    """Those of an engine that has none to read.

    Raises:
        UnsupportedError: always.
    """
    raise UnsupportedError("this engine was made without a checkpoint and reads none")


class Changes:
    """The state of an engine that may stand still: `paused`, asleep as a whole or in part, with weights of some version.

    Args:
        core: whose it is.
        runner: the core's.
    """

    def __init__(self, core: EngineCore, runner: Runner) -> None:
        self._core = core
        self._runner = runner
        self._asleep: set[str] = set()
        self._changing = False
        self._directory: str | None = None
        self._directory_version = FIRST_VERSION
        self.read: ReadWeights = no_weights
        self.paused = False
        self.sleep_level = 0
        self.weight_version = FIRST_VERSION

    @property
    def asleep(self) -> bool:
        """Whether anything sleeps, were it only the scheduling."""
        return bool(self._asleep)

    @property
    def halted(self) -> bool:
        """Whether no step may be launched."""
        return self.paused or self._changing or bool(self._asleep)

    def check_awake(self) -> None:
        """Return when the engine has its memory, or is about to have other weights.

        Raises:
            OverloadedError: it was given back.
        """
        if self._asleep & {WEIGHTS, KV_CACHE}:
            raise OverloadedError("the engine sleeps; wake it up first")

    def begin(self, change: Change) -> tuple[bool, list[SequenceUpdate]]:
        """Stop computing as the change asks; whether nothing runs any more, and what is told of requests that it ended.

        Raises:
            RequestError: requests run, and the change does not say what is to become of them.
            OverloadedError: other weights cannot be written to an engine that sleeps so.
            EngineDeadError: the engine has stopped.
        """
        core, updates = self._core, []
        core.check_alive()
        mode = _mode(change)
        if isinstance(change, Update) and WEIGHTS in self._asleep and self.sleep_level < 2:
            raise OverloadedError("the engine sleeps, with its weights on the host; wake up the weights first")
        if mode is None and core.has_unfinished:
            act = "take other weights" if isinstance(change, Update) else "sleep"
            raise RequestError(
                f"the engine cannot {act} while requests run; let them end or abort them first, or say a mode"
            )
        if mode == "abort":
            updates = core.abort_all()
        if mode == "wait" and core.has_unfinished and not self.halted:
            return False, updates
        self._changing = True
        ready = not core.any_in_flight
        if ready and (isinstance(change, Update) or (isinstance(change, Sleep) and change.level > 0)):
            core.forget_cache()  # before the numbers change of which pages were made
        return ready, updates

    def reads(self, change: Change) -> bool:
        """Whether the change reads weights, which takes long."""
        dropped = self.sleep_level == 2 and WEIGHTS in self._asleep
        return isinstance(change, Update) or (isinstance(change, Wake) and dropped and WEIGHTS in change.tags)

    def work(self, change: Change) -> None:
        """Do to the device what is asked for.

        Raises:
            CheckpointError, RequestError: there are no such weights, or they are not the model's. Nothing was changed.
            DeviceFailure: the device is in an unknown state.
        """
        match change:
            case Sleep(_, level) if level > 0:
                self._operate(lambda: self._runner.release(drop_weights=level == 2))
            case Wake(_, tags):
                if WEIGHTS in self._asleep and WEIGHTS in tags:
                    if self.reads(change):
                        self._write(self.read(self._directory))
                    else:
                        self._operate(self._runner.restore_weights)
                if KV_CACHE in self._asleep and KV_CACHE in tags:
                    self._operate(self._runner.restore_state)
            case Update(_, source):
                self._write(self.read(source))

    def finish(self, change: Change) -> None:
        """Note what was done."""
        match change:
            case PauseGeneration(_, _, clear_cache):
                self.paused = True
                if clear_cache:
                    self._core.forget_cache()
            case ResumeGeneration():
                self.paused = False
            case Sleep(_, level):
                were_dropped = self.sleep_level == 2 and WEIGHTS in self._asleep
                if level > 0:
                    self._asleep |= {WEIGHTS, KV_CACHE}
                self._asleep.add(SCHEDULING)
                self.sleep_level = 2 if were_dropped else max(level, min(self.sleep_level, 1))
            case Wake(_, tags):
                if self.reads(change):
                    self._use(self._directory_version)
                self._wake(set(tags))
            case Update(_, source, version):
                if isinstance(source, str):
                    self._directory, self._directory_version = source, version
                self._use(version)
                self._wake({WEIGHTS})
        self._changing = False

    def give_up(self) -> None:
        """A change was refused after it had begun: go on as before."""
        self._changing = False

    def _wake(self, tags: set[str]) -> None:
        self._asleep -= tags - {SCHEDULING}
        if not self._asleep & {WEIGHTS, KV_CACHE} and (SCHEDULING in tags or self.sleep_level > 0):
            self._asleep.discard(SCHEDULING)
            self.sleep_level = 0

    def _use(self, version: str) -> None:
        self.weight_version = version
        self._core.scheduler.use_weights(version)

    def _write(self, weights: Weights) -> None:
        try:
            self._operate(lambda: self._runner.write(weights))
        except UnfitWeightsError as error:
            raise RequestError(str(error), param="weights") from error

    def _operate(self, act: Callable[[], None]) -> None:
        try:
            act()
        except UnfitWeightsError:
            raise
        except Exception as error:
            raise DeviceFailure(f"the device's memory could not be changed: {type(error).__name__}: {error}") from error


class DeviceFailure(Exception):  # noqa: N818  # never reaches a user: the engine ends because of it
    """A change broke off, and what the device holds is not known."""


def _mode(change: Change) -> PauseMode | None:
    """What becomes of requests that run; those that only start something keep them."""
    return "keep" if isinstance(change, ResumeGeneration | Wake) else change.mode
