"""How the values of a KV cache lie in memory: in what type, and in pages of what shape.

The CPU compiler of jax 0.10 writes into a 16-bit float array by converting the whole of it to float32 and back, however few
tokens are written (jax 0.12 no longer does), and into an 8-bit one likewise. The same bits held as an unsigned integer are
written in place (`benchmarks/attention.py`). So on the CPU a cache of 16- or 8-bit floats is an array of bits, and which float
they are is said by `kv_dtype`.

A TPU holds an array in tiles of 8 x 128 (the last two axes), and its compiler transposes arrays that do not fill them: a
pool of head size 64 would be copied into the kernel's order and back in every step. So a page there is shaped in whole tiles.

A quantised cache holds 8-bit values and has `kv_scales`, float32 `[2, K]`: head `k`'s keys are what is stored times
`kv_scales[0, k]`, its values what is stored times `kv_scales[1, k]`. One of latent vectors has `scales`, float32 `[D]`: each of a
vector's numbers is what is stored times its own.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from pallas_kernels.checks import check_equal, check_rank

HALF, FLOAT8 = jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.float8_e4m3fn)
HELD_AS_BITS = {
    jnp.dtype(jnp.uint16): (HALF, jnp.dtype(jnp.float16)),
    jnp.dtype(jnp.uint8): (FLOAT8, jnp.dtype(jnp.float8_e5m2)),
}
"""The floats that bits of a type may be; the first is meant where nothing says otherwise."""
QUANTISED = (jnp.dtype(jnp.int8), *HELD_AS_BITS[jnp.dtype(jnp.uint8)])
"""The types of values that have scales. bfloat16 holds each of their values exactly."""
KV_DTYPES = (*HELD_AS_BITS[jnp.dtype(jnp.uint16)], jnp.dtype(jnp.float32), *QUANTISED)
LANES, SUBLANES = 128, 8
PACKED_TILE = 4 * SUBLANES
"""Rows of a TPU's tile of 8-bit values, four of which share a word."""


def kv_storage_dtype(dtype: DTypeLike, *, platform: str) -> Any:
    """The dtype in which to allocate a cache of `dtype` values on `platform`: bits for a 16- or 8-bit float on the CPU."""
    dtype = jnp.dtype(dtype)
    bits = (bits for bits, floats in HELD_AS_BITS.items() if dtype in floats)
    return next(bits, dtype) if platform == "cpu" else dtype


