"""The table of schemes, and what a scheme does to a weight table."""

from __future__ import annotations

import pytest

from jaxengine.device.layers.schemes.by_path import SCHEMES, Schemes
from jaxengine.device.weights.rules import Ignore, Rule, transpose
from jaxengine.errors import ConfigError

RULES = (
    Rule("embed.table", "wte"),
    Rule("layers.*.norm.scale", "h.*.ln"),
    Rule("layers.*.up.weight", "h.*.up", transpose, absent_if="tied"),
    Rule("layers.*.up.bias", "h.*.up_bias"),
    Ignore("h.*.mask", "known"),
)


def test_every_row_is_found_by_its_name():
    assert [Schemes.by_option(name).name for name in (None, *SCHEMES)] == [None, *SCHEMES]


def test_a_scheme_is_a_value():
    """It is part of what programs are equal by."""
    for name in (None, *SCHEMES):
        assert Schemes.by_option(name) == Schemes.by_option(name)
        assert hash(Schemes.by_option(name)) == hash(Schemes.by_option(name))
    assert len({Schemes.by_option(name) for name in (None, *SCHEMES)}) == 1 + len(SCHEMES)


def test_an_unknown_name_lists_what_there_is():
    with pytest.raises(
        ConfigError, match=r"quantization must be one of int8, int4, int4_g32, fp8, or left out, got 'int9'.*int8"
    ):
        Schemes.by_option("int9")


def test_dense_leaves_the_table_alone():
    assert Schemes().table(RULES) == RULES


def test_only_matrices_are_made_otherwise():
    table = Schemes.by_option("int8").table(RULES)
    assert [row.target for row in table if isinstance(row, Rule)] == [
        "embed.table",
        "layers.*.norm.scale",
        "layers.*.up.weight",
        "layers.*.up.scale",
        "layers.*.up.bias",
    ]
    assert [row for row in table if row in RULES] == [RULES[0], RULES[1], RULES[3], RULES[4]]
    for row in table[2:4]:
        assert isinstance(row, Rule)
        assert (row.source, row.absent_if) == ("h.*.up", "tied")
