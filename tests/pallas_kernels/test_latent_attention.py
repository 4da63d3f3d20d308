"""Latent attention and writing what it reads: every backend against the definition, and where pages lie on a TPU."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import KernelUnsupported, latent_attention, latent_page_shape, write_latents
from pallas_kernels.check import pool_moves
from pallas_kernels.latent_attention import OP
from pallas_kernels.storage import to_float32
from pallas_kernels.testing import LATENT_CASES, LatentCase
from pallas_kernels.write_latents import OP as WRITE
from tests.device.tpu import devices
from tests.quick import QUICK, slow_but


def by_hand(case: LatentCase) -> np.ndarray[Any, Any]:
    """Token by token, head by head, in float64: only the positions that a token sees."""
    q, pages, table, offsets, starts = (np.asarray(array) for array in case.inputs())
    cached = np.asarray(to_float32(jnp.asarray(pages), kv_dtype=jnp.dtype(case.kv_dtype)), np.float64)[:, 0]
    if case.scales is not None:
        cached = cached * np.asarray(case.scales, np.float64)
    out = np.zeros((*q.shape[:2], case.value_size), np.float64)
    for row in range(len(case.rows)):
        for place in range(offsets[row], offsets[row + 1]):
            positions = np.arange(starts[row] + place - offsets[row] + 1)
            seen = cached[table[row, positions // case.page_tokens], positions % case.page_tokens]
            weights = np.exp(case.options["scale"] * q[place].astype(np.float64) @ seen.T)
            out[place] = weights / weights.sum(axis=1, keepdims=True) @ seen[:, : case.value_size]
    return out


@pytest.mark.parametrize("platform", ["cpu", "tpu"])
@pytest.mark.parametrize("backend", OP.backends)
@pytest.mark.parametrize("case", slow_but(LATENT_CASES, [*LATENT_CASES[1:3], LATENT_CASES[-3]]), ids=str)
def test_a_backend_agrees_with_the_definition(case: LatentCase, backend: str, platform: str) -> None:
    run = jax.jit(lambda *arrays: latent_attention(*arrays, backend=backend, **case.options), compiler_options=QUICK)
    inputs = case.inputs(platform)
    found = run(*inputs)
    assert found.shape == (*inputs.q.shape[:2], case.value_size)
    assert found.dtype == inputs.q.dtype
    np.testing.assert_allclose(np.asarray(found, np.float64), by_hand(case), rtol=0, atol=case.tolerance)


@pytest.mark.parametrize("platform", ["cpu", "tpu"])
@pytest.mark.parametrize("backend", WRITE.backends)
@pytest.mark.parametrize("slots", [(13,), (9, 40, 0, 0, 31)])
@pytest.mark.parametrize("case", [LATENT_CASES[0], LATENT_CASES[-5], LATENT_CASES[-3]], ids=str)
def test_vectors_lie_where_they_belong(case: LatentCase, slots: tuple[int, ...], backend: str, platform: str) -> None:
    rng = np.random.default_rng(0)
    shape = (6, *latent_page_shape(8, case.size, platform=platform))
    before = case.stored(rng.normal(size=shape))
    latents = jnp.asarray(rng.normal(size=(len(slots), case.size)), jnp.float32)
    options = {"scales": case.scales, "kv_dtype": case.kv_dtype, "backend": backend}
    after = write_latents(before, latents, jnp.asarray(slots, jnp.int32), **options)
    assert after.dtype == before.dtype
    expected = np.asarray(before)[1:].copy()
    for vector, slot in zip(np.asarray(latents), slots, strict=True):
        if slot >= 8:
            padded = np.pad(vector, (0, shape[-1] - case.size))
            expected[slot // 8 - 1, 0, slot % 8] = np.asarray(case.stored(padded))
    np.testing.assert_array_equal(np.asarray(after)[1:], expected)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"q": jnp.zeros((3, 4, 40))}, "axis L of pages is 24"),
        ({"pages": jnp.zeros((4, 2, 8, 24))}, "axis 1"),
        ({"value_size": 25}, "value_size is 25"),
        ({"backend": "tpu"}, "no backend 'tpu'"),
        ({"pages": jnp.zeros((4, 1, 8, 24), jnp.int8)}, r"pages hold int8 and need scales \[D\]"),
        ({"scales": jnp.ones(24)}, "pages hold float32; scales belong to int8"),
        ({"pages": jnp.zeros((4, 1, 8, 24), jnp.int8), "scales": jnp.ones(16)}, "axis D"),
    ],
)
def test_what_does_not_fit_is_named(changes: dict[str, Any], message: str) -> None:
    inputs = LATENT_CASES[0].inputs()._asdict() | {"scale": 1.0, "value_size": 16, "backend": "xla"} | changes
    with pytest.raises((ValueError, KernelUnsupported), match=message):
        latent_attention(**inputs)


@pytest.mark.tpu_compile
@pytest.mark.slow
@pytest.mark.parametrize(("rows", "places"), [(64, 64), (8, 1024)])
@pytest.mark.parametrize("generation", ["v6e", "v5e"])
def test_a_tpu_leaves_the_pool_where_it_is(generation: str, rows: int, places: int) -> None:
    """DeepSeek-V3's heads on one of sixteen chips."""
    [device] = devices(generation, count=1)
    here = jax.sharding.SingleDeviceSharding(device)
    pool = (4096, *latent_page_shape(64, 576, platform="tpu"))

    def layer(pages: Any, q: Any, latents: Any, slots: Any, table: Any, offsets: Any, starts: Any) -> Any:
        pages = write_latents(pages, latents, slots, platform="tpu")
        return pages, latent_attention(q, pages, table, offsets, starts, scale=0.1, value_size=512, platform="tpu")

    arguments = [
        jax.ShapeDtypeStruct(shape, dtype, sharding=here)
        for shape, dtype in (
            (pool, jnp.bfloat16),
            ((places, 8, 576), jnp.bfloat16),
            ((places, 576), jnp.bfloat16),
            ((places,), jnp.int32),
            ((rows, 128), jnp.int32),
            ((rows + 1,), jnp.int32),
            ((rows,), jnp.int32),
        )
    ]
    compiled = jax.jit(layer, donate_argnums=0).trace(*arguments).lower(lowering_platforms=("tpu",)).compile()
    assert pool_moves(compiled, pool, itemsize=2) == []
