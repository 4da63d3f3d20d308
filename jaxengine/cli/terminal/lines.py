"""What a person types: lines with history and editing, several lines where they say so."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

QUOTE = '"""'
HISTORY = 1000


class Lines:
    """Reads from the terminal. History is kept between runs, readable by its owner only, under `XDG_STATE_HOME`.

    Args:
        name: of the history.
    """

    def __init__(self, name: str) -> None:
        state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
        self._file = state / "jaxengine" / f"{name}_history"
        try:
            import readline
        except ImportError:  # a Python without it still reads lines
            return
        self._readline = readline
        with suppress(OSError):
            readline.read_history_file(self._file)
        readline.set_history_length(HISTORY)
        readline.parse_and_bind("set enable-bracketed-paste on")

    def read(self, prompt: str) -> str | None:
        """What is typed next, without the line end; None at the end of input.

        A line that ends in a backslash goes on in the next, and three quotes begin a text that goes on until three more.

        Raises:
            KeyboardInterrupt: Ctrl-C.
        """
        try:
            text = input(prompt)
            while text.endswith("\\"):
                text = f"{text[:-1]}\n{input('... ')}"
            if text.lstrip().startswith(QUOTE):
                text = text.lstrip().removeprefix(QUOTE)
                while QUOTE not in text:
                    text = f"{text}\n{input('... ')}"
                text = text.partition(QUOTE)[0].strip("\n")
        except EOFError:
            return None
        return text

    def keep(self) -> None:
        """Write the history, where that can be."""
        with suppress(OSError, AttributeError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            self._file.touch(mode=0o600)
            self._readline.write_history_file(self._file)
