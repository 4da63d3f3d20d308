"""A device whose steps take simulated time and fail when they are told to; what it computes is that of the fake runner."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from jaxengine.contract.batch import Batch, StepResult
from tests.fakes import FakePending, FakeRunner


class DeviceError(Exception):
    """A step failed on purpose."""


class SimulatedDevice(FakeRunner):
    """Pages full of tokens, so that whatever reads a wrong page or resumes at a wrong token gives another answer.

    Attributes:
        before_step: is told of each step before it runs; what it raises, the step raises, when its result is waited for.
    """

    before_step: Callable[[Batch], DeviceError | None]

    def launch(self, batch: Batch) -> FakePending:
        """Run the step; its error, if it is to have one, comes with the result."""
        error = self.before_step(batch)
        pending = super().launch(batch)
        return pending if error is None else _Failing(None, error)


@dataclass
class _Failing(FakePending):
    error: DeviceError

    def wait(self) -> StepResult:
        """Raise."""
        raise self.error
