"""Feed-forwards of groups of rows, weighted and added up by where the rows come from: the contract and its backends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from pallas_kernels.checks import check_equal, check_int32, check_rank
from pallas_kernels.dispatch import AUTO, SCOPE, Op

OP = Op(
    "grouped_mlp",
    backends={name: f"{__name__}.{name}" for name in ("reference", "tpu")},
    preferred={"tpu": ("tpu",)},
    portable="reference",
)


class Begun(NamedTuple):
    """Room for the matrices of `S` groups at a time, `[S, E, F]` twice and `[S, F, E]`, where those of the first ones arrive.

    `arrived [3 S]` are the semaphores of these copies; None: there is room only, as on a simulated TPU, which passes none on.
    In one axis: two between kernels end the compiler of libtpu 0.0.50.
    """

    gate: jax.Array
    up: jax.Array
    down: jax.Array
    arrived: jax.Array | None


def grouped_mlp(
    sums: jax.Array,
    x: jax.Array,
    matrices: tuple[jax.Array, jax.Array, jax.Array],
    sizes: jax.Array,
    rows: jax.Array,
    weights: jax.Array,
    *,
    activated: Callable[[jax.Array, jax.Array], jax.Array],
    usual: int,
    begun: Begun | None = None,
    backend: str = AUTO,
    platform: str | None = None,
) -> jax.Array:
    """`sums [N, E]`, and `weights[m]` times what its group's feed-forward gives for row `rows[m]` of `x` added to that row.

    Args:
        sums: `[N, E]`, of float32 or bfloat16.
        x: `[N, E]` of floating point.
        matrices: of each group, in the type of `x`: `[G, E, F]` of the gate, the same of what it lets through, and `[G, F, E]`.
        sizes: int32 `[G]`: the first `sizes[0]` of `rows` are of the first group, the next `sizes[1]` of the second, and so on.
        rows: int32 `[M]`, which row of `x` each is; in a group none twice. Those behind the last group mean nothing.
        weights: float32 `[M]`.
        activated: what the last matrix takes, number by number, of what the other two give. A value that can be compared.
        usual: rows that a group usually has.
        begun: what `begin` gave for these matrices.
        backend: `auto`, or a name from the table; a named backend runs or raises.
        platform: of the compile target, for `auto`.

    Returns:
        `[N, E]` in the type of `sums`, added up in float32. A row's terms are added in the order of groups.

    Raises:
        ValueError: arguments that do not fit together, naming the axis, or an unknown backend.
        KernelUnsupported: the named backend cannot do this case.
    """
    gate, up, down = matrices
    check_rank(sums=(sums, "N E"), x=(x, "N E"), gate=(gate, "G E F"), up=(up, "G E F"), down=(down, "G F E"))
    check_rank(sizes=(sizes, "G"), rows=(rows, "M"), weights=(weights, "M"))
    check_int32(sizes=sizes, rows=rows)
    check_equal("N (places)", sums=sums.shape[0], x=x.shape[0])
    check_equal("E (columns)", sums=sums.shape[1], x=x.shape[1], gate=gate.shape[1], up=up.shape[1], down=down.shape[2])
    check_equal("F (inner)", gate=gate.shape[2], up=up.shape[2], down=down.shape[1])
    check_equal("G (groups)", gate=len(gate), up=len(up), down=len(down), sizes=len(sizes))
    check_equal("M (rows)", rows=len(rows), weights=len(weights))
    options = {"activated": activated, "usual": usual, "begun": begun}
    result: jax.Array = OP.run(backend, platform, sums, x, matrices, sizes, rows, weights, **options)
    return result


def slots_ahead(places: int, matrices: Sequence[Any], *, usual: int, platform: str | None) -> int:
    """Groups whose matrices `begin` can have read before `places` rows of `x` are there; 0: no room for them, or another backend.

    `matrices` are arrays or `jax.ShapeDtypeStruct`s, in a case that the backend of `platform` supports.
    """
    if platform != "tpu":
        return 0
    from pallas_kernels.grouped_mlp import tpu

    return tpu.slots_ahead(places, matrices, usual=usual)


def begin(x: jax.Array, *matrices: jax.Array, slots: int) -> tuple[jax.Array, ...]:
    """Start to read the matrices of the first `slots` groups: `x` as it is, and the parts of `Begun`.

    What needs this `x` comes after the start, and need not wait for more.
    """
    from pallas_kernels.grouped_mlp import tpu

    with jax.named_scope(SCOPE + OP.name):
        return tpu.begin(x, *matrices, slots=slots)
