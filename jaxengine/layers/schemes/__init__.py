"""How matrices are kept and multiplied: one file and one row of the table for each way.

A scheme is asked three things: which parameters stand for a matrix of the plain checkpoint, how to multiply with them, and how
the rules that make the plain matrix become rules that make those parameters; and the same of matrices that are many, one for each
group of rows. Embedding tables, the head and norms are no `Matrix`
and stay as they are.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

from jaxengine.errors import ConfigError, nearest
from jaxengine.weights.rules import Ignore, Rule

if TYPE_CHECKING:
    import jax
    from flax import nnx

    from jaxengine.layers.context import ModelContext

SCHEMES: Mapping[str, str] = {
    "int8": "jaxengine.layers.schemes.int8:Int8",
}
"""By the name that the `quantization` option gives them. Without the option matrices are `dense.Dense`."""

WEIGHT = "weight"
"""The name under which every matrix, and nothing else, has its numbers: the last part of a rule's target."""


class Scheme(Protocol):
    """A value: equal schemes make equal programs. A matrix is `[out, in]`."""

    @property
    def name(self) -> str | None:
        """As in `SCHEMES`; None for matrices as the checkpoint has them."""
        ...

    def parameters(
        self, shape: tuple[int, int], axes: tuple[str, str], context: ModelContext
    ) -> Mapping[str, nnx.Param[jax.Array]]:
        """What stands for a matrix of `shape` with these logical axes; `weight` is one of the names."""
        ...

    def multiply(self, x: jax.Array, parameters: Mapping[str, jax.Array], context: ModelContext) -> jax.Array:
        """`x [N, ..., in]` times one matrix `[out, in]` -> float32 `[N, ..., out]`."""
        ...

    def group_parameters(
        self, shape: tuple[int, int, int], axes: tuple[str, str, str], context: ModelContext
    ) -> Mapping[str, nnx.Param[jax.Array]]:
        """What stands for matrices `[count, in, out]`, the transposes of the checkpoint's."""
        ...

    def multiply_groups(
        self,
        x: jax.Array,
        parameters: Mapping[str, jax.Array],
        sizes: jax.Array,
        context: ModelContext,
        *,
        rows: jax.Array | None,
        across: tuple[str, ...],
    ) -> jax.Array:
        """Sorted rows of `x [N, in]`, `sizes[g]` of them times the matrix of each group -> `[M, out]` in the activation dtype.

        `rows [M]` says which they are; None: all, as they are. `across` are the mesh axes over which `in` is cut.
        """
        ...

    def rules(self, rule: Rule) -> tuple[Rule, ...]:
        """What makes the parameters, from the rule that would make the plain matrix; a stacked one makes those of a group."""
        ...


def find_scheme(name: str | None) -> Scheme:
    """The scheme that the `quantization` option names.

    Raises:
        ConfigError: there is none of that name; the message lists what there is.
    """
    if name is not None and name not in SCHEMES:
        raise ConfigError(
            f"quantization must be one of {', '.join(SCHEMES)}, or left out, got {name!r}.{nearest(name, SCHEMES)}"
        )
    path = "jaxengine.layers.schemes.dense:Dense" if name is None else SCHEMES[name]
    module, _, class_name = path.partition(":")
    scheme: Scheme = getattr(importlib.import_module(module), class_name)()
    return scheme


def scheme_rules(rules: Iterable[Rule | Ignore], scheme: Scheme) -> tuple[Rule | Ignore, ...]:
    """The weight table of a model whose matrices are kept by `scheme`, from the family's own."""
    table: list[Rule | Ignore] = []
    for rule in rules:
        if isinstance(rule, Rule) and rule.target.rpartition(".")[2] == WEIGHT:
            table += scheme.rules(rule)
        else:
            table.append(rule)
    return tuple(table)
