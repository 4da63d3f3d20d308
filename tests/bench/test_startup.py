"""Which starts are made and which are counted; the starts themselves are not here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from jaxengine.bench import startup as subject
from jaxengine.errors import ConfigError


@pytest.fixture
def caches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The cache that each start was given, in order; a start takes as many seconds as there were before it."""
    given: list[str] = []

    def first_token(options: Mapping[str, Any]) -> dict[str, Any]:
        given.append(options["xla_cache_path"])
        return {"first_token_s": float(len(given) - 1), "phases_s": {}}

    monkeypatch.setattr(subject, "first_token", first_token)
    return given


def test_cold_starts_have_a_cache_each_and_warm_ones_the_last(caches: list[str]) -> None:
    figures = subject.startup({}, cold=2, warm=2)
    assert caches[0] != caches[1] == caches[2] == caches[3]
    assert (figures["avg_cold_startup_time"], figures["avg_warm_startup_time"]) == (0.5, 2.5)


def test_without_cold_ones_the_start_that_fills_the_cache_is_not_counted(caches: list[str]) -> None:
    figures = subject.startup({}, cold=0, warm=2)
    assert len(caches) == 3
    assert len(set(caches)) == 1
    assert figures["avg_warm_startup_time"] == 1.5
    assert figures["starts"]["cold"] == []
    assert not any("cold" in name for name in figures)


@pytest.mark.parametrize(("cold", "warm"), [(0, 0), (-1, 2), (1, -1)])
def test_no_starts_or_fewer_are_refused(cold: int, warm: int, caches: list[str]) -> None:
    with pytest.raises(ConfigError, match=f"1 in all; got {cold} cold and {warm} warm"):
        subject.startup({}, cold=cold, warm=warm)
    assert caches == []
