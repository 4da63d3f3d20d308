"""Every backend of `copy_pages` on every case, and that a donated cache is changed in place."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import copy_pages
from pallas_kernels.check import pool_moves
from pallas_kernels.copy_pages import OP
from pallas_kernels.testing import COPY_CASES, CopyCase
from tests.quick import QUICK


@pytest.mark.parametrize("backend", OP.backends)
@pytest.mark.parametrize("case", COPY_CASES, ids=str)
def test_pages_are_copied_as_they_were(case: CopyCase, backend: str) -> None:
    inputs = case.inputs()
    reason = OP.supports(backend, *inputs)
    if reason is not None:
        pytest.skip(f"{backend}: {reason}")
    before = np.asarray(inputs[0])
    expected = before.copy()
    for source, destination in zip(case.sources, case.destinations, strict=True):
        expected[destination] = before[source]
    result = jax.jit(functools.partial(copy_pages, backend=backend), compiler_options=QUICK)(*inputs)
    assert result.dtype == inputs[0].dtype
    np.testing.assert_array_equal(np.asarray(result), expected)


@pytest.mark.parametrize("dtype", ["uint16", "float32"])
def test_a_donated_cache_is_changed_in_place_on_the_cpu(dtype: str) -> None:
    pool = (2048, 16, 4, 64)
    pairs = jax.ShapeDtypeStruct((16,), jnp.int32)
    compiled = (
        jax.jit(functools.partial(copy_pages, backend="xla"), donate_argnums=0)
        .lower(jax.ShapeDtypeStruct(pool, jnp.dtype(dtype)), pairs, pairs)
        .compile()
    )
    assert pool_moves(compiled, pool, itemsize=jnp.dtype(dtype).itemsize) == []


def test_arguments_that_do_not_fit_name_the_axis() -> None:
    kv_pages, sources, destinations = COPY_CASES[1].inputs()
    with pytest.raises(ValueError, match=r"axis M \(copies\) differs: 2 in sources, 3 in destinations"):
        copy_pages(kv_pages, sources[:2], destinations)
    with pytest.raises(ValueError, match="sources must be int32, got float32"):
        copy_pages(kv_pages, sources.astype(jnp.float32), destinations)
