"""Segments by their times, and subtitles of them."""

from __future__ import annotations

from jaxengine.front.speech import SpeechTokens
from jaxengine.server.endpoints.audio.segments import Spoken, segments_of, srt, vtt

SPEECH = SpeechTokens(
    start=90,
    end=89,
    previous=91,
    no_times=99,
    tasks={"transcribe": 92, "translate": 93},
    languages={"en": 94, "de": 95},
    suppressed=(91,),
    not_first=(5,),
    latest_first=50,
    most_previous=3,
    hears=480_000,
)


def spoken(tokens: list[int], begin: float = 0.0, length: float = 2.0) -> list[tuple[float, float, str]]:
    scores = [-0.5] * len(tokens)
    found = segments_of(
        tokens, scores, SPEECH, lambda ids: "".join(chr(97 + one) for one in ids), begin=begin, length=length
    )
    return [(round(one.begin, 2), round(one.end, 2), one.text) for one in found]


def test_a_segment_is_what_stands_between_two_times() -> None:
    assert spoken([100, 1, 2, 150, 150, 3, 175, 89]) == [(0.0, 1.0, "bc"), (1.0, 1.5, "d")]


def test_what_has_no_end_ends_with_the_piece_and_no_time_is_behind_it() -> None:
    assert spoken([110, 1], begin=30.0) == [(30.2, 32.0, "b")]
    assert spoken([100, 1, 190], length=1.0) == [(0.0, 1.0, "b")]
    assert spoken([1, 2]) == [(0.0, 2.0, "bc")]
    assert spoken([100, 150, 89]) == []


def test_subtitles() -> None:
    segments = [
        Spoken(0.0, 1.25, [1], [-1.0], " Hello\n\nyou", 0.0),
        Spoken(3599.9996, 3661.5, [1], [-1.0], "R&D <3 a --> b", 0),
    ]
    assert srt(segments) == (
        "1\n00:00:00,000 --> 00:00:01,250\nHello you\n\n2\n01:00:00,000 --> 01:01:01,500\nR&D <3 a -> b\n"
    )
    assert vtt(segments).startswith("WEBVTT\n\n00:00:00.000 --> 00:00:01.250\nHello you\n\n01:00:00.000")
    assert vtt(segments).endswith("01:01:01.500\nR&amp;D &lt;3 a -> b\n")


def test_prompts_say_language_task_and_times() -> None:
    assert SPEECH.prompt("de", "translate", times=False) == (90, 95, 93, 99)
    assert SPEECH.prompt("en", "transcribe", times=True, previous=(1, 2, 3, 4)) == (91, 2, 3, 4, 90, 94, 92)
    assert SPEECH.rules(times=True).first_time == 100
    assert SPEECH.rules(times=True).suppressed == (91, 99)
    assert SPEECH.rules(times=False).first_time is None
