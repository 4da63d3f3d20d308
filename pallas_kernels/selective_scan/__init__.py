"""The state space of Mamba 2 over rows of new tokens: the contract and its backends."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pallas_kernels.checks import check_equal, check_rank
from pallas_kernels.dispatch import AUTO, Op
from pallas_kernels.recurrent_rows.rows import Rows, check_rows

OP = Op(
    "selective_scan",
    backends={name: f"{__name__}.{name}" for name in ("cpu", "reference", "tpu", "gpu", "xla")},
    preferred={"cpu": ("cpu",), "tpu": ("tpu",), "gpu": ("gpu",)},
    portable="xla",
)


def selective_scan(
    x: jax.Array,
    steps: jax.Array,
    rates: jax.Array,
    inward: jax.Array,
    outward: jax.Array,
    states: jax.Array,
    slots: jax.Array,
    starts: jax.Array,
    offsets: jax.Array,
    *,
    precision: jax.lax.Precision = jax.lax.Precision.DEFAULT,
    backend: str = AUTO,
    platform: str | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Let every row's state go on over its tokens, and read it after each.

    Of a head, with a state `[S, H]`, at each token: `state = exp(step * rate) * state + step * inward x^T`, and
    `y = state^T outward` (Dao and Gu 2024, section 3.4; `A`, `B` and `C` there are rates, inward and outward).

    Args:
        x: `[N, heads, H]` of floating point.
        steps: float32 `[N, heads]`, not below 0.
        rates: float32 `[heads]`, not above 0.
        inward: `[N, G, S]`; the heads of a group, `heads / G` neighbours, share it.
        outward: as `inward`.
        states: float32 `[P, T, S, L]`, of all sequences, the channels of neighbouring heads of a group side by side: `T` is a
            multiple of `G`, `L` of `H`. Written in place where a program donates them.
        slots: int32 `[B]`, which of them is each row's. Those of rows that have tokens differ.
        starts: int32 `[B]`, as in `paged_attention`: where it is 0 a row begins with zeros, whatever its slot holds.
        offsets: int32 `[B + 1]`, as in `paged_attention`.
        precision: of products of chunks. The decays and the sums of a step of one token are always float32.
        backend: `auto`, or a name from the table; a named backend runs or raises.
        platform: of the compile target, for `auto`.

    Returns:
        float32 `[N, heads, H]`, zeros in the places of padding, whatever they hold; and the states, in the slots of rows that
        have tokens those behind their last. A row's numbers do not depend on its neighbours; how its sequence was cut into
        rows changes the order of sums and so the last bits.

    Raises:
        ValueError: arguments that do not fit together, naming the axis, or an unknown backend.
    """
    check_rank(x=(x, "N heads H"), steps=(steps, "N heads"), rates=(rates, "heads"))
    check_rank(inward=(inward, "N G S"), outward=(outward, "N G S"), states=(states, "P T S L"))
    check_equal("N (places)", x=x.shape[0], steps=steps.shape[0], inward=inward.shape[0], outward=outward.shape[0])
    check_equal("heads", x=x.shape[1], steps=steps.shape[1], rates=rates.shape[0])
    check_equal("G (groups)", inward=inward.shape[1], outward=outward.shape[1])
    check_equal("S (state)", inward=inward.shape[2], outward=outward.shape[2], states=states.shape[2])
    if x.shape[1] % inward.shape[1]:
        raise ValueError(f"{x.shape[1]} heads cannot share {inward.shape[1]} groups (axis G) evenly")
    tiles, lanes = states.shape[1], states.shape[3]
    if tiles * lanes != x.shape[1] * x.shape[2] or tiles % inward.shape[1] or lanes % x.shape[2]:
        raise ValueError(
            f"states of {tiles} tiles (axis T) of {lanes} channels (axis L) do not hold {x.shape[1]} heads of {x.shape[2]} in "
            f"{inward.shape[1]} groups; T must be a multiple of the groups and L of a head"
        )
    rows = Rows(slots, starts, offsets)
    check_rows(rows)
    if states.dtype != jnp.float32:
        raise ValueError(f"states must be float32, got {states.dtype}")
    result: tuple[jax.Array, jax.Array] = OP.run(
        backend, platform, x, steps, rates, inward, outward, states, rows, precision=precision
    )
    return result
