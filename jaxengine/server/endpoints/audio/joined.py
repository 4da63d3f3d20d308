"""The texts of pieces become one, whole or as it comes."""

from __future__ import annotations

from collections.abc import Iterable

WITHOUT_SPACES = frozenset({"ja", "zh"})
"""Languages in which nothing stands between two texts, as vLLM has it."""


def between(language: str | None) -> str:
    """What stands between the texts of two pieces."""
    return "" if language in WITHOUT_SPACES else " "


def joined(texts: Iterable[str], separator: str) -> str:
    """The texts of pieces as one; those of silence leave nothing."""
    return separator.join(text.strip() for text in texts if text.strip())


class Joining:
    """What `joined` makes of pieces, while they come in parts."""

    def __init__(self, separator: str) -> None:
        self._separator, self._before = separator, ""
        self._begun, self._spaces = False, ""

    def take(self, text: str) -> str:
        """What the next part of a piece adds. Spaces wait for what follows them."""
        text = self._spaces + text
        kept = text.rstrip()
        self._spaces = text[len(kept) :]
        if not kept or self._begun:
            return kept
        self._begun = True
        kept = self._before + kept.lstrip()
        self._before = self._separator
        return kept

    def end(self) -> None:
        """The piece is at its end."""
        self._begun, self._spaces = False, ""
