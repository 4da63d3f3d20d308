"""The GPU kernels lower to Triton's language without a GPU and without CUDA; whether they compile, test_gpu_compile.py says."""

from __future__ import annotations

import dataclasses
import functools
import sys
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, AxisType

from pallas_kernels import (
    KernelUnsupported,
    gated_delta,
    grouped_matmul,
    grouped_scaled_matmul,
    latent_attention,
    paged_attention,
    scaled_matmul,
    selective_scan,
)
from pallas_kernels.dispatch import Op
from pallas_kernels.gpu.device import interpreted_gpu
from pallas_kernels.testing import RECURRENCE_CASES
from tests.quick import slow_but

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
        pytest.param(384, {}, 3, marks=pytest.mark.slow),
        (9, {"heads": (14, 2, 80), "window": 5, "soft_cap": 3.0, "sinks": jnp.ones(14)}, 2),
        (9, {"kv_dtype": jnp.float32, "backend": "auto"}, 3),
        pytest.param(
            99,
            {"kv_dtype": jnp.float8_e4m3fn, "kv_scales": jnp.ones((2, 2)), "alibi_slopes": jnp.ones(8)},
            3,
            marks=pytest.mark.slow,
        ),
        pytest.param(8, {"rows": 70_000}, 2, marks=pytest.mark.slow),  # more than the second axis of a grid has
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
        pytest.param(16, 96, marks=pytest.mark.slow),
        pytest.param(384, 96, marks=pytest.mark.slow),  # rows of up to 16 tokens have states
    ],
)
def test_the_memory_of_states_does_not_grow_with_long_rows(places: int, states: int) -> None:
    assert f"tensor<{states}x8x64xf32>" in lowered(places=places)


@pytest.mark.parametrize(
    ("places", "heads", "kv_dtype", "kernels"),
    slow_but(
        [(3, 16, jnp.bfloat16, 2), (3, 128, jnp.bfloat16, 3), (1, 128, jnp.int8, 2), (99, 20, jnp.float8_e5m2, 3)],
        {(3, 128, jnp.bfloat16, 3), (1, 128, jnp.int8, 2)},
        several=True,
    ),
)
@pytest.mark.parametrize(
    "kind", slow_but(["NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3"], {"NVIDIA H100 80GB HBM3"})
)
def test_latent_attention_lowers(kind: str, places: int, heads: int, kv_dtype: Any, kernels: int) -> None:
    """DeepSeek's sizes: `auto` is as many kernels as in paged attention; long rows are those that fill more than a tile."""
    scales = jnp.ones(576) if jnp.dtype(kv_dtype).itemsize == 1 else None
    device = AbstractDevice(device_kind=kind, num_cores=None, platform="gpu")
    with jax.sharding.use_abstract_mesh(AbstractMesh((1,), ("tensor",), axis_types=AUTO, abstract_device=device)):
        attend = functools.partial(latent_attention, scale=1.0, value_size=512, scales=scales, platform="gpu")
        traced = jax.jit(attend).trace(
            jax.ShapeDtypeStruct((places, heads, 576), jnp.bfloat16),
            jax.ShapeDtypeStruct((64, 1, 16, 576), kv_dtype),
            jax.ShapeDtypeStruct((places, 32), jnp.int32),
            jax.ShapeDtypeStruct((places + 1,), jnp.int32),
            jax.ShapeDtypeStruct((places,), jnp.int32),
        )
        assert traced.lower(lowering_platforms=("cuda",)).as_text().count(TRITON) == kernels


@pytest.mark.parametrize("name", slow_but(["mixed", "by-channel"], {"by-channel"}))
def test_recurrences_lower_to_one_kernel(name: str) -> None:
    (case,) = (case for case in RECURRENCE_CASES if case.name == name)
    device = AbstractDevice(device_kind="NVIDIA A100-SXM4-80GB", num_cores=None, platform="gpu")
    with jax.sharding.use_abstract_mesh(AbstractMesh((1,), ("tensor",), axis_types=AUTO, abstract_device=device)):
        for op, inputs in ((gated_delta, case.delta_inputs()), (selective_scan, case.scan_inputs())):
            structs = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in inputs]
            traced = jax.jit(functools.partial(op, platform="gpu")).trace(*structs)
            assert traced.lower(lowering_platforms=("cuda",)).as_text().count(TRITON) == 1


def test_states_too_large_for_the_registers_are_refused() -> None:
    inputs = dataclasses.replace(RECURRENCE_CASES[0], state=520).delta_inputs()
    with (
        interpreted_gpu(),
        pytest.raises(KernelUnsupported, match=r"states of 520 by 8; the GPU kernel takes up to 512"),
    ):
        gated_delta(*inputs, backend="gpu")


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
@pytest.mark.parametrize("rows", slow_but([8, 512, 6000, 40_000], {8, 6000}))
def test_products_by_groups_lower_to_one_kernel(rows: int, dtype: Any) -> None:
    """Of as many rows as tiles of every size are for."""
    assert grouped((100, 99, 300), rows=rows, dtype=dtype, backend="auto").count(TRITON) == 1


def test_matrices_that_the_kernel_cannot_count_are_refused() -> None:
    huge = 256, 4096, 2048
    with pytest.raises(KernelUnsupported, match=f"matrices of {2**31} values; the kernel counts to {2**31}"):
        grouped(huge, rows=8, dtype=jnp.bfloat16)
    assert TRITON not in grouped(huge, rows=8, dtype=jnp.bfloat16, backend="auto")


@pytest.mark.parametrize("op", [scaled_matmul, grouped_scaled_matmul], ids=lambda op: op.__name__)
def test_scaled_products_lower_to_one_kernel_where_it_is_for_them(op: Any) -> None:
    device = AbstractDevice(device_kind="NVIDIA H100 80GB HBM3", num_cores=None, platform="gpu")
    grouped = op is grouped_scaled_matmul

    def given(rows: int, group: int) -> list[Any]:
        kept = [jax.ShapeDtypeStruct((8, 96, 99) if grouped else (99, 96), jnp.float8_e4m3fn)]
        scales = jax.ShapeDtypeStruct((*((8,) if grouped else ()), 96 // group, 99), jnp.bfloat16)
        sizes = [jax.ShapeDtypeStruct((8,), jnp.int32)] if grouped else []
        return [jax.ShapeDtypeStruct((rows, 96), jnp.bfloat16), *kept, *sizes, scales]

    def choice(*, rows: int = 3, group: int = 32, compute: Any = jnp.bfloat16) -> str:
        own: Op = sys.modules[op.__module__].OP
        return own.choose("gpu", *given(rows, group), None, group=group, compute=compute, pairs="int4")

    with jax.sharding.use_abstract_mesh(AbstractMesh((1,), ("tensor",), axis_types=AUTO, abstract_device=device)):
        multiply = functools.partial(op, group=32, compute=jnp.bfloat16, platform="gpu")
        text = jax.jit(multiply).trace(*given(3, 32)).lower(lowering_platforms=("cuda",)).as_text()
        assert choice(compute=jnp.float32) == "xla"
        assert choice(group=24) == ("xla" if grouped else "gpu_dense")
        assert choice(rows=300) == ("gpu" if grouped else "gpu_dense")
    assert text.count(TRITON) == 1
