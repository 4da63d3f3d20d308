"""Whether an engine still works: by its signs of life, and by how long the step in progress takes."""

from __future__ import annotations

from jaxengine.contract.messages import Cause, Event, StepOutputs

START_SILENCE_S = 300.0
"""How long an engine that starts may say nothing: libraries and weights are read, programs compile."""

STEP_FACTOR = 100.0
"""A step may take so many times what the longest one so far took, whatever the limit says."""


class Watch:
    """Over one engine, from its start to its end. All times are of one clock, in seconds.

    Args:
        now: when it was started.
        silence_s: how long it may give no sign of life; 0 is for ever, as for an engine that gives none.
    """

    def __init__(self, now: float, *, silence_s: float) -> None:
        self._silence_s = silence_s
        self._heard = self._told = now
        self._busy = False
        self._longest_s = 0.0
        self.step_limit_s = 0.0
        self.ready = False
        self.worked = False

    def begin_steps(self, limit_s: float) -> None:
        """The engine is ready. A step that takes longer than the limit does not end; 0 is no limit."""
        self.ready, self.step_limit_s = True, limit_s

    def hear(self, event: Event, now: float) -> None:
        """The engine has told something."""
        self._heard = now
        if isinstance(event, StepOutputs):
            self._told, self._busy = now, event.busy
            for step in event.finished_steps:
                self.worked = True
                self._longest_s = max(self._longest_s, step.step_s)

    def owe(self, now: float) -> None:
        """Requests were sent: something is to be heard of them, at least that they wait."""
        if not self._busy:
            self._told, self._busy = now, True

    def pass_over(self, seconds: float, now: float) -> None:
        """So many seconds do not count: nobody listened, as this process or the machine stood still."""
        self._heard, self._told = min(self._heard + seconds, now), min(self._told + seconds, now)

    def verdict(self, now: float) -> tuple[Cause, str] | None:
        """What the engine counts as dead for, and the words for it; None while it works."""
        silent = now - self._heard
        limit = self._silence_s if self.ready else max(self._silence_s, START_SILENCE_S)
        if self._silence_s and silent > limit:
            return "silence", f"the engine gave no sign of life for {silent:.0f} s"
        limit = max(self.step_limit_s, STEP_FACTOR * self._longest_s)
        if self.ready and self._busy and self.step_limit_s and (seconds := now - self._told) > limit:
            return "hang", f"a step of the engine has been running for {seconds:.0f} s, more than {limit:.0f} s"
        return None
