"""The gated delta rule over rows of new tokens: the contract and its backends."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pallas_kernels.checks import check_equal, check_rank
from pallas_kernels.dispatch import AUTO, Op
from pallas_kernels.recurrent_rows.rows import Rows, check_rows

OP = Op(
    "gated_delta",
    backends={name: f"{__name__}.{name}" for name in ("cpu", "reference", "tpu", "gpu", "xla")},
    preferred={"cpu": ("cpu",), "tpu": ("tpu",), "gpu": ("gpu",)},
    portable="xla",
)


def gated_delta(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    decays: jax.Array,
    rates: jax.Array,
    states: jax.Array,
    slots: jax.Array,
    starts: jax.Array,
    offsets: jax.Array,
    *,
    precision: jax.lax.Precision = jax.lax.Precision.DEFAULT,
    backend: str = AUTO,
    platform: str | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Let every row's state learn its tokens' values by their keys, and ask it with their queries.

    Of a head, with a state `[H, V]`, at each token: `state = exp(decay) * state`, then `state += rate * k (v - k^T state)^T`,
    and `out = q^T state` (Yang, Kautz and Hatamizadeh 2024). A decay is of a head, or of each of its channels `H`, which are
    the rows of its state (Kimi Team 2025).

    Args:
        q: queries `[N, K, H]` of floating point, scaled as they shall be; `heads / K` neighbours share them.
        k: keys `[N, K, H]`, of length 1 at most: longer ones make a state grow without bounds.
        v: values `[N, heads, V]`.
        decays: float32 `[N, heads]` or `[N, heads, H]`, logarithms, not above 0.
        rates: float32 `[N, heads]`, from 0 to 1.
        states: float32 `[P, heads, H, V]`, of all sequences; written in place where a program donates them.
        slots: int32 `[B]`, which of them is each row's. Those of rows that have tokens differ.
        starts: int32 `[B]`, as in `paged_attention`: where it is 0 a row begins with zeros, whatever its slot holds.
        offsets: int32 `[B + 1]`, as in `paged_attention`.
        precision: of products of chunks, but for the values that are learnt, which are made in float32, or on a TPU with 16 bits
            at least. The decays and the sums of a step of one token are float32 too.
        backend: `auto`, or a name from the table; a named backend runs or raises.
        platform: of the compile target, for `auto`.

    Returns:
        float32 `[N, heads, V]`, zeros in the places of padding, whatever they hold; and the states, in the slots of rows that
        have tokens those behind their last. A row's numbers do not depend on its neighbours; how its sequence was cut into
        rows changes the order of sums and so the last bits.

    Raises:
        ValueError: arguments that do not fit together, naming the axis, or an unknown backend.
    """
    check_rank(q=(q, "N K H"), k=(k, "N K H"), v=(v, "N heads V"))
    by_channel = decays.ndim == 3
    check_rank(decays=(decays, "N heads H" if by_channel else "N heads"))
    check_rank(rates=(rates, "N heads"), states=(states, "P heads H V"))
    sizes = {"q": q, "k": k, "v": v, "decays": decays, "rates": rates}
    check_equal("N (places)", **{name: array.shape[0] for name, array in sizes.items()})
    check_equal("K (heads of keys)", q=q.shape[1], k=k.shape[1])
    check_equal("H (head size)", q=q.shape[2], k=k.shape[2], states=states.shape[2])
    if by_channel:
        check_equal("H (head size)", k=k.shape[2], decays=decays.shape[2])
    check_equal("heads", v=v.shape[1], decays=decays.shape[1], rates=rates.shape[1], states=states.shape[1])
    check_equal("V (size of values)", v=v.shape[2], states=states.shape[3])
    rows = Rows(slots, starts, offsets)
    check_rows(rows)
    if v.shape[1] % k.shape[1]:
        raise ValueError(f"{v.shape[1]} heads cannot share {k.shape[1]} heads of keys (axis K) evenly")
    if states.dtype != jnp.float32:
        raise ValueError(f"states must be float32, got {states.dtype}")
    result: tuple[jax.Array, jax.Array] = OP.run(
        backend, platform, q, k, v, decays, rates, states, rows, precision=precision
    )
    return result
