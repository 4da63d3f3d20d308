"""Answers as they come: plain into a file or pipe, as Markdown on a terminal, block by block."""

from __future__ import annotations

import re
import sys
from types import TracebackType
from typing import Protocol

FENCE = re.compile(r"^\s{0,3}(```|~~~)")
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Characters that would move the cursor, or have the terminal do what a model wrote."""

REFRESH_PER_SECOND = 12


class Writer(Protocol):
    """Takes an answer piece by piece, in a `with` block."""

    def __enter__(self) -> Writer: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    def thought(self, text: str) -> None:
        """More of what the model thinks before it answers."""
        ...

    def answer(self, text: str) -> None:
        """More of the answer."""
        ...


def writer(*, markdown: bool = True) -> Writer:
    """One for standard output."""
    return MarkdownWriter() if markdown and sys.stdout.isatty() else PlainWriter()


class PlainWriter:
    """Writes the answer as it is; thoughts are left out. On a terminal without control characters."""

    def __enter__(self) -> PlainWriter:
        self._clean = sys.stdout.isatty()
        self._last = ""
        return self

    def __exit__(self, *exception: object) -> None:
        if self._last and not self._last.endswith("\n"):
            print(flush=True)

    def thought(self, text: str) -> None:
        """Thoughts are no part of the answer."""

    def answer(self, text: str) -> None:
        """Write it at once."""
        text = CONTROLS.sub("", text) if self._clean else text
        self._last = text or self._last
        print(text, end="", flush=True)


class MarkdownWriter:
    """Renders whole blocks for good and the block in the making again and again; thoughts are dim, before the answer."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = Console(highlight=False)
        self._live = Live(
            console=self._console, refresh_per_second=REFRESH_PER_SECOND, transient=True, vertical_overflow="crop"
        )
        self._thoughts = self._text = ""

    def __enter__(self) -> MarkdownWriter:
        self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._end_thoughts()
        self._live.stop()
        self._print(self._text)

    def thought(self, text: str) -> None:
        """Show the end of the thoughts."""
        from rich.text import Text

        self._thoughts += CONTROLS.sub("", text)
        shown = self._thoughts.splitlines()[-max(2, self._console.height // 2) :]
        self._live.update(Text("\n".join(shown), style="dim italic"))

    def answer(self, text: str) -> None:
        """Print the blocks that are whole, show the one that is not."""
        from rich.markdown import Markdown

        self._end_thoughts()
        whole, self._text = split_blocks(self._text + CONTROLS.sub("", text))
        self._print(whole)
        self._live.update(Markdown("\n".join(self._text.splitlines()[-max(2, self._console.height - 4) :])))

    def _end_thoughts(self) -> None:
        from rich.text import Text

        if self._thoughts.strip():
            self._console.print(Text(self._thoughts.strip(), style="dim italic"))
            self._console.print()
        self._thoughts = ""

    def _print(self, text: str) -> None:
        from rich.markdown import Markdown

        if text.strip():
            self._console.print(Markdown(text))


def split_blocks(text: str) -> tuple[str, str]:
    """The blocks that nothing can be added to, and the rest: a block ends at an empty line outside of a fence of code."""
    end = place = 0
    fence = ""
    for line in text.splitlines(keepends=True):
        place += len(line)
        if (found := FENCE.match(line)) is not None and fence in ("", found[1]):
            fence = "" if fence else found[1]
        elif not fence and not line.strip() and line.endswith("\n"):
            end = place
    return text[:end], text[end:]
