"""Adding to products of a matrix those of low-rank adapters, of each row its own: the contract and its backends."""

from __future__ import annotations

from typing import NamedTuple

import jax

from pallas_kernels.checks import check_equal, check_int32, check_rank
from pallas_kernels.dispatch import AUTO, Op

OP = Op(
    "adapter_product",
    backends={name: f"{__name__}.{name}" for name in ("reference", "wide", "grouped", "cpu", "tpu")},
    preferred={"cpu": ("cpu", "grouped"), "gpu": ("wide", "grouped"), "tpu": ("tpu", "grouped")},
    portable="reference",
)


class AdapterRows(NamedTuple):
    """Which adapter each of `N` rows goes through: first of all in `order` are the rows of adapter 0, then those of the next, and
    so on; last are those without one.

    `order int32 [N]` are the rows' numbers, `places int32 [N]` where in `order` each row is, and `sizes int32 [S]` how many rows
    each adapter has.
    """

    order: jax.Array
    places: jax.Array
    sizes: jax.Array

    @property
    def adapted(self) -> jax.Array:
        """Which rows go through one, `bool [N]`."""
        return self.places < self.sizes.sum()

    @property
    def adapters(self) -> jax.Array:
        """The adapter of each row, int32 `[N]`; `S` of those without one."""
        return (self.places[:, None] >= self.sizes.cumsum()[None]).sum(axis=1, dtype=self.places.dtype)


def adapter_product(
    base: jax.Array,
    x: jax.Array,
    inward: jax.Array,
    outward: jax.Array,
    rows: AdapterRows,
    *,
    by_rank: bool,
    low: jax.Array | None = None,
    precision: jax.lax.Precision = jax.lax.Precision.DEFAULT,
    backend: str = AUTO,
    platform: str | None = None,
) -> jax.Array:
    """`base[n] + x[n] @ inward[s] @ outward[s]` for each row `n` with an adapter `s`, and `base[n]` for the others.

    Both products are summed in float32; `x`, and what lies between them, are rounded to the adapters' type. How the first
    matrices lie says what multiplies them: `by_rank` all of an input's at once beside each other, whoever needs them (`wide`),
    which costs every row all adapters and is best while these are few and small; otherwise each row's alone (`grouped`).

    Args:
        base: `[N, O]` of floating point.
        x: `[N, I]` of floating point.
        inward: `[S, R, I]` if `by_rank`, else `[S, I, R]`, of floating point. Numbers that are not finite may reach any row.
        outward: `[S, R, O]` of the same type.
        rows: whose rows they are.
        by_rank: how `inward` lies.
        low: `[N, S * R]`, what `x` times `inward` beside each other is, where that is known: only `by_rank`.
        precision: of the products.
        backend: `auto`, or a name from the table; a named backend runs or raises.
        platform: of the compile target, for `auto`.

    Returns:
        `[N, O]` of the type of `base`. A row without an adapter is that of `base` to the last bit; on a CPU a row's numbers are
        the same whatever rows and adapters there are beside it.

    Raises:
        ValueError: arguments that do not fit together, naming the axis, or an unknown backend.
        KernelUnsupported: the named backend cannot do this case.
    """
    check_rank(base=(base, "N O"), x=(x, "N I"), inward=(inward, "S R I" if by_rank else "S I R"))
    check_rank(outward=(outward, "S R O"), order=(rows.order, "N"), places=(rows.places, "N"), sizes=(rows.sizes, "S"))
    check_int32(order=rows.order, places=rows.places, sizes=rows.sizes)
    of_rank, of_inputs = (1, 2) if by_rank else (2, 1)
    check_equal("I (inputs)", x=x.shape[1], inward=inward.shape[of_inputs])
    check_equal("R (rank)", inward=inward.shape[of_rank], outward=outward.shape[1])
    check_equal("O (outputs)", base=base.shape[1], outward=outward.shape[2])
    check_equal("S (adapters)", inward=inward.shape[0], outward=outward.shape[0], sizes=rows.sizes.shape[0])
    check_equal("N (rows)", base=len(base), x=len(x), order=len(rows.order), places=len(rows.places))
    if low is not None:
        if not by_rank:
            raise ValueError("low is of first matrices that lie beside each other, by rank")
        check_rank(low=(low, "N L"))
        check_equal("L (ranks of all adapters)", low=low.shape[1], inward=inward.shape[0] * inward.shape[1])
    options = {"by_rank": by_rank, "low": low, "precision": precision, "platform": platform}
    result: jax.Array = OP.run(backend, platform, base, x, inward, outward, rows, **options)
    return result
