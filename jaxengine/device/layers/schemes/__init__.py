"""How matrices are kept and multiplied: one file and one row of the table for each way.

A scheme is asked three things: which parameters stand for a matrix of the plain checkpoint, how to multiply with them, and how
the rules that make the plain matrix become rules that make those parameters; and the same of matrices that are many, one for each
group of rows. Norms and routers are no `Matrix` and stay as they are. So do tables, the embedding's and the head's, unless
`WithHead` says otherwise or a checkpoint has its head so.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from jaxengine.device.weights.rules import Ignore, Rule
from jaxengine.errors import ConfigError, nearest

if TYPE_CHECKING:
    import jax
    from flax import nnx
    from jax.typing import DTypeLike

    from jaxengine.device.layers.context import ModelContext

SCHEMES: Mapping[str, str] = {
    "int8": "jaxengine.device.layers.schemes.int8:INT8",
    "int4": "jaxengine.device.layers.schemes.scaled:INT4",
    "fp8": "jaxengine.device.layers.schemes.scaled:FP8",
}
"""By the name that the `quantization` option gives them. Without the option matrices are `dense.Dense`, or, of a checkpoint that
is quantised, `stored.AsStored`."""

WEIGHT, TABLE = "weight", "table"
"""The names under which every matrix of a layer, and every table, has its numbers: the last part of a rule's target."""
EMBEDDING, HEAD = f"embed.{TABLE}", f"head.{TABLE}"
"""The vocabulary's tables. Where they are tied there is only the first."""


class Schemes(Protocol):
    """Which scheme keeps which matrix. A value: equal ones make equal programs."""

    @property
    def name(self) -> str | None:
        """As in `SCHEMES`, or what a checkpoint calls it; None for matrices as the checkpoint has them."""
        ...

    def of(self, path: str) -> Scheme:
        """What keeps the matrix whose numbers are the parameter `path`."""
        ...

    def stored(self, path: str) -> bool:
        """Whether a checkpoint has it in that form; else it is made of the plain one."""
        ...


class Scheme(Schemes, Protocol):
    """One for all matrices of layers. A matrix is `[out, in]`."""

    @property
    def dtype(self) -> str:
        """Of its numbers: int8, int4, float8_e4m3fn; `model` for that of the model."""
        ...

    def parameters(
        self, shape: tuple[int, int], axes: tuple[str, str], context: ModelContext
    ) -> Mapping[str, nnx.Param[jax.Array]]:
        """What stands for a matrix of `shape` with these logical axes; `weight` is one of the names."""
        ...

    def multiply(
        self,
        x: jax.Array,
        parameters: Mapping[str, jax.Array],
        axes: tuple[str, str],
        context: ModelContext,
        *,
        dtype: DTypeLike,
    ) -> jax.Array:
        """`x [N, ..., in]` times one matrix `[out, in]` with these logical axes -> `[N, ..., out]` of `dtype`."""
        ...

    def factor(self, parameters: Mapping[str, jax.Array]) -> tuple[jax.Array, jax.Array | None] | None:
        """The weight and the scales that `multiply` gives to `pallas_kernels.matmul`; None: it does otherwise."""
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

    def stored_rules(self, rule: Rule) -> tuple[Rule, ...]:
        """The same of a checkpoint that stores matrices so, as `weights.unpacked` presents them."""
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
    path = "jaxengine.device.layers.schemes.dense:DENSE" if name is None else SCHEMES[name]
    module, _, constant = path.partition(":")
    scheme: Scheme = getattr(importlib.import_module(module), constant)
    return scheme


def scheme_rules(
    rules: Iterable[Rule | Ignore], schemes: Schemes, targets: Iterable[str] = (), *, stored: bool = True
) -> tuple[Rule | Ignore, ...]:
    """The weight table of a model whose matrices are kept by `schemes`, from the family's own.

    `targets` are the model's parameters, which tell layers apart that are kept in several ways. `stored`: the checkpoint has
    matrices as `schemes` says that it has, and they are not all made of plain ones.
    """
    numbers = [path for path in targets if is_numbers(path)]
    table: list[Rule | Ignore] = []
    for rule in rules:
        if not isinstance(rule, Rule) or not is_numbers(rule.target):
            table.append(rule)
            continue
        for scheme, of_some in _by_scheme(rule, schemes, numbers):
            table += (
                scheme.stored_rules(of_some) if stored and schemes.stored(of_some.target) else scheme.rules(of_some)
            )
    return tuple(table)


def is_numbers(path: str) -> bool:
    """Whether a parameter is the numbers of a matrix or table."""
    return path.rpartition(".")[2] in (WEIGHT, TABLE)


def is_weight(path: str) -> bool:
    """Whether a parameter is the numbers of a layer's matrix."""
    return path.rpartition(".")[2] == WEIGHT


def part_of(target: str, name: str) -> str:
    """The path of what a scheme calls `name` of the matrix whose numbers are the parameter `target`."""
    return target if name == WEIGHT else f"{target.rpartition('.')[0]}.{name}"


def _by_scheme(rule: Rule, schemes: Schemes, targets: Iterable[str]) -> list[tuple[Scheme, Rule]]:
    """The rule by schemes: itself where all layers have one, else a rule for each layer."""
    pattern = re.compile(re.escape(rule.target).replace(r"\*", "([0-9]+)"))
    found = {match.groups(): schemes.of(path) for path in targets if (match := pattern.fullmatch(path))}
    different = list(dict.fromkeys(found.values()))
    if not found:
        return [(schemes.of(rule.target), rule)]
    if len(different) == 1:
        return [(different[0], rule)]
    return [
        (scheme, replace(rule, target=_filled(rule.target, numbers), source=_filled(rule.source, numbers)))
        for numbers, scheme in found.items()
    ]


def _filled(pattern: str, numbers: tuple[str, ...]) -> str:
    remaining = iter(numbers)
    return re.sub(r"\*", lambda _: next(remaining), pattern)
