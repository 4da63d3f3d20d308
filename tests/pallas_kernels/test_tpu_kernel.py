"""The pieces of the TPU kernel that TPU interpret mode cannot run: taking channels out of tokens, and putting them back."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl

from pallas_kernels.paged_attention.tpu_kernel import Settings, _heads
from pallas_kernels.storage import join_heads, kv_page_shape, stored_head_size
from pallas_kernels.tpu.channels import put_channels
from pallas_kernels.tpu.unpack import unpacked
from tests.quick import QUICK, slow_but

RARER_SIZES = ((4, 128), (2, 64), (6, 64), (2, 256), (1, 384))


@pytest.mark.parametrize("simulated", [False, True])
@pytest.mark.parametrize(
    "dtype", slow_but(["bfloat16", "float32", "int8", "float8_e4m3fn", "float8_e5m2"], {"bfloat16", "int8"})
)
@pytest.mark.parametrize(
    ("kv_heads", "head_size"),
    [(1, 128), (3, 64), (2, 80), *(pytest.param(*size, marks=pytest.mark.slow) for size in RARER_SIZES)],
)
def test_heads_are_taken_out_of_a_block(kv_heads: int, head_size: int, dtype: str, simulated: bool) -> None:
    page_tokens, pages = 4, 3
    page = kv_page_shape(page_tokens, kv_heads, head_size, platform="tpu", dtype=dtype)
    tokens = pages * page_tokens
    rng = np.random.default_rng(0)
    spread = 40 if dtype == "int8" else 1
    k, v = (jnp.asarray(spread * rng.normal(size=(tokens, kv_heads, head_size)), dtype) for _ in range(2))
    block = join_heads(k, v, channels=page[1], lanes=page[2]).reshape(pages, *page)
    width = -(-head_size // 128) * 128
    side_by_side = stored_head_size(*page[1:], kv_heads=kv_heads, head_size=head_size) == 64
    settings = Settings(
        cuts=(),
        kv_heads=kv_heads,
        group=1,
        pages_per_row=pages,
        width=width,
        side_by_side=side_by_side,
        scale=1.0,
        window=None,
        soft_cap=None,
        has_sinks=False,
        has_slopes=False,
        has_until=False,
        has_scales=False,
        continued=False,
        spare_columns=False,
        together=1,
        simulated=simulated,
    )

    def kernel(held: Any, keys: Any, values: Any) -> None:
        for head, own_keys, own_values in _heads(held, settings):
            keys[head], values[head] = own_keys, own_values

    result = jax.ShapeDtypeStruct((kv_heads, tokens, width), jnp.float32 if dtype == "float32" else jnp.bfloat16)
    call = pl.pallas_call(kernel, out_shape=(result, result), interpret=True)
    keys, values = jax.jit(call, compiler_options=QUICK)(block)
    values_at = head_size if side_by_side else 0
    for found, expected in ((keys, k), (values[..., values_at:], v)):
        np.testing.assert_array_equal(
            np.asarray(found, np.float32)[..., :head_size], np.asarray(expected.swapaxes(0, 1), np.float32)
        )


class Reinterpreted:
    """Tokens in a TPU's words, for the interpreter, which can read reinterpreted references but not write them."""

    def __init__(self, words: Any, shape: tuple[int, ...], dtype: Any) -> None:
        self.words, self.shape, self.dtype = words, shape, jnp.dtype(dtype)

    def reshape(self, rows: int, lanes: int) -> Any:
        assert rows * lanes == np.prod(self.shape)
        return self if self.dtype.itemsize < 4 else self.words

    def bitcast(self, dtype: Any) -> Any:
        assert dtype == self.words.dtype
        return self.words


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(("channels", "used"), [(2, 1), (4, 3), (8, 8), (16, 13)])
def test_channels_are_put_where_they_belong(channels: int, used: int, dtype: str) -> None:
    """Rounded as `astype` rounds; what is in the channels beyond means nothing."""
    tokens, packed = 8, 4 // jnp.dtype(dtype).itemsize
    given = jnp.asarray(np.random.default_rng(0).normal(size=(used, tokens, 128)), jnp.float32)

    def kernel(given: Any, words: Any) -> None:
        words[...] = jnp.zeros(words.shape, words.dtype)
        held = Reinterpreted(words, (tokens, channels, 128), dtype)
        put_channels(held, (given[channel] for channel in range(used)), simulated=False)

    words_type = jnp.float32 if packed == 1 else jnp.uint32
    result = jax.ShapeDtypeStruct((tokens * channels // packed, 128), words_type)
    words = np.asarray(pl.pallas_call(kernel, out_shape=result, interpret=True)(given))
    found = words.view(jnp.dtype(dtype)).reshape(tokens, channels // packed, 128, packed).swapaxes(2, 3)
    found = found.reshape(tokens, channels, 128)[:, :used].swapaxes(0, 1)
    np.testing.assert_array_equal(found, np.asarray(given.astype(dtype)))


@pytest.mark.parametrize("dtype", ["int8", "float8_e4m3fn", "float8_e5m2"])
def test_every_8_bit_value_is_unpacked_exactly(dtype: str) -> None:
    """Subnormals too, whatever its neighbours in the word are."""
    first = np.arange(256, dtype=np.uint8).repeat(4).reshape(8, 128)
    held = np.stack([first ^ np.uint8(other) for other in (0, 0x55, 0x80, 0xFF)])
    words = sum(values.astype(np.uint32) << np.uint32(8 * at) for at, values in enumerate(held))

    def kernel(words: Any, *found: Any) -> None:
        for at, values in enumerate(found):
            values[...] = unpacked(words[...], at, jnp.dtype(dtype))

    result = jax.ShapeDtypeStruct(first.shape, jnp.bfloat16)
    found = np.asarray(jnp.stack(pl.pallas_call(kernel, out_shape=(result,) * 4, interpret=True)(words)), np.float32)
    expected = held.view(jnp.dtype(dtype)).astype(np.float32)
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(found[finite], expected[finite])
