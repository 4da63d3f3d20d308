"""A turn after which more time has gone by than was waited for is told as late."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from jaxengine.startup.group import turns


def test_a_late_turn_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    now, took = 0.0, iter((0.5, 99.0, 0.7))

    def wait(_: float) -> bool:
        nonlocal now
        seconds = next(took, None)
        now += seconds or 0.0
        return seconds is None

    monkeypatch.setattr(turns, "time", SimpleNamespace(monotonic=lambda: now))
    closed: Any = SimpleNamespace(wait=wait)
    assert list(turns.turns(closed, 0.5)) == [False, True, False]
