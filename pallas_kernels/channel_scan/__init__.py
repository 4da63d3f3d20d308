"""The state space of Mamba 1 over rows of new tokens, each channel of which has a state of its own: contract and backends."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pallas_kernels.checks import check_equal, check_rank
from pallas_kernels.dispatch import AUTO, Op
from pallas_kernels.recurrent_rows.rows import Rows, check_rows

OP = Op(
    "channel_scan",
    backends={name: f"{__name__}.{name}" for name in ("cpu", "reference", "tpu", "xla")},
    preferred={"cpu": ("cpu",), "tpu": ("tpu",)},
    portable="xla",
)


def channel_scan(
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
    backend: str = AUTO,
    platform: str | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Let every row's state go on over its tokens, and read it after each.

    Of a channel, with a state `[S]`, at each token: `state = exp(step * rates) * state + step * x * inward`, and `y = state .
    outward` (Gu and Dao 2023, section 3; `A`, `B` and `C` there are rates, inward and outward). Unlike in `selective_scan` every
    number of a state forgets at a rate of its own, so that a chunk of tokens is no product of matrices.

    Args:
        x: `[N, T L]` of floating point, the channels.
        steps: float32 `[N, T L]`, not below 0.
        rates: float32 `[T, S, L]`, not above 0.
        inward: `[N, S]`, of all channels.
        outward: as `inward`.
        states: float32 `[P, T, S, L]`, of all sequences. Written in place where a program donates them.
        slots: int32 `[B]`, which of them is each row's. Those of rows that have tokens differ, and no other row has theirs.
        starts: int32 `[B]`, as in `paged_attention`: where it is 0 a row begins with zeros, whatever its slot holds.
        offsets: int32 `[B + 1]`, as in `paged_attention`.
        backend: `auto`, or a name from the table; a named backend runs or raises.
        platform: of the compile target, for `auto`.

    Returns:
        float32 `[N, T L]`, zeros in the places of padding, whatever they hold; and the states, in the slots of rows that have
        tokens those behind their last. A row's numbers do not depend on its neighbours; how its sequence was cut into rows
        changes nothing on a CPU, elsewhere the order of sums and so the last bits.

    Raises:
        ValueError: arguments that do not fit together, naming the axis, or an unknown backend.
    """
    check_rank(x=(x, "N channels"), steps=(steps, "N channels"), rates=(rates, "T S L"))
    check_rank(inward=(inward, "N S"), outward=(outward, "N S"), states=(states, "P T S L"))
    check_equal("N (places)", x=x.shape[0], steps=steps.shape[0], inward=inward.shape[0], outward=outward.shape[0])
    tiles, size, lanes = rates.shape
    check_equal("channels", x=x.shape[1], steps=steps.shape[1], rates=tiles * lanes)
    check_equal("S (state)", inward=inward.shape[1], outward=outward.shape[1], rates=size)
    if states.shape[1:] != rates.shape:
        raise ValueError(f"states must be [P, T, S, L] of rates {list(rates.shape)}, got {list(states.shape)}")
    if states.dtype != jnp.float32:
        raise ValueError(f"states must be float32, got {states.dtype}")
    rows = Rows(slots, starts, offsets)
    check_rows(rows)
    result: tuple[jax.Array, jax.Array] = OP.run(backend, platform, x, steps, rates, inward, outward, states, rows)
    return result
