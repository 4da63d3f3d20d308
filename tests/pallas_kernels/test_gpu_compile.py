"""XLA's GPU compiler takes the kernels for Ampere and Hopper, and leaves the pool where it is. Runs nothing.

Needs JAX's CUDA plugin, which belongs in an environment of its own (4 GB): there, `python -m pytest -m gpu_compile`.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pallas_kernels import grouped_matmul, grouped_scaled_matmul, latent_attention, scaled_matmul, write_latents
from pallas_kernels.check import MODELS, Heads, checks, main, pool_moves
from pallas_kernels.gpu import targets as gpu_targets
from xla_cache.chips import CHIPS, GpuChip

TRITON = "__gpu$xla.gpu.triton"


def test_both_packages_describe_the_same_devices() -> None:
    """Neither may import the other."""
    described = {name: chip.target_config for name, chip in CHIPS.items() if isinstance(chip, GpuChip)}
    assert {name: sorted(gpu.target_config.split()) for name, gpu in gpu_targets.GPUS.items()} == {
        name: sorted(text.split()) for name, text in described.items()
    }


@pytest.mark.skipif(gpu_targets.missing() is None, reason="this environment can compile for GPUs")
def test_the_command_says_what_to_install(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--target", "h200"])
    assert "this environment lacks JAX's CUDA plugin: pip install 'jax[cuda13]'" in capsys.readouterr().err


@pytest.mark.gpu_compile
@pytest.mark.skipif(gpu_targets.missing() is not None, reason=f"needs {gpu_targets.missing()}")
@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated")
@pytest.mark.parametrize(
    ("target", "heads"),
    [
        ("a100", MODELS["Llama-3.1-8B"]),
        ("h100", MODELS["Qwen3-0.6B"]),
        ("h200", MODELS["Llama-3.1-8B"]),
        ("a100", MODELS["Gemma-2-9B"]),
        ("h200", MODELS["Gemma-2-9B"]),
        ("h100", MODELS["Llama-3.1-8B int8"]),
        ("a100", MODELS["Qwen3-0.6B float8"]),
        ("h200", MODELS["Qwen3-0.6B float8"]),
        ("h200", Heads(32, 8, 128, kv_dtype="float8_e5m2")),
        ("h100", Heads(16, 16, 64, kv_dtype="float32")),
        ("a100", Heads(14, 2, 80)),
        ("h200", Heads(32, 32, 96)),
        ("h200", Heads(16, 1, 112)),
    ],
    ids=str,
)
def test_attention_compiles_in_place(target: str, heads: Heads) -> None:
    for check in checks(target, 1, {"model": heads}):
        hlo = check.compile().as_text()
        assert TRITON in hlo, check.name


@pytest.mark.gpu_compile
@pytest.mark.skipif(gpu_targets.missing() is not None, reason=f"needs {gpu_targets.missing()}")
@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated")
@pytest.mark.parametrize(("rows", "places"), [(64, 64), (8, 1024)])
@pytest.mark.parametrize(
    ("target", "heads", "dtype"),
    [
        ("a100", 16, jnp.bfloat16),
        ("a100", 128, jnp.bfloat16),
        ("h100", 20, jnp.bfloat16),
        ("h200", 128, jnp.bfloat16),
        ("a100", 16, jnp.int8),
        ("a100", 128, jnp.float8_e4m3fn),
        ("h200", 128, jnp.float8_e4m3fn),
        ("h100", 8, jnp.float8_e5m2),
        ("a100", 16, jnp.float32),
        ("h100", 40, jnp.float32),
    ],
    ids=str,
)
def test_latent_attention_compiles_in_place(target: str, heads: int, dtype: Any, rows: int, places: int) -> None:
    """DeepSeek's vectors, written and attended to."""
    mesh = Mesh(np.asarray(gpu_targets.devices(target, 1)), ("tensor",))
    pool, scaled = (32_768, 1, 64, 576), jnp.dtype(dtype).itemsize == 1
    tokens = jnp.bfloat16 if scaled else dtype

    def layer(pages: Any, q: Any, latents: Any, slots: Any, scales: Any, *rows: Any) -> Any:
        pages = write_latents(pages, latents, slots, scales=scales, backend="gpu")
        return pages, latent_attention(q, pages, *rows, scale=0.1, value_size=512, scales=scales, backend="gpu")

    arguments = [
        (pool, dtype),
        ((places, heads, 576), tokens),
        ((places, 576), tokens),
        ((places,), jnp.int32),
        ((576,), jnp.float32),
        ((rows, 128), jnp.int32),
        ((rows + 1,), jnp.int32),
        ((rows,), jnp.int32),
    ]
    structs: list[Any] = [
        jax.ShapeDtypeStruct(shape, kind, sharding=NamedSharding(mesh, PartitionSpec())) for shape, kind in arguments
    ]
    if not scaled:
        structs[4] = None
    with jax.set_mesh(mesh):
        compiled = jax.jit(layer, donate_argnums=0).trace(*structs).lower(lowering_platforms=("cuda",)).compile()
    assert TRITON in compiled.as_text()
    assert pool_moves(compiled, pool, itemsize=jnp.dtype(dtype).itemsize) == []


