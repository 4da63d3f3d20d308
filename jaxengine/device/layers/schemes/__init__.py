"""How matrices are kept and multiplied: one file for each way, and one row of `by_path.SCHEMES`.

A scheme is asked three things: which parameters stand for a matrix of the plain checkpoint, how to multiply with them, and how
the rules that make the plain matrix become rules that make those parameters; and the same of matrices that are many, one for each
group of rows. Norms and routers are no `Matrix` and stay as they are. So do tables, the embedding's and the head's, unless
an option says otherwise or a checkpoint has its head so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from jaxengine.device.weights.rules import Rule

if TYPE_CHECKING:
    import jax
    from flax import nnx
    from jax.typing import DTypeLike

    from jaxengine.device.layers.context import ModelContext

WEIGHT, TABLE = "weight", "table"
"""The names under which every matrix of a layer, and every table, has its numbers: the last part of a rule's target."""
EMBEDDING, HEAD = f"embed.{TABLE}", f"head.{TABLE}"
"""The vocabulary's tables. Where they are tied there is only the first."""


@dataclass(frozen=True)
class KeptMatrix:
    """One matrix `[out, in]` as a scheme keeps it: the arrays that stand for it, by the scheme's names for them."""

    arrays: Mapping[str, jax.Array]
    axes: tuple[str, str]
    """The logical names of (out, in)."""
    context: ModelContext


class Scheme(Protocol):
    """One way to keep a matrix `[out, in]`. A value."""

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
        self, x: jax.Array, matrix: KeptMatrix, *, dtype: DTypeLike, used: jax.Array | None = None
    ) -> jax.Array:
        """`x [N, ..., in]` times the matrix -> `[N, ..., out]` of `dtype`.

        With `used` what the rows of `x [N, in]` behind so many get means nothing.
        """
        ...

    def multiply_parts(self, x: jax.Array, matrix: KeptMatrix, *, dtype: DTypeLike) -> jax.Array | None:
        """What each device, of those that have some of the inputs each, has to add to `multiply`, `[devices, N, out]`.

        None: its devices do not add up.
        """
        ...

    def multiply_each(
        self, x: jax.Array, matrices: Sequence[KeptMatrix], *, dtype: DTypeLike, used: jax.Array | None = None
    ) -> tuple[jax.Array, ...] | None:
        """What `multiply` gives with each of several matrices of one context, to the last bit, on one device.

        None: they cannot be multiplied together.
        """
        ...

    def rows(self, numbers: jax.Array, parameters: Mapping[str, jax.Array]) -> jax.Array:
        """Rows `numbers [N]` of what stands for one matrix `[out, in]`, `[N, in]`; in place of one that is not there, any."""
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


def is_numbers(path: str) -> bool:
    """Whether a parameter is the numbers of a matrix or table."""
    return path.rpartition(".")[2] in (WEIGHT, TABLE)


def is_weight(path: str) -> bool:
    """Whether a parameter is the numbers of a layer's matrix."""
    return path.rpartition(".")[2] == WEIGHT


def part_of(target: str, name: str) -> str:
    """The path of what a scheme calls `name` of the matrix whose numbers are the parameter `target`."""
    return target if name == WEIGHT else f"{target.rpartition('.')[0]}.{name}"
