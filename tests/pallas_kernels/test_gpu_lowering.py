"""The GPU kernel lowers to Triton's language without a GPU and without CUDA; whether that compiles, test_gpu_compile.py says."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractDevice, AbstractMesh

from pallas_kernels import KernelUnsupported, paged_attention

pytestmark = pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated")  # since jax 0.11

TRITON = "__gpu$xla.gpu.triton"


def lowered(
    kind: str = "NVIDIA A100-SXM4-80GB",
    *,
    places: int = 1,
    heads: tuple[int, int, int] = (8, 2, 64),
    kv_dtype: Any = jnp.bfloat16,
    backend: str = "gpu",
    **options: Any,
) -> str:
    query_heads, kv_heads, size = heads
    device = AbstractDevice(device_kind=kind, num_cores=None, platform="gpu")
    with jax.sharding.use_abstract_mesh(AbstractMesh((1,), ("tensor",), abstract_device=device)):
        traced = jax.jit(
            lambda *arrays: paged_attention(*arrays, scale=1.0, backend=backend, platform="gpu", **options)
        ).trace(
            jax.ShapeDtypeStruct((3, places, query_heads, size), jnp.bfloat16),
            jax.ShapeDtypeStruct((64, 16, 2 * kv_heads, size), kv_dtype),
            jax.ShapeDtypeStruct((3, 32), jnp.int32),
            jax.ShapeDtypeStruct((3,), jnp.int32),
            jax.ShapeDtypeStruct((3,), jnp.int32),
        )
        return traced.lower(lowering_platforms=("cuda",)).as_text()


@pytest.mark.parametrize(
    ("places", "options"),
    [
        (1, {}),
        (128, {}),
        (3, {"heads": (14, 2, 80), "window": 5, "soft_cap": 3.0, "sinks": jnp.ones(14)}),
        (2, {"kv_dtype": jnp.float32, "backend": "auto"}),
        (1, {"kv_dtype": jnp.float8_e4m3fn, "kv_scales": jnp.ones((2, 2)), "alibi_slopes": jnp.ones(8)}),
    ],
    ids=["decode", "prefill", "options", "auto", "quantised"],
)
def test_it_lowers(places: int, options: dict[str, Any]) -> None:
    assert lowered(places=places, **options).count(TRITON) == 1


def test_a_long_context_is_split_and_combined() -> None:
    assert "tensor<2x3x1x8x64xf32>" in lowered()  # 512 positions: two splits of 256


def test_a_gpu_before_ampere_is_refused_and_auto_takes_another() -> None:
    with pytest.raises(
        KernelUnsupported, match=r"a Tesla T4 has compute capability None; this needs an NVIDIA GPU of 8.0"
    ):
        lowered("Tesla T4")
    assert TRITON not in lowered("Tesla T4", backend="auto")


def test_without_a_gpu_it_is_refused() -> None:
    arrays = jnp.zeros((1, 1, 2, 16)), jnp.zeros((2, 8, 2, 16)), jnp.zeros((1, 1), jnp.int32)
    one = jnp.ones(1, jnp.int32)
    with pytest.raises(KernelUnsupported, match="the program is not traced for a GPU"):
        paged_attention(*arrays, one, one, scale=1.0, backend="gpu")