@pytest.mark.gpu_compile
@pytest.mark.skipif(gpu_targets.missing() is not None, reason=f"needs {gpu_targets.missing()}")
@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated")
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.int8])
@pytest.mark.parametrize("target", ["a100", "h200"])
@pytest.mark.parametrize("rows", [8, 512, 4096, 65_536])
def test_products_by_groups_compile(target: str, rows: int, dtype: Any) -> None:
    """The experts of Qwen3-30B-A3B, with tiles of every size: what a program asks for, a multiprocessor has."""
    mesh = Mesh(np.asarray(gpu_targets.devices(target, 1)), ("tensor",))
    whole = NamedSharding(mesh, PartitionSpec())
    multiply = functools.partial(grouped_matmul, backend="gpu", dtype=jnp.bfloat16)
    arguments = [((rows, 2048), jnp.bfloat16), ((128, 2048, 768), dtype), ((128,), jnp.int32)]
    structs = [jax.ShapeDtypeStruct(shape, kind, sharding=whole) for shape, kind in arguments]
    scales = jax.ShapeDtypeStruct((128, 768), jnp.float32, sharding=whole) if dtype == jnp.int8 else None
    with jax.set_mesh(mesh):
        traced = jax.jit(lambda x, w, sizes, scales: multiply(x, w, sizes, scales=scales)).trace(*structs, scales)
        assert TRITON in traced.lower(lowering_platforms=("cuda",)).compile().as_text()


@pytest.mark.gpu_compile
@pytest.mark.skipif(gpu_targets.missing() is not None, reason=f"needs {gpu_targets.missing()}")
@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated")
@pytest.mark.parametrize(
    ("dtype", "pairs", "group"),
    [
        (jnp.uint8, "int4", 128),
        (jnp.uint8, "float4_e2m1fn", 32),
        (jnp.int8, "int4", 16),
        (jnp.float8_e4m3fn, "int4", 4096),
        (jnp.float8_e5m2, "int4", 128),
    ],
    ids=str,
)
@pytest.mark.parametrize("target", ["a100", "h200"])
@pytest.mark.parametrize("rows", [1, 256])
def test_scaled_products_compile(target: str, rows: int, dtype: Any, pairs: str, group: int) -> None:
    """A matrix of Llama-3.1-8B and the experts of Qwen3-30B-A3B; without zeros, and with them beside integers."""
    mesh = Mesh(np.asarray(gpu_targets.devices(target, 1)), ("tensor",))
    whole, halved, by = NamedSharding(mesh, PartitionSpec()), 2 if dtype == jnp.uint8 else 1, min(group, 2048)

    def struct(*shape: int, dtype: Any = jnp.bfloat16) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=whole)

    options = {"compute": jnp.bfloat16, "pairs": pairs, "backend": "gpu"}
    scales, of_experts = struct(-(-4096 // group), 6144), struct(128, 2048 // by, 768)
    zeros = [None, scales] if pairs == "int4" and dtype != jnp.float8_e5m2 else [None]
    dense = [struct(rows, 4096), struct(6144 // halved, 4096, dtype=dtype), scales]
    experts = [struct(rows, 2048), struct(128, 2048 // halved, 768, dtype=dtype), struct(128, dtype=jnp.int32)]
    with jax.set_mesh(mesh):
        for zero in zeros:
            multiply = functools.partial(scaled_matmul, group=group, **options)
            traced = jax.jit(multiply).trace(*dense, zero)
            assert TRITON in traced.lower(lowering_platforms=("cuda",)).compile().as_text()
            multiply = functools.partial(grouped_scaled_matmul, group=by, **options)
            traced = jax.jit(multiply).trace(*experts, of_experts, None if zero is None else of_experts)
            assert TRITON in traced.lower(lowering_platforms=("cuda",)).compile().as_text()


@pytest.mark.gpu_compile
@pytest.mark.skipif(gpu_targets.missing() is not None, reason=f"needs {gpu_targets.missing()}")
@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated")
@pytest.mark.parametrize("target", ["a100", "h200"])
def test_matrices_made_dense_compile(target: str) -> None:
    """Prompts of Llama-3.1-8B in int4 with zeros, and of gpt-oss-20b's experts, whose sizes no tile divides."""
    mesh = Mesh(np.asarray(gpu_targets.devices(target, 1)), ("tensor",))

    def struct(*shape: int, dtype: Any = jnp.bfloat16) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, PartitionSpec()))

    options = {"compute": jnp.bfloat16, "backend": "gpu_dense"}
    scales = struct(32, 6144)
    experts = [struct(8192, 2880), struct(32, 1440, 2880, dtype=jnp.uint8), struct(32, dtype=jnp.int32)]
    with jax.set_mesh(mesh):
        multiply = functools.partial(scaled_matmul, group=128, result=jnp.bfloat16, **options)
        traced = jax.jit(multiply).trace(struct(2048, 4096), struct(3072, 4096, dtype=jnp.uint8), scales, scales)
        assert TRITON in traced.lower(lowering_platforms=("cuda",)).compile().as_text()
        multiply = functools.partial(grouped_scaled_matmul, group=32, pairs="float4_e2m1fn", **options)
        traced = jax.jit(multiply).trace(*experts, struct(32, 90, 2880))
        assert TRITON in traced.lower(lowering_platforms=("cuda",)).compile().as_text()
