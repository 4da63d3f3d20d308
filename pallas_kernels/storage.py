"""How the values of a KV cache lie in memory: in what type, and in pages of what shape.

The CPU compiler of jax 0.10 writes into a 16-bit float array by converting the whole of it to float32 and back: 80 ms for a
cache of 67 MB, whatever the number of tokens written (jax 0.12 no longer does). The same bits held as uint16 are written in place
in well under a millisecond. So on the CPU a 16-bit cache is an array of bits, and which float they are is said by `kv_dtype`.

A TPU holds an array in tiles of 8 x 128 (the last two axes), and its compiler transposes arrays that do not fill them: a
pool of head size 64 would be copied into the kernel's order and back in every step. So a page there is shaped in whole tiles.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from pallas_kernels.checks import check_equal, check_rank

BITS = jnp.dtype(jnp.uint16)
SIXTEEN_BIT_FLOATS = (jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.float16))
LANES, SUBLANES = 128, 8
KV_DTYPES = (*SIXTEEN_BIT_FLOATS, jnp.dtype(jnp.float32))


def kv_storage_dtype(dtype: DTypeLike, *, platform: str) -> Any:
    """The dtype in which to allocate a cache of `dtype` values on `platform`: uint16 bits for a 16-bit float on the CPU."""
    dtype = jnp.dtype(dtype)
    return BITS if platform == "cpu" and dtype in SIXTEEN_BIT_FLOATS else dtype


def kv_page_shape(
    page_tokens: int, kv_heads: int, head_size: int, *, platform: str, shards: int = 1
) -> tuple[int, int, int]:
    """The shape `(T, C, L)` of one page on `platform`: C channels of L lanes hold a token's K heads of keys and values.

    It is `(T, 2K, H)`, but for a TPU, where a token's values `k0 v0 k1 v1 ...` are cut into vectors of 128: a head of 64 puts
    its key and its value into one, one of 256 takes two for each. Other head sizes are padded to whole vectors, and the
    vectors of a token to 2, 4 or a multiple of 8. `shards` devices split them evenly.
    """
    if platform != "tpu":
        return page_tokens, 2 * kv_heads, head_size
    own_heads = kv_heads // shards
    shared = 2 * head_size == LANES and own_heads % 2 == 0
    channels = own_heads if shared else 2 * own_heads * -(-head_size // LANES)
    channels = channels if channels in (2, 4) else -(-channels // SUBLANES) * SUBLANES
    return page_tokens, shards * channels, LANES


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
    """The float type of the values in `kv_pages`.

    Pages of a float type say it themselves. Pages of bits hold `kv_dtype`; without it, float16 when `operand` (the queries,
    or the keys to write) is float16, and bfloat16 otherwise.

    Raises:
        ValueError: `kv_dtype` contradicts the pages, or is not a float type.
    """
    stored = jnp.dtype(kv_pages.dtype)
    if stored != BITS:
        if kv_dtype is not None and jnp.dtype(kv_dtype) != stored:
            raise ValueError(
                f"kv_dtype is {jnp.dtype(kv_dtype)}, but kv_pages hold {stored}; only uint16 pages need kv_dtype"
            )
        return stored
    if kv_dtype is None:
        return jnp.dtype(jnp.float16 if jnp.dtype(operand.dtype) == jnp.float16 else jnp.bfloat16)
    if jnp.dtype(kv_dtype) not in SIXTEEN_BIT_FLOATS:
        raise ValueError(f"kv_dtype is {jnp.dtype(kv_dtype)}, but uint16 kv_pages hold bfloat16 or float16 bits")
    return jnp.dtype(kv_dtype)


def to_storage(values: jax.Array, *, storage: DTypeLike, kv_dtype: DTypeLike) -> jax.Array:
    """Round `values` to `kv_dtype` and return them as they are stored."""
    rounded = values.astype(kv_dtype)
    return jax.lax.bitcast_convert_type(rounded, BITS) if jnp.dtype(storage) == BITS else rounded


def to_float32(stored: jax.Array, *, kv_dtype: DTypeLike) -> jax.Array:
    """The stored values as float32, exactly."""
    if jnp.dtype(stored.dtype) != BITS:
        return stored.astype(jnp.float32)
    if jnp.dtype(kv_dtype) == jnp.bfloat16:
        # A bfloat16 is the upper half of a float32: a shift, which vectorises better than a conversion.
        return jax.lax.bitcast_convert_type(stored.astype(jnp.uint32) << jnp.uint32(16), jnp.float32)
    return jax.lax.bitcast_convert_type(stored, jnp.float16).astype(jnp.float32)
