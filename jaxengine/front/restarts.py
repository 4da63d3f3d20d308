"""When an engine that died is started again, and when no more."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

HOUR_S = 3600.0
FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 30.0


@dataclass(frozen=True, kw_only=True)
class Supervision:
    """What is done about an engine that dies or hangs.

    With `resume` requests go on where they were, else they end. Within an hour an engine is started again `max_restarts` times at
    most. A step that takes `step_timeout_s` counts as a death; None is what the engine's own facts say, 0 is never. So does an
    engine that gives no sign of life for `silence_s`.
    """

    resume: bool = True
    max_restarts: int = 20
    step_timeout_s: float | None = None
    silence_s: float = 15.0


class Restarts:
    """The restarts of one engine: at once where the one that died had got to work, else after waits that double."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._times: deque[float] = deque()
        self._idle_deaths = 0
        self.count = 0

    def next_wait(self, now: float, *, worked: bool) -> float | None:
        """Seconds until the restart after a death, which counts from now on; None when there have been enough.

        `worked`: the engine that died had finished a step.
        """
        while self._times and now - self._times[0] > HOUR_S:
            self._times.popleft()
        if len(self._times) >= self._most:
            return None
        self._times.append(now)
        self.count += 1
        self._idle_deaths = 0 if worked else self._idle_deaths + 1
        waits = self._idle_deaths - 1
        return 0.0 if waits <= 0 else min(FIRST_WAIT_S * 2.0 ** min(waits - 1, 10), LONGEST_WAIT_S)
