"""Every backend of `write_kv` on every case, and that a donated cache is written in place."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import kv_storage_dtype, write_kv
from pallas_kernels.check import pool_moves, pool_sized_moves
from pallas_kernels.native import calling
from pallas_kernels.storage import QUANTISED, join_heads, split_heads, to_float32
from pallas_kernels.testing import WRITE_CASES, WriteCase
from pallas_kernels.write_kv import OP
from pallas_kernels.write_kv.tpu import in_words
from tests.pallas_kernels.simulation import checked_tpu
from tests.quick import QUICK

ON_THE_SIMULATED_TPU = {
    "one-token",
    "padding",
    "runs-and-padding",
    "head-size-64",
    "bfloat16-bfloat16",
    "float32-float8_e4m3fn",
    "int8-runs",
}
"""The TPU cases that every run computes, some seconds each to trace and compile: one of each kind. The others are slow."""


def cases() -> Iterator[Any]:
    for case, backend in itertools.product(WRITE_CASES, OP.backends):
        slow = backend == "tpu" and case.name not in ON_THE_SIMULATED_TPU
        yield pytest.param(case, backend, id=f"{case}-{backend}", marks=pytest.mark.slow if slow else ())


@pytest.mark.parametrize(("case", "backend"), list(cases()))
def test_tokens_lie_where_they_belong_and_nothing_else_changes(case: WriteCase, backend: str, native: str) -> None:
    with checked_tpu() if backend == "tpu" else nullcontext(), calling(native):
        check(case, backend, platform="tpu" if backend == "tpu" else "cpu")


@pytest.mark.parametrize("backend", ["reference", "xla"])
@pytest.mark.parametrize("name", ["scattered", "head-size-64", "head-size-80"])
def test_every_backend_writes_the_pages_of_a_tpu(name: str, backend: str) -> None:
    (case,) = (case for case in WRITE_CASES if case.name == name)
    check(case, backend, platform="tpu")


def check(case: WriteCase, backend: str, *, platform: str) -> None:
    kv_pages, k, v, slots = case.inputs(platform)
    kv_dtype = jnp.dtype(case.kv_dtype)
    reason = OP.supports(backend, kv_pages, k, v, slots, kv_dtype=kv_dtype)
    if reason is not None:
        pytest.skip(f"{backend}: {reason}")
    write = functools.partial(write_kv, backend=backend, **case.options)

    def heads(pages: jax.Array) -> np.ndarray[Any, Any]:
        """Keys and values `[2, pages, T, K, H]`."""
        return np.array(_heads(pages, kv_dtype=case.kv_dtype, kv_heads=case.kv_heads, head_size=case.head_size))

    expected = heads(kv_pages)
    result = jax.jit(write, compiler_options=QUICK)(kv_pages, k, v, slots)
    assert result.dtype == kv_pages.dtype
    result = heads(result)
    by_type = case.options["kv_scales"]
    for which, written in enumerate((np.asarray(k), np.asarray(v))):
        scales = None if by_type is None else np.asarray(by_type)[which]
        stored = None if scales is not None else written.astype(kv_dtype).astype(np.float32)
        written = written.astype(np.float64)
        for token, slot in enumerate(case.slots):
            page, offset = divmod(slot, case.page_tokens)
            found = result[which, page, offset]
            if stored is not None:
                expected[which, page, offset] = stored[token]
            elif page:
                assert_nearest(found, written[token] / scales[:, None], kv_dtype)
                expected[which, page, offset] = found
    np.testing.assert_array_equal(result[:, 1:], expected[:, 1:])  # page 0 is the sink


@functools.partial(jax.jit, static_argnames=("kv_dtype", "kv_heads", "head_size"))
def _heads(pages: jax.Array, *, kv_dtype: str, kv_heads: int, head_size: int) -> tuple[jax.Array, jax.Array]:
    stored = to_float32(pages, kv_dtype=jnp.dtype(kv_dtype))
    return split_heads(stored, kv_heads=kv_heads, head_size=head_size)


def assert_nearest(found: np.ndarray[Any, Any], values: np.ndarray[Any, Any], kv_dtype: Any) -> None:
    """No number that the type holds is nearer; by 1%, as compilers round to float8 by way of float16."""
    numbers = np.arange(256, dtype=np.uint8).view(kv_dtype).astype(np.float64)
    numbers = numbers[np.isfinite(numbers)]
    nearest = np.abs(values[..., None] - numbers).min(axis=-1)
    np.testing.assert_array_less(np.abs(found - values), 1.01 * nearest + 1e-6)


@pytest.mark.parametrize(
    ("backend", "dtype", "num_tokens"),
    [("xla", dtype, 32) for dtype in ("bfloat16", "float16", "float32", "int8", "float8_e4m3fn", "float8_e5m2")]
    + [("xla", "float32", 1), ("xla", "bfloat16", 1), ("native", "float32", 32), ("native", "bfloat16", 32)],
)
def test_a_donated_cache_is_written_in_place_on_the_cpu(backend: str, dtype: str, num_tokens: int, native: str) -> None:
    pool = (2048, 16, 4, 64)
    storage = kv_storage_dtype(dtype, platform="cpu")
    tokens = jax.ShapeDtypeStruct((num_tokens, 2, 64), jnp.float32)
    scales = jnp.ones((2, 2)) if jnp.dtype(dtype) in QUANTISED else None
    write = functools.partial(write_kv, kv_scales=scales, kv_dtype=jnp.dtype(dtype), backend=backend)
    slots = jax.ShapeDtypeStruct((num_tokens,), jnp.int32)
    with calling(native):
        lowered = jax.jit(write, donate_argnums=0).lower(jax.ShapeDtypeStruct(pool, storage), tokens, tokens, slots)
    compiled = lowered.compile()
    assert pool_moves(compiled, pool, itemsize=storage.itemsize) == []


@pytest.mark.skipif(jax.__version_info__ >= (0, 11), reason="jax 0.12 writes a bfloat16 cache in place")
@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn"])
def test_why_a_cache_of_small_floats_is_held_as_bits_on_the_cpu(dtype: str) -> None:
    """Once no supported jax converts a whole bfloat16 cache for one write, caches need not be bits."""
    pool = (2048, 16, 4, 64)
    tokens = jax.ShapeDtypeStruct((32, 2, 64), jnp.bfloat16)
    arguments = (jax.ShapeDtypeStruct(pool, jnp.dtype(dtype)), tokens, tokens, jax.ShapeDtypeStruct((32,), jnp.int32))
    scales = jnp.ones((2, 2)) if jnp.dtype(dtype) in QUANTISED else None
    write = functools.partial(write_kv, kv_scales=scales, backend="xla")
    compiled = jax.jit(write, donate_argnums=0).lower(*arguments).compile()
    assert pool_sized_moves(compiled.as_text(), pool)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_many_tokens_have_the_bits_of_the_definition(dtype: str, native: str) -> None:
    """So many that threads share their heads, some without a place."""
    tokens, pool = 300, (40, 16, 6, 64)
    k, v = (jnp.asarray(np.random.default_rng(0).normal(size=(2, tokens, 3, 64))[at], jnp.float32) for at in range(2))
    slots = np.random.default_rng(1).permutation(pool[0] * pool[1])[:tokens].astype(np.int32)
    slots[::50] = pool[0] * pool[1]
    pages = jnp.zeros(pool, kv_storage_dtype(dtype, platform="cpu"))
    write = functools.partial(write_kv, kv_dtype=jnp.dtype(dtype))
    with calling(native):
        found, expected = (
            jax.jit(functools.partial(write, backend=backend))(pages, k, v, slots) for backend in ("native", "xla")
        )
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": (4, 3, 16)}, r"axis K \(KV heads\) differs: 3 in k, 2 in v"),
        ({"v": (3, 2, 16)}, r"axis N \(tokens\) differs: 4 in k, 3 in v"),
        ({"k": (4, 2, 8), "v": (4, 2, 8)}, r"axis H \(head size\) differs: 8 in k"),
        ({"slots": (4, 1)}, r"slots must have axes \[N\]"),
    ],
)
def test_arguments_that_do_not_fit_name_the_axis(change: dict[str, tuple[int, ...]], message: str) -> None:
    inputs: dict[str, Any] = dict(zip(("kv_pages", "k", "v", "slots"), WRITE_CASES[1].inputs(), strict=True))
    inputs |= {name: jnp.zeros(shape, inputs[name].dtype) for name, shape in change.items()}
    with pytest.raises(ValueError, match=message):
        write_kv(**inputs)


@pytest.mark.parametrize("head_size", [128, 64])
@pytest.mark.parametrize("heads", [1, 3])
def test_words_hold_keys_and_values_as_neighbouring_channels(heads: int, head_size: int) -> None:
    """Heads that are smaller than a vector are padded."""
    values = np.random.default_rng(0).normal(size=(2, 5, heads, head_size))
    k, v = (jnp.asarray(values[at], jnp.bfloat16) for at in range(2))
    words = np.asarray(in_words(k, v, 128))
    joined = np.asarray(join_heads(k, v, channels=2 * heads, lanes=128)).view(np.uint16).astype(np.uint32)
    np.testing.assert_array_equal(words & 0xFFFF, joined[:, 0::2])
    np.testing.assert_array_equal(words >> 16, joined[:, 1::2])
