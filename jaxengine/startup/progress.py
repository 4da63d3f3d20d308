"""What the start is doing: one line per phase with elapsed time, and an ETA where there is something to count."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

logger = logging.getLogger("jaxengine")


class _OwnHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Told apart from handlers of the program around us."""


class JsonLines(logging.Formatter):
    """An object a line: time, level, logger, message, and the exception where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


FORMATTERS = {
    "plain": logging.Formatter("%(message)s"),
    "text": logging.Formatter("%(asctime)s %(levelname)s %(message)s"),
    "json": JsonLines(),
}
"""How log lines look: for a person who started something, with time and level, or for a program."""


def show_log(layout: str = "plain") -> None:
    """Send jaxengine's log to standard error in one of `FORMATTERS`, unless the program has set up logging of its own.

    A level that was set on the `jaxengine` logger stays: WARNING there keeps a start silent. But for `plain`, uvicorn's lines
    come the same way. A later call changes the layout.
    """
    own = [handler for handler in logger.handlers if isinstance(handler, _OwnHandler)]
    if not own and (logger.handlers or logging.getLogger().handlers):
        return
    handler = own[0] if own else _OwnHandler(sys.stderr)
    handler.setFormatter(FORMATTERS[layout])
    for name in ("jaxengine",) if layout == "plain" else ("jaxengine", "uvicorn"):
        shown = logging.getLogger(name)
        shown.handlers = [handler]
        shown.propagate = False
        if shown.level == logging.NOTSET:
            shown.setLevel(logging.INFO)


class Progress:
    """Writes the phases of a start, stamped with the seconds since it began."""

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._phases: dict[str, float] = {}

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start began."""
        return time.perf_counter() - self._started

    @property
    def phases(self) -> dict[str, float]:
        """Seconds each finished phase took, in order."""
        return dict(self._phases)

    def say(self, phase: str, text: str) -> None:
        """One line: `[  1.2s] compile  ...`."""
        logger.info("[%5.1fs] %-8s %s", self.elapsed_s, phase, text)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a phase; it is recorded also when it fails."""
        begun = time.perf_counter()
        try:
            yield
        finally:
            self._phases[name] = self._phases.get(name, 0.0) + time.perf_counter() - begun


class Countdown:
    """Counts `total` jobs of known relative cost done and says how long the rest will take."""

    def __init__(self, progress: Progress, phase: str, *, total: int, total_cost: float) -> None:
        self._progress = progress
        self._phase = phase
        self._total = total
        self._total_cost = total_cost
        self._done = 0
        self._done_cost = 0.0
        self._begun = time.perf_counter()

    def done(self, text: str, cost: float) -> None:
        """One more job is done. The estimate scales the time so far by the cost that is left."""
        self._done += 1
        self._done_cost += cost
        spent = time.perf_counter() - self._begun
        left = spent * max(0.0, self._total_cost - self._done_cost) / max(self._done_cost, 1e-9)
        self._progress.say(self._phase, f"{self._done}/{self._total} {text}, ETA {left:.0f} s")
