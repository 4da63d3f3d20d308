"""The real TPU compiler takes every family's step, on one chip and on four, and writes the pages in place."""

from __future__ import annotations

import itertools
import os
import re
from typing import Any

import jax.numpy as jnp
import pytest

from buckets import Bucket, Grid
from jaxengine.device.layers.delta_net import RULE
from jaxengine.device.layers.schemes.by_path import Schemes
from jaxengine.device.layers.schemes.scaled import Scaled
from jaxengine.device.layers.sharding import share_layers, share_tokens
from jaxengine.device.layers.state_space import SCAN
from jaxengine.device.models.parameters import abstract_model
from jaxengine.device.models.registry import read_config, resolve
from jaxengine.device.runtime.cache_layout import lay_out
from jaxengine.device.runtime.forward import forward_programs
from jaxengine.device.runtime.space import ProgramSpace
from pallas_kernels.check import pool_moves, pool_sized_moves
from tests.device.models.cases import FAMILIES, Fixture
from tests.quick import rare_but
from tests.targets.tpu import devices

pytestmark = [pytest.mark.tpu_compile, pytest.mark.slow]

BUCKET = Bucket(10, 4)


STEPS = list(itertools.product(FAMILIES, ["v6e-1", "v5e-4"], [None, "int8", "int4", "fp8"]))
OFTEN = {(case, "v6e-1", None) for case in FAMILIES} | {
    (case, "v5e-4", "int8") for case in ("llama", "gemma3", "qwen3-moe")
}
OFTEN |= {("llama", "v6e-1", "int4"), ("llama", "v5e-4", "fp8"), ("qwen3-moe", "v5e-4", "int4")}


@pytest.mark.parametrize("step", rare_but(STEPS, OFTEN), ids=str)
def test_a_step_compiles_for_a_tpu(step):
    case, target, quantization = step
    config = Fixture.load(case).config
    space, compiled = compiled_step(config, target, quantization=quantization, backend="xla")
    pool = sum(pages.size for pages in space.kv_pages) * 2 // space.device_layout.mesh.size
    assert compiled.memory_analysis().alias_size_in_bytes >= pool
    text = compiled.as_text()
    assert "f64" not in text
    gathered = set(re.findall(r" = \(?(\w+\[\d+)[^=]* all-gather(?:-start)?\(", text))
    rows = {f"{dtype}[{BUCKET.tokens}" for dtype in ("s8", "bf16")}  # what is sent beside int8 (`matmul/parts.py`)
    assert gathered == (rows if quantization == "int8" and space.device_layout.mesh.size > 1 else set())
    assert "all-gather" not in text or gathered
    assert ("all-reduce" in text) == (space.device_layout.mesh.size > 1)


NVFP4 = Schemes("nvfp4", Scaled(dtype="float4_e2m1fn", group=16, tensor_scale=True))


@pytest.mark.parametrize("place", rare_but([("llama", "v6e-1"), ("qwen3-moe", "v5e-4")], {("llama", "v6e-1")}), ids=str)
def test_a_step_of_nvfp4_compiles_for_a_tpu(place):
    case, target = place
    _, compiled = compiled_step(Fixture.load(case).config, target, schemes=NVFP4, backend="xla")
    assert "f8e4m3" not in compiled.as_text(), "scales are kept in bfloat16"


@pytest.mark.parametrize("case", rare_but(["qwen3-moe", "deepseek-v3"], {"qwen3-moe"}))
def test_attention_by_data_beside_experts_compiles_for_a_tpu(case):
    """A device attends to its own rows; tokens are gathered for experts, and what these give is summed."""
    space, compiled = compiled_step(Fixture.load(case).config, "v5e-4", backend="tpu", data=4)
    experts = next(
        struct for path, struct in space.parameters.items() if path.endswith(".gate.weight") and struct.ndim == 3
    )
    assert experts.sharding.shard_shape(experts.shape)[0] == experts.shape[0] // 4
    text = compiled.as_text()
    assert "all-gather" in text
    assert "all-reduce" in text


@pytest.mark.parametrize("bucket", [Bucket(16, 1), Bucket(4, 32)], ids=str)
@pytest.mark.parametrize("target", rare_but(["v6e-1", "v5e-4", "v5e-1", "v5p-1", "tpu7x-1"], {"v6e-1"}))
def test_attention_to_latent_vectors_is_a_kernel_that_leaves_the_pool(target, bucket):
    config = Fixture.load("deepseek-v3").config
    space, compiled = compiled_step(config, target, bucket=bucket, backend="tpu", num_pages=4096)
    [pool] = space.kv_pages
    assert pool_moves(compiled, pool.shape, itemsize=2) == []
    assert "%latent_attention" in compiled.as_text()


FILLING_VECTORS = {
    "qwen3-next": {"linear_key_head_dim": 128, "linear_value_head_dim": 128},
    "granite-hybrid": {"mamba_d_head": 64, "mamba_d_state": 128, "mamba_expand": 16},
}


@pytest.mark.parametrize("target", ["v6e-1", "v5e-4"])
@pytest.mark.parametrize("case", FILLING_VECTORS)
def test_no_step_moves_all_states(case, target):
    config = {**Fixture.load(case).config, **FILLING_VECTORS[case]}
    space, compiled = compiled_step(config, target, backend="xla")
    [states] = [struct for name, struct in space.states.items() if name in (RULE, SCAN)]
    text = compiled.as_text()
    assert "rows_of_one_token" in text
    assert "longer_rows" in text
    assert pool_sized_moves(text, (states.size // space.device_layout.mesh.size,)) == []


def compiled_step(
    hf_config: dict[str, Any],
    target: str,
    *,
    bucket: Bucket = BUCKET,
    backend: str,
    num_pages: int = 32,
    quantization: str | None = None,
    schemes: Schemes | None = None,
    data: int = 1,
) -> tuple[ProgramSpace, Any]:
    """The programs of a model on chips as in "v5e-4", and its compiled step of a bucket."""
    generation, count = target.split("-")
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")  # other test processes may have libtpu loaded too
    chips = devices(generation, count=int(count))
    layout = share_layers(chips) if data == 1 else share_tokens(chips, data=data)
    model_class = resolve(hf_config)
    config = read_config(model_class, hf_config)
    graph, parameters = abstract_model(
        model_class,
        config,
        dtype=jnp.bfloat16,
        layout=layout,
        platform="tpu",
        schemes=schemes or Schemes.by_option(quantization),
    )
    pages = lay_out(graph.cache, max_model_len=64)
    space = ProgramSpace(
        graph=graph,
        parameters=parameters,
        cache=pages,
        vocab_size=config.vocab_size,
        grid=Grid([bucket]),
        max_num_seqs=bucket.batch,
        page_size=16,
        num_pages=(num_pages,) * len(pages.pools),
        kv_dtype=jnp.bfloat16,
        max_model_len=64,
        max_logprobs=5,
        attention_backend=backend,
        platform="tpu",
        device_layout=layout,
    )
    [forward] = forward_programs(space, bucket)
    return space, forward.lower().compile()
