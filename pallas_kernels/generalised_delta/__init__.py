"""The generalised delta rule (RWKV-7) over rows of new tokens: the contract and its backends."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from pallas_kernels.checks import check_equal, check_rank
from pallas_kernels.dispatch import AUTO, Op
from pallas_kernels.recurrent_rows.rows import Rows, check_rows

OP = Op(
    "generalised_delta",
    backends={name: f"{__name__}.{name}" for name in ("cpu", "reference", "tpu", "xla")},
    preferred={"cpu": ("cpu",), "tpu": ("tpu",)},
    portable="xla",
)


def generalised_delta(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    decays: jax.Array,
    removed: jax.Array,
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
    """Let every row's state forget, replace what it has for a key, take values up by another, and be asked.

    Of a head, with a state `[H, V]`, at each token: `state = exp(decay) * state - (rate * removed) (removed^T state) + k v^T`,
    and `out = q^T state` (Peng et al. 2025, where states are transposed). In `gated_delta` one key does both, at one rate of all
    channels, and is looked up in a state that has forgotten already.

    Args:
        q: queries `[N, heads, H]` of floating point.
        k: keys of the values, as `q`.
        v: values `[N, heads, V]`.
        decays: float32 `[N, heads, H]`, logarithms, from -1 to 0: what is left between two tokens of a chunk is made of a factor
            for each of them, and the bound keeps these within float32.
        removed: keys of what goes, as `q`, of length 1 at most.
        rates: `[N, heads, H]`, from 0 to 1: how much of it goes, in each channel.
        states: float32 `[P, T, H, L]`, of all sequences, in tiles: `L / V` neighbouring heads lie side by side. Written in place
            where a program donates them.
        slots: int32 `[B]`, which of them is each row's. Those of rows that have tokens differ.
        starts: int32 `[B]`, as in `paged_attention`: where it is 0 a row begins with zeros, whatever its slot holds.
        offsets: int32 `[B + 1]`, as in `paged_attention`.
        precision: of products of chunks, but for those that say what goes, which are made in float32.
        backend: `auto`, or a name from the table; a named backend runs or raises.
        platform: of the compile target, for `auto`.

    Returns:
        float32 `[N, heads, V]`, zeros in the places of padding, whatever they hold; and the states, in the slots of rows that
        have tokens those behind their last. A row's numbers do not depend on its neighbours; how its sequence was cut into rows
        changes nothing on a CPU, elsewhere the order of sums and so the last bits.

    Raises:
        ValueError: arguments that do not fit together, naming the axis, or an unknown backend.
    """
    keyed = {"q": q, "k": k, "decays": decays, "removed": removed, "rates": rates}
    check_rank(**{name: (array, "N heads H") for name, array in keyed.items()})
    check_rank(v=(v, "N heads V"), states=(states, "P T H L"))
    check_equal("N (places)", **{name: array.shape[0] for name, array in keyed.items()}, v=v.shape[0])
    check_equal("heads", **{name: array.shape[1] for name, array in keyed.items()}, v=v.shape[1])
    check_equal("H (head size)", **{name: array.shape[2] for name, array in keyed.items()}, states=states.shape[2])
    check_equal("heads times V", v=v.shape[1] * v.shape[2], states=states.shape[1] * states.shape[3])
    if states.shape[3] % v.shape[2]:
        raise ValueError(f"tiles of {states.shape[3]} lanes (axis L) must hold whole heads of V={v.shape[2]} values")
    if states.dtype != jnp.float32:
        raise ValueError(f"states must be float32, got {states.dtype}")
    rows = Rows(slots, starts, offsets)
    check_rows(rows)
    result: tuple[jax.Array, jax.Array] = OP.run(
        backend, platform, q, k, v, decays, removed, rates, states, rows, precision=precision
    )
    return result
