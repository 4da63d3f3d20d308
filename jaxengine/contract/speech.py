"""How the text of a sound may be written where times stand in it (Whisper)."""

from __future__ import annotations

from dataclasses import dataclass

SECONDS_OF_TIME = 0.02
"""From one id of a time to the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechRules:
    """Which ids may follow which (arXiv 2212.04356, and the rules that OpenAI's Whisper decodes by).

    `suppressed` ids are never written, those `not_first` not at the beginning. With `first_time` the ids from there on are times,
    `first_time` itself 0.00 s: a text begins with one, of at most `latest_first` steps; they come in pairs, the end of a segment
    and the begin of the next, except before `end`, the id that ends the text; and they do not go back. None: no rules of times.
    """

    end: int
    suppressed: tuple[int, ...] = ()
    not_first: tuple[int, ...] = ()
    first_time: int | None = None
    latest_first: int | None = None
