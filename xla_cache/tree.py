"""Trees of program outputs as JSON of a closed schema."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax

from xla_cache.errors import CacheError, CorruptError

LEAF = "leaf"


def encode_tree(tree: Any, nodes: Sequence[type]) -> Any:
    """A `PyTreeDef` as JSON: None, `"leaf"`, or `{kind: children}`. `nodes` are the dataclasses that may occur.

    Raises:
        CacheError: a node of another kind.
    """
    return _encode(jax.tree_util.tree_unflatten(tree, [LEAF] * tree.num_leaves), nodes)


def decode_tree(encoded: Any, nodes: Sequence[type]) -> Any:
    """The `PyTreeDef` of `encode_tree`.

    Raises:
        CorruptError: not of that schema, or a dataclass that is not among `nodes`.
    """
    return jax.tree_util.tree_structure(_decode(encoded, nodes), is_leaf=lambda node: node is LEAF)


def _encode(node: Any, nodes: Sequence[type]) -> Any:
    if node is None or node is LEAF:
        return node
    if type(node) is tuple or type(node) is list:
        return {type(node).__name__: [_encode(child, nodes) for child in node]}
    if type(node) is dict and all(isinstance(name, str) for name in node):
        return {"dict": {name: _encode(child, nodes) for name, child in node.items()}}
    if type(node) in nodes:
        fields = {field.name: _encode(getattr(node, field.name), nodes) for field in dataclasses.fields(node)}
        return {"dataclass": {"name": type(node).__qualname__, "fields": fields}}
    raise CacheError(f"an output of type {type(node).__qualname__} cannot be kept; name it in Program.nodes")


def _decode(encoded: Any, nodes: Sequence[type]) -> Any:
    match encoded:
        case None:
            return None
        case "leaf":
            return LEAF
        case {"tuple": list(children), **rest} if not rest:
            return tuple(_decode(child, nodes) for child in children)
        case {"list": list(children), **rest} if not rest:
            return [_decode(child, nodes) for child in children]
        case {"dict": dict(children), **rest} if not rest:
            return {name: _decode(child, nodes) for name, child in children.items()}
        case {"dataclass": {"name": str(name), "fields": dict(children), **more}, **rest} if not rest and not more:
            for node in nodes:
                if node.__qualname__ == name and {f.name for f in dataclasses.fields(node)} == set(children):
                    return node(**{field: _decode(child, nodes) for field, child in children.items()})
    raise CorruptError(f"not an output tree of this program: {str(encoded)[:100]}")
