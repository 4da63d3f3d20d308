"""The order of the checks that end a sequence."""

from __future__ import annotations

import pytest

from jaxengine.host.scheduler.finish import finish_after


@pytest.mark.parametrize(
    ("token", "eos_token_id", "full", "expected"),
    [
        (7, 3, False, None),
        (7, 3, True, ("length", None)),
        (3, 3, False, ("stop", None)),
        (3, 3, True, ("stop", None)),
        (3, None, False, None),
        (3, None, True, ("length", None)),
        (4, 3, False, ("stop", 4)),
        (4, 3, True, ("stop", 4)),
        (4, 4, False, ("stop", None)),
    ],
)
def test_first_match_wins(
    token: int, eos_token_id: int | None, full: bool, expected: tuple[str, int | None] | None
) -> None:
    assert finish_after(token, eos_token_id=eos_token_id, stop_ids={4, 5}, full=full) == expected
