"""One error for everything that is wrong, short enough to read."""

from __future__ import annotations

import pytest

from jaxengine.device.weights.problems import Problems
from jaxengine.errors import CheckpointError


def text(*entries: tuple[str, ...]) -> list[str]:
    problems = Problems()
    for kind, *entry in entries:
        problems.add(kind, *entry)
    with pytest.raises(CheckpointError) as caught:
        problems.raise_any("wrong")
    return str(caught.value).splitlines()


def test_nothing_wrong_raises_nothing() -> None:
    Problems().raise_any("wrong")


def test_kinds_keep_their_order_and_count_their_names() -> None:
    assert text(("b", "x"), ("a", "y", "why"), ("b", "z")) == [
        "wrong:",
        "  b (2):",
        "    x",
        "    z",
        "  a (1):",
        "    y: why",
    ]


def test_layers_are_folded_into_ranges() -> None:
    entries = [("k", f"h.{layer}.w", f"for layers.{layer}.q") for layer in (11, 1, 2, 0, 5)]
    assert text(*entries)[2:] == ["    h.{0-2,5,11}.w: for layers.*.q"]


def test_one_layer_is_named_as_it_is() -> None:
    assert text(("k", "h.7.w", "for layers.7.q, not a.*.b"))[2:] == ["    h.7.w: for layers.7.q, not a.*.b"]


def test_different_details_are_not_folded() -> None:
    assert text(("k", "h.0.w", "[1]"), ("k", "h.1.w", "[2]"))[2:] == ["    h.0.w: [1]", "    h.1.w: [2]"]


def test_only_the_first_number_is_folded() -> None:
    entries = [("k", f"h.{layer}.experts.{expert}.w") for layer in (0, 1) for expert in (3, 4)]
    assert text(*entries)[2:] == ["    h.{0-1}.experts.3.w", "    h.{0-1}.experts.4.w"]
