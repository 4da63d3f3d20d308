"""Writing keys and values on a TPU: every token, or run of tokens, is copied to its slot in HBM, and nothing else moves."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.typing import DTypeLike

from pallas_kernels.storage import HELD_AS_BITS, QUANTISED, join_heads, to_storage
from pallas_kernels.tpu.chip import NO_TPU, SIMULATED, target_chip, tiles_refused

KV_DTYPES = (jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.float32), *QUANTISED)
RUN = 16
"""Tokens that one copy moves when their slots follow each other, as those of a prompt do."""


def supports(kv_pages: Any, k: Any, v: Any, slots: Any, *, kv_dtype: DTypeLike) -> str | None:
    """None, or why not."""
    if jnp.dtype(kv_dtype) not in KV_DTYPES or jnp.dtype(kv_pages.dtype) in HELD_AS_BITS:
        allowed = ", ".join(map(str, KV_DTYPES))
        return f"kv_pages hold {jnp.dtype(kv_dtype)} as {kv_pages.dtype}; a TPU keeps {allowed} as they are"
    chip = target_chip()
    if chip is None:
        return NO_TPU
    refused = tiles_refused(kv_pages)
    if refused is not None:
        return refused
    most = chip.smem_bytes // 2 // 4
    if slots.shape[0] > most:
        return f"{slots.shape[0]} tokens in one step; the scalar memory holds the slots of {most}"
    return None


def write_kv(kv_pages: jax.Array, k: jax.Array, v: jax.Array, slots: jax.Array, *, kv_dtype: DTypeLike) -> jax.Array:
    """See the op's contract."""
    pages, page_tokens, channels, lanes = kv_pages.shape
    missing = -k.shape[0] % RUN
    slots = jnp.pad(slots, (0, missing))  # to the sink
    in_pairs = channels == 2 * k.shape[1] and k.shape[2] <= lanes  # of a key's channel and its value's
    if in_pairs and kv_pages.dtype == jnp.bfloat16 and not _simulated():
        tokens = in_words(k, v, lanes)
    else:
        joined = join_heads(k, v, channels=channels, lanes=lanes)
        tokens = to_storage(joined, storage=kv_pages.dtype, kv_dtype=kv_dtype)
    tokens = jnp.pad(tokens, ((0, missing), (0, 0), (0, 0)))
    anywhere = pl.BlockSpec(memory_space=pl.ANY)
    by_slot = pl.pallas_call(
        lambda *refs: _kernel(*refs, sink_slots=page_tokens),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(1,),
            in_specs=[anywhere, anywhere],
            out_specs=anywhere,
            scratch_shapes=[pltpu.SMEM((slots.shape[0] // RUN,), jnp.int32), pltpu.SemaphoreType.DMA],
        ),
        out_shape=jax.ShapeDtypeStruct((pages * page_tokens, channels, lanes), kv_pages.dtype),
        input_output_aliases={2: 0},
        name="write_kv",
    )(slots, tokens, kv_pages.reshape(pages * page_tokens, channels, lanes))
    return by_slot.reshape(kv_pages.shape)


def in_words(k: jax.Array, v: jax.Array, lanes: int) -> jax.Array:
    """Keys and values `[N, K, H]`, padded to `lanes`, as bfloat16 `[N, 2K, lanes]` in a TPU's words, `uint32 [N, K, lanes]`.

    A word of a tile holds two neighbouring channels of a token. Made like this, no value changes its place on the way.
    """
    count, heads, size = k.shape
    # One head's words are made without an axis of heads, with which XLA may lay each token in a tile of its own.
    parts = (x.reshape(count, size) if heads == 1 else x for x in (k, v))
    key, value = (lax.bitcast_convert_type(x.astype(jnp.bfloat16), jnp.uint16).astype(jnp.uint32) for x in parts)
    words = key | value << 16
    return jnp.pad(words, (*[(0, 0)] * (words.ndim - 1), (0, lanes - size))).reshape(count, heads, lanes)


def _simulated() -> bool:
    """TPU interpret mode knows no reinterpreted references."""
    chip = target_chip()
    return chip is not None and chip.name == SIMULATED


def _kernel(slots: Any, tokens: Any, _: Any, pool: Any, together: Any, written: Any, *, sink_slots: int) -> None:
    """Start all copies, then wait for all. Nothing is written to the sink: tokens that share a slot would race.

    `together` notes which runs lie in slots that follow each other. Found out beside the kernel it took three kernels a layer.
    """
    by_slot = pool if tokens.dtype == pool.dtype else pool.bitcast(tokens.dtype)

    def copy(token: jax.Array, count: int) -> Any:
        return pltpu.make_async_copy(tokens.at[pl.ds(token, count)], by_slot.at[pl.ds(slots[token], count)], written)

    def note(index: jax.Array, _: None) -> None:
        first = slots[index * RUN]
        follows = first >= sink_slots
        for offset in range(1, RUN):
            follows &= slots[index * RUN + offset] == first + offset
        together[index] = follows.astype(jnp.int32)

    lax.fori_loop(0, together.shape[0], note, None)

    def each_copy(act: Any) -> None:
        def run(index: jax.Array, _: None) -> None:
            first = index * RUN

            @pl.when(together[index] > 0)
            def at_once() -> None:
                act(copy(first, RUN))

            @pl.when(together[index] == 0)
            def one_by_one() -> None:
                def one(offset: jax.Array, _: None) -> None:
                    pl.when(slots[first + offset] >= sink_slots)(lambda: act(copy(first + offset, 1)))

                lax.fori_loop(0, RUN, one, None)

        lax.fori_loop(0, together.shape[0], run, None)

    each_copy(lambda started: started.start())
    each_copy(lambda started: started.wait())
