"""A stream is the whole text, however it comes in parts."""

from __future__ import annotations

import random

import pytest

from jaxengine.server.endpoints.audio.joined import Joining, between, joined

PIECES = (" Mary had a  little lamb. ", "", "  ", " Its fleece\n", "was white")


@pytest.mark.parametrize(
    ("language", "whole"),
    [
        ("en", "Mary had a  little lamb. Its fleece was white"),
        (None, "Mary had a  little lamb. Its fleece was white"),
        ("ja", "Mary had a  little lamb.Its fleecewas white"),
    ],
)
def test_parts_come_to_the_whole(language: str | None, whole: str) -> None:
    assert joined(PIECES, between(language)) == whole
    for seed in range(20):
        cuts, joining, told = random.Random(seed), Joining(between(language)), ""
        for piece in PIECES:
            while piece:
                length = cuts.randint(1, 4)
                told += joining.take(piece[:length])
                piece = piece[length:]
            joining.end()
        assert told == whole
