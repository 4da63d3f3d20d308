"""Where the log goes, and what its lines look like."""

from __future__ import annotations

import json
import logging
import sys
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


def name_lines(name: str) -> None:
    """Begin every message of this process with a name, where several processes write to one place."""

    def named(record: logging.LogRecord) -> bool:
        record.msg = f"{name}: {record.msg}"
        return True

    for handler in logger.handlers:
        handler.addFilter(named)
