"""Segments of a text by the times in it, and how they are written."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from jaxengine.front.speech import SpeechTokens


@dataclass(frozen=True, slots=True)
class Spoken:
    """What was said from `begin` to `end`, in seconds of the whole sound; `seek` is where its piece begins, and `silence` how
    likely it is that nobody speaks in that."""

    begin: float
    end: float
    tokens: Sequence[int]
    logprobs: Sequence[float]
    text: str
    seek: float
    silence: float | None = None

    @property
    def mean_logprob(self) -> float:
        """Of its tokens."""
        return sum(self.logprobs) / max(1, len(self.logprobs))

    @property
    def compression(self) -> float:
        """How often its text is what it says: repeated, it is large."""
        text = self.text.encode()
        return len(text) / len(zlib.compress(text)) if text else 0.0


def segments_of(
    tokens: Sequence[int],
    logprobs: Sequence[float],
    speech: SpeechTokens,
    decode: Callable[[Sequence[int]], str],
    *,
    begin: float,
    length: float,
    silence: float | None = None,
) -> list[Spoken]:
    """The segments of a piece that begins at `begin` and is so long. What has no end ends with the piece."""
    found: list[Spoken] = []
    at, own, scores = begin, [], []
    for token, logprob in zip(tokens, logprobs, strict=True):
        if token < speech.first_time:
            if token != speech.end:
                own.append(token)
                scores.append(logprob)
            continue
        said = begin + min(speech.seconds(token), length)
        if own:
            found.append(Spoken(at, said, tuple(own), tuple(scores), decode(own), begin, silence))
            own, scores = [], []
        at = said
    if own:
        found.append(Spoken(at, begin + length, tuple(own), tuple(scores), decode(own), begin, silence))
    return found


def srt(segments: Iterable[Spoken]) -> str:
    """Subtitles in SubRip's format."""
    return "\n".join(
        f"{number}\n{_clock(one.begin, ',')} --> {_clock(one.end, ',')}\n{_line(one.text)}\n"
        for number, one in enumerate(segments, 1)
    )


def vtt(segments: Iterable[Spoken]) -> str:
    """Subtitles in WebVTT's format."""
    cues = (f"{_clock(one.begin, '.')} --> {_clock(one.end, '.')}\n{_escaped(_line(one.text))}\n" for one in segments)
    return "\n".join(["WEBVTT\n", *cues])


def _clock(seconds: float, point: str) -> str:
    thousandths = round(seconds * 1000)
    minutes, rest = divmod(thousandths, 60_000)
    return f"{minutes // 60:02}:{minutes % 60:02}:{rest // 1000:02}{point}{rest % 1000:03}"


def _escaped(text: str) -> str:
    """What would begin a tag or an entity in WebVTT is text."""
    return text.replace("&", "&amp;").replace("<", "&lt;")


def _line(text: str) -> str:
    """As one line: an empty one would end it, and an arrow is a format's own."""
    return " ".join(text.split()).replace("-->", "->")
