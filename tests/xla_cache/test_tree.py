"""Output trees survive JSON, and JSON cannot name a class of its own choice."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import jax
import pytest

from tests.xla_cache.small import Outputs
from xla_cache.errors import CacheError, CorruptError
from xla_cache.tree import decode_tree, encode_tree


class Pair(NamedTuple):
    a: Any
    b: Any


@pytest.mark.parametrize(
    "tree", [0, (), (0, [1, None]), {"b": 0, "a": (1,)}, Outputs(0, None), (Outputs({"x": 1}, [2]), 3), None]
)
def test_round_trip(tree):
    structure = jax.tree.structure(tree)
    encoded = json.loads(json.dumps(encode_tree(structure, (Outputs,)), sort_keys=True))
    assert decode_tree(encoded, (Outputs,)) == structure


@pytest.mark.parametrize("tree", [Pair(0, 1), {1: 0}])
def test_nodes_that_were_not_named_are_refused(tree):
    with pytest.raises(CacheError, match="cannot be kept"):
        encode_tree(jax.tree.structure(tree), (Outputs,))


@pytest.mark.parametrize(
    "encoded",
    [
        "root",
        7,
        ["leaf"],
        {"tuple": "leaf"},
        {"tuple": [], "list": []},
        {"set": []},
        {"dataclass": {"name": "Outputs", "fields": {"total": "leaf"}}},
        {"dataclass": {"name": "Other", "fields": {"total": "leaf", "extra": None}}},
        {"dataclass": {"name": "Outputs", "fields": {"total": "leaf", "extra": None}, "module": "os"}},
    ],
)
def test_anything_else_is_refused(encoded):
    with pytest.raises(CorruptError, match="not an output tree"):
        decode_tree(encoded, (Outputs,))