def kv_page_shape(
    page_tokens: int,
    kv_heads: int,
    head_size: int,
    *,
    platform: str,
    shards: int = 1,
    dtype: DTypeLike = jnp.bfloat16,
) -> tuple[int, int, int]:
    """The shape `(T, C, L)` of one page on `platform`: C channels of L lanes hold a token's K heads of keys and values.

    It is `(T, 2K, H)`, but for a TPU, where a token's values `k0 v0 k1 v1 ...` are cut into vectors of 128: a head of 64 puts
    its key and its value into one, one of 256 takes two for each. Other head sizes are padded to whole vectors, and the
    vectors of a token to 2 (not in a cache of 8-bit `dtype`, four of whose values share a word), 4 or a multiple of 8. `shards`
    devices split them evenly.
    """
    if platform != "tpu":
        return page_tokens, 2 * kv_heads, head_size
    own_heads = kv_heads // shards
    shared = 2 * head_size == LANES and own_heads % 2 == 0
    channels = own_heads if shared else 2 * own_heads * -(-head_size // LANES)
    fitting = (few for few in few_channels(dtype) if few >= channels)
    channels = next(fitting, -(-channels // SUBLANES) * SUBLANES)
    return page_tokens, shards * channels, LANES


def latent_page_shape(page_tokens: int, size: int, *, platform: str) -> tuple[int, int, int]:
    """The shape `(1, T, L)` of one page of latent vectors of `size` numbers: on a TPU they are padded to whole vectors of 128."""
    return 1, page_tokens, -(-size // LANES) * LANES if platform == "tpu" else size


def few_channels(dtype: DTypeLike) -> tuple[int, ...]:
    """How many channels below 8 make a tile of a TPU without padding."""
    return (2, 4) if jnp.dtype(dtype).itemsize > 1 else (4,)


def stored_head_size(channels: int, lanes: int, *, kv_heads: int, head_size: int) -> int:
    """Values that a head's key takes in such a page, with its padding; 0 if the page has no room for `kv_heads`."""
    if (channels, lanes) == (2 * kv_heads, head_size):
        return head_size
    if lanes != LANES:
        return 0
    padded = -(-head_size // LANES) * LANES
    if channels * lanes >= 2 * kv_heads * padded:
        return padded
    return head_size if 2 * head_size == LANES and channels >= kv_heads else 0


def check_pages_hold(kv_pages: Any, *, kv_heads: int, head_size: int, operand: str) -> None:
    """The pages must have a shape of `kv_page_shape` for the heads of `operand`.

    Raises:
        ValueError: they have not; the message names the axis.
    """
    check_rank(kv_pages=(kv_pages, "pages T C L"))
    channels, lanes = kv_pages.shape[2:]
    if stored_head_size(channels, lanes, kv_heads=kv_heads, head_size=head_size):
        return
    if channels != 2 * kv_heads:
        raise ValueError(
            f"axis C of kv_pages is {channels}: {kv_heads} KV heads take {2 * kv_heads} channels, keys and values interleaved"
        )
    check_equal("H (head size)", **{operand: head_size, "kv_pages": lanes})


def split_heads(stored: jax.Array, *, kv_heads: int, head_size: int) -> tuple[jax.Array, jax.Array]:
    """Keys and values `[..., K, H]` of tokens as they are stored, `[..., C, L]`."""
    *before, channels, lanes = stored.shape
    size = stored_head_size(channels, lanes, kv_heads=kv_heads, head_size=head_size)
    used = stored[..., : 2 * kv_heads * size // lanes, :]
    both = used.reshape(*before, kv_heads, 2, size)[..., :head_size]
    return both[..., 0, :], both[..., 1, :]


def join_heads(k: jax.Array, v: jax.Array, *, channels: int, lanes: int) -> jax.Array:
    """Keys and values `[..., K, H]` as they are stored, `[..., C, L]`; padding is zeros."""
    *before, kv_heads, head_size = k.shape
    size = stored_head_size(channels, lanes, kv_heads=kv_heads, head_size=head_size)
    both = jnp.stack([k, v], axis=-2)  # k0 v0 k1 v1 ...: a token is one contiguous piece
    unpadded = ((0, 0),) * len(before)
    both = jnp.pad(both, (*unpadded, (0, 0), (0, 0), (0, size - head_size)))
    used = both.reshape(*before, 2 * kv_heads * size // lanes, lanes)
    return jnp.pad(used, (*unpadded, (0, channels - used.shape[-2]), (0, 0)))


def resolve_kv_dtype(kv_pages: Any, operand: Any, kv_dtype: DTypeLike | None) -> Any:
    """The type of the values in `kv_pages`.

    Pages of a signed or float type say it themselves. Pages of bits hold `kv_dtype`; without it, uint8 pages hold float8_e4m3fn,
    uint16 pages float16 when `operand` (the queries, or the keys to write) is float16, and bfloat16 otherwise.

    Raises:
        ValueError: `kv_dtype` contradicts the pages.
    """
    stored = jnp.dtype(kv_pages.dtype)
    floats = HELD_AS_BITS.get(stored)
    if floats is None:
        if kv_dtype is not None and jnp.dtype(kv_dtype) != stored:
            raise ValueError(
                f"kv_dtype is {jnp.dtype(kv_dtype)}, but kv_pages hold {stored}; only uint16 and uint8 pages need kv_dtype"
            )
        return stored
    if kv_dtype is None:
        operand_dtype = jnp.dtype(operand.dtype)
        return operand_dtype if operand_dtype in floats else floats[0]
    if jnp.dtype(kv_dtype) not in floats:
        raise ValueError(
            f"kv_dtype is {jnp.dtype(kv_dtype)}, but {stored} kv_pages hold {floats[0]} or {floats[1]} bits"
        )
    return jnp.dtype(kv_dtype)


def check_scales(kv_scales: Any, *, kv_dtype: DTypeLike, kv_heads: int) -> None:
    """A quantised cache has scales `[2, K]`, and no other has.

    Raises:
        ValueError: it is not so.
    """
    if jnp.dtype(kv_dtype) not in QUANTISED:
        if kv_scales is not None:
            raise ValueError(
                f"kv_pages hold {jnp.dtype(kv_dtype)}; kv_scales belong to {', '.join(map(str, QUANTISED))}"
            )
        return
    if kv_scales is None:
        raise ValueError(
            f"kv_pages hold {jnp.dtype(kv_dtype)} and need kv_scales [2, K]: of keys and of values, per KV head"
        )
    if jnp.dtype(kv_scales.dtype) != jnp.float32:
        raise ValueError(f"kv_scales must be float32, got {kv_scales.dtype}")
    check_rank(kv_scales=(kv_scales, "2 K"))
    check_equal("2 (keys, values)", kv_scales=kv_scales.shape[0], contract=2)
    check_equal("K (KV heads)", kv_scales=kv_scales.shape[1], kv_pages=kv_heads)


def check_latent_scales(scales: Any, *, kv_dtype: DTypeLike, size: int) -> None:
    """A quantised cache of latent vectors has scales `[D]`, and no other has.

    Raises:
        ValueError: it is not so.
    """
    if jnp.dtype(kv_dtype) not in QUANTISED:
        if scales is not None:
            raise ValueError(f"pages hold {jnp.dtype(kv_dtype)}; scales belong to {', '.join(map(str, QUANTISED))}")
        return
    if scales is None:
        raise ValueError(f"pages hold {jnp.dtype(kv_dtype)} and need scales [D], of each of a vector's numbers")
    if jnp.dtype(scales.dtype) != jnp.float32:
        raise ValueError(f"scales must be float32, got {scales.dtype}")
    check_rank(scales=(scales, "D"))
    check_equal("D (numbers of a vector)", scales=scales.shape[0], vectors=size)


def quantise(values: jax.Array, scales: jax.Array, kv_dtype: DTypeLike) -> jax.Array:
    """Values over their `scales`, rounded to the nearest of `kv_dtype`; what is beyond it saturates."""
    scaled = values.astype(jnp.float32) / scales
    if jnp.dtype(kv_dtype) == jnp.int8:
        return jnp.clip(jnp.round(scaled), -128, 127).astype(jnp.int8)
    largest = float(jnp.finfo(kv_dtype).max)
    return jnp.clip(scaled, -largest, largest).astype(kv_dtype)


def to_storage(values: jax.Array, *, storage: DTypeLike, kv_dtype: DTypeLike) -> jax.Array:
    """Round `values` to `kv_dtype` and return them as they are stored."""
    rounded = values.astype(kv_dtype)
    return jax.lax.bitcast_convert_type(rounded, storage) if jnp.dtype(storage) in HELD_AS_BITS else rounded


def to_float32(stored: jax.Array, *, kv_dtype: DTypeLike) -> jax.Array:
    """The stored values as float32, exactly; those of a quantised cache before scaling."""
    if jnp.dtype(stored.dtype) not in HELD_AS_BITS:
        return stored.astype(jnp.float32)
    if jnp.dtype(kv_dtype) == jnp.bfloat16:
        # A bfloat16 is the upper half of a float32: a shift, which vectorises better than a conversion.
        return jax.lax.bitcast_convert_type(stored.astype(jnp.uint32) << jnp.uint32(16), jnp.float32)
    if jnp.dtype(kv_dtype) == jnp.float16:
        return jax.lax.bitcast_convert_type(stored, jnp.float16).astype(jnp.float32)
    bits = stored.astype(jnp.uint16)
    if jnp.dtype(kv_dtype) == jnp.float8_e5m2:  # the upper half of a float16
        return jax.lax.bitcast_convert_type(bits << jnp.uint16(8), jnp.float16).astype(jnp.float32)
    # float8_e4m3fn moved to where a float16 has its sign, exponent and mantissa is 2^-8 times too small; it has no infinity.
    magnitude = bits & jnp.uint16(0x7F)
    half = (bits & jnp.uint16(0x80)) << jnp.uint16(8) | magnitude << jnp.uint16(7)
    values = jax.lax.bitcast_convert_type(half, jnp.float16).astype(jnp.float32) * 256.0
    return jnp.where(magnitude == 0x7F, jnp.nan, values)
