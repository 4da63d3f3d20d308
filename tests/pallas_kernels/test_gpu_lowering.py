"""The GPU kernels lower to Triton's language without a GPU and without CUDA; whether they compile, test_gpu_compile.py says."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, AxisType

from pallas_kernels import KernelUnsupported, grouped_matmul, paged_attention

pytestmark = pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated")  # since jax 0.11

TRITON = "__gpu$xla.gpu.triton"
AUTO = (AxisType.Auto,)


def lowered(
    kind: str = "NVIDIA A100-SXM4-80GB",
    *,
    places: int = 3,
    rows: int = 3,
    heads: tuple[int, int, int] = (8, 2, 64),
    kv_dtype: Any = jnp.bfloat16,
    backend: str = "gpu",
    **options: Any,
) -> str:
    query_heads, kv_heads, size = heads
    device = AbstractDevice(device_kind=kind, num_cores=None, platform="gpu")
    with jax.sharding.use_abstract_mesh(AbstractMesh((1,), ("tensor",), axis_types=AUTO, abstract_device=device)):
        traced = jax.jit(
            lambda *arrays: paged_attention(*arrays, scale=1.0, backend=backend, platform="gpu", **options)
        ).trace(
            jax.ShapeDtypeStruct((places, query_heads, size), jnp.bfloat16),
            jax.ShapeDtypeStruct((64, 16, 2 * kv_heads, size), kv_dtype),
            jax.ShapeDtypeStruct((rows, 32), jnp.int32),
            jax.ShapeDtypeStruct((rows + 1,), jnp.int32),
            jax.ShapeDtypeStruct((rows,), jnp.int32),
        )
        return traced.lower(lowering_platforms=("cuda",)).as_text()


@pytest.mark.parametrize(
    ("places", "options", "kernels"),
    [
        (3, {}, 2),
        (384, {}, 3),
        (9, {"heads": (14, 2, 80), "window": 5, "soft_cap": 3.0, "sinks": jnp.ones(14)}, 2),
        (9, {"kv_dtype": jnp.float32, "backend": "auto"}, 3),
        (99, {"kv_dtype": jnp.float8_e4m3fn, "kv_scales": jnp.ones((2, 2)), "alibi_slopes": jnp.ones(8)}, 3),
        (8, {"rows": 70_000}, 2),  # more than the second axis of a grid has
    ],
    ids=["decode", "mixed", "options", "auto", "quantised", "rows"],
)
def test_it_lowers(places: int, options: dict[str, Any], kernels: int) -> None:
    """To a kernel for short rows and one that combines its states; only where a long row can be to one for those."""
    assert lowered(places=places, **options).count(TRITON) == kernels


@pytest.mark.parametrize(
    ("places", "states"),
    [
        (3, 18),  # 512 positions: two shares of each row
        (16, 96),
        (384, 96),  # rows of up to 16 tokens have states
    ],
)
def test_the_memory_of_states_does_not_grow_with_long_rows(places: int, states: int) -> None:
    assert f"tensor<{states}x8x64xf32>" in lowered(places=places)


def test_a_gpu_before_ampere_is_refused_and_auto_takes_another() -> None:
    with pytest.raises(
        KernelUnsupported, match=r"a Tesla T4 has compute capability None; this needs an NVIDIA GPU of 8.0"
    ):
        lowered("Tesla T4")
    assert TRITON not in lowered("Tesla T4", backend="auto")


def test_without_a_gpu_it_is_refused() -> None:
    arrays = jnp.zeros((1, 2, 16)), jnp.zeros((2, 8, 2, 16)), jnp.zeros((1, 1), jnp.int32)
    positions = jnp.asarray([0, 1], jnp.int32), jnp.zeros(1, jnp.int32)
    with pytest.raises(KernelUnsupported, match="the program is not traced for a GPU"):
        paged_attention(*arrays, *positions, scale=1.0, backend="gpu")


def grouped(weights: tuple[int, int, int], *, rows: int, dtype: Any, backend: str = "gpu") -> str:
    groups, inputs, outputs = weights
    device = AbstractDevice(device_kind="NVIDIA H100 80GB HBM3", num_cores=None, platform="gpu")
    multiply = functools.partial(grouped_matmul, backend=backend, platform="gpu", dtype=jnp.bfloat16)
    with jax.sharding.use_abstract_mesh(AbstractMesh((1,), ("tensor",), axis_types=AUTO, abstract_device=device)):
        traced = jax.jit(lambda x, w, sizes, rows, scales: multiply(x, w, sizes, rows=rows, scales=scales)).trace(
            jax.ShapeDtypeStruct((-(-rows // 2), inputs), jnp.bfloat16),
            jax.ShapeDtypeStruct(weights, dtype),
            jax.ShapeDtypeStruct((groups,), jnp.int32),
            jax.ShapeDtypeStruct((rows,), jnp.int32),
            jax.ShapeDtypeStruct((groups, outputs), jnp.float32) if dtype == jnp.int8 else None,
        )
        return traced.lower(lowering_platforms=("cuda",)).as_text()


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32, jnp.int8])
@pytest.mark.parametrize("rows", [8, 512, 6000, 40_000])
def test_products_by_groups_lower_to_one_kernel(rows: int, dtype: Any) -> None:
    """Of as many rows as tiles of every size are for."""
    assert grouped((100, 99, 300), rows=rows, dtype=dtype, backend="auto").count(TRITON) == 1


def test_matrices_that_the_kernel_cannot_count_are_refused() -> None:
    huge = 256, 4096, 2048
    with pytest.raises(KernelUnsupported, match=f"matrices of {2**31} values; the kernel counts to {2**31}"):
        grouped(huge, rows=8, dtype=jnp.bfloat16)
    assert TRITON not in grouped(huge, rows=8, dtype=jnp.bfloat16, backend="auto")
