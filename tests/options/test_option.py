"""How options of any group are read: groups, names, checks, and lengths with a unit."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from jaxengine.errors import ConfigError
from jaxengine.options.option import at_least, fraction, option, option_names, parse_token_count, positive, read_groups


@dataclass(frozen=True, kw_only=True)
class Sizes:
    rows: int = option(1, "rows of a step", aliases=("batch",), check=at_least(1))
    share: float = option(0.5, "of the memory", check=fraction)
    extra: Mapping[str, Any] = option({}, "more of it")


@dataclass(frozen=True, kw_only=True)
class Times:
    wait: float = option(1.0, "seconds", check=positive)
    quick: bool = option(False, "do less")


@dataclass(frozen=True, kw_only=True)
class All:
    sizes: Sizes = field(default_factory=Sizes)
    times: Times = field(default_factory=Times)


def test_flat_names_and_aliases_make_groups() -> None:
    assert All(**read_groups(All, {"batch": 4, "quick": True})) == All(sizes=Sizes(rows=4), times=Times(quick=True))
    assert {name: group for name, (group, _) in option_names(All).items()} == {
        **dict.fromkeys(("rows", "batch", "share", "extra"), "sizes"),
        **dict.fromkeys(("wait", "quick"), "times"),
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows": 2, "batch": 2}, "'rows' and 'batch' are the same option; give one"),
        ({"batch": True}, "batch must be an integer of at least 1, got True"),
        ({"share": 0.0}, "share must be a number in (0, 1], got 0.0"),
        ({"wait": float("inf")}, "wait must be a number above 0, got inf"),
        ({"quick": 1}, "quick must be True or False, got 1"),
    ],
)
def test_what_is_not_allowed_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        read_groups(All, options)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("4096", 4096), ("4k", 4000), ("4K", 4096), ("1.5k", 1500), ("1m", 10**6), ("2M", 2 * 1024**2), ("-1", -1)],
)
def test_lengths_are_read_with_their_unit(text: str, tokens: int) -> None:
    assert parse_token_count(text) == tokens


@pytest.mark.parametrize("text", ["", "k", "4g", "four", "4 k k", "inf", "nan"])
def test_what_is_no_length_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"{text!r} is not a number of tokens; write 4096, 4k or 4K")):
        parse_token_count(text)
