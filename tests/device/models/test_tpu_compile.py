"""The real TPU compiler takes every family's step, on one chip and on four, and writes the pages in place."""

from __future__ import annotations

import itertools
import os
import re
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import pytest

from buckets import Bucket, Grid
from jaxengine.contract.pooling import Pooling
from jaxengine.device.layers.adapters import AdapterSpec
from jaxengine.device.layers.delta_net import RULE
from jaxengine.device.layers.pooler import PoolerShape
from jaxengine.device.layers.schemes.by_path import Schemes
from jaxengine.device.layers.schemes.scaled import Scaled
from jaxengine.device.layers.sharding import share_layers, share_tokens
from jaxengine.device.layers.state_space import SCAN
from jaxengine.device.models.parameters import abstract_model
from jaxengine.device.models.registry import read_config, resolve
from jaxengine.device.runtime.adapter_slots import adapter_programs
from jaxengine.device.runtime.cache_layout import lay_out
from jaxengine.device.runtime.forward_programs import forward_programs, hidden_struct
from jaxengine.device.runtime.memory import is_on_host, shard_bytes
from jaxengine.device.runtime.programs import programs_of_shape
from jaxengine.device.runtime.space import ProgramSpace
from jaxengine.device.weights.adapter_packing import has_slots
from jaxengine.startup.weights_on_host import keep_on_host
from pallas_kernels.check import pool_moves, pool_sized_moves
from tests.device.models.cases import FAMILIES, QUICK, Fixture
from tests.device.models.encoder_cases import ENCODERS, EncoderFixture
from tests.quick import rare_but
from tests.targets.tpu import devices
from xla_cache.schedules.instructions import entry

pytestmark = [pytest.mark.tpu_compile, pytest.mark.slow]

BUCKET = Bucket(10, 4)


KINDS = QUICK | {
    "gemma3",
    "gemma4-shared",
    "gpt-oss",
    "gpt2",
    "mimo-v2",
    "phimoe-long-biases",
    "deepseek-v3.2",
    "kimi-linear",
    "qwen3-next",
    "granite-hybrid",
    "jamba",
    "rwkv7",
}
"""A family for each kind of attention, state, experts and feed-forward; those that are like one of them are rare."""

STEPS = list(itertools.product(FAMILIES, ["v6e-1", "v5e-4"], [None, "int8", "int4", "fp8"]))
STEPS += [("llama", "v6e-1", "int4_g32"), ("qwen3-moe", "v5e-4", "int4_g32")]
OFTEN = {(case, "v6e-1", None) for case in KINDS} | {
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
    gathered = re.findall(r" = \(?(\w+)\[([\d,]+)[^=]* all-gather(?:-start)?\(", text)
    assert all(str(BUCKET.tokens) in sizes.split(",") for _, sizes in gathered)  # rows, never a matrix
    rows = {"s8", "bf16"} if quantization == "int8" else set()  # what is sent beside int8 (`matmul/parts.py`)
    given = {"bf16"} if case == "rwkv7" else set()  # the first layer's values, once
    sent = given | rows
    assert {dtype for dtype, _ in gathered} == (sent if space.device_layout.mesh.size > 1 else set())
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


@pytest.mark.parametrize("shared", rare_but([False, True], {False}))
def test_experts_are_read_while_tokens_are_gathered(shared):
    """A prompt's: the start stands before the gather of all tokens, and what waits for it behind that."""
    config = Fixture.load("qwen3-next" if shared else "qwen3-moe").config
    config = {**config, "hidden_size": 2048, "moe_intermediate_size": 512}  # 128 of each expert on a device
    _, compiled = compiled_step(
        config, "v6e-4", bucket=Bucket(1, 2048), backend="tpu", num_pages=256, max_model_len=2048
    )
    instructions = entry(compiled.as_text())
    names = [instruction.name.partition(".")[0] for instruction in instructions]
    begun, used = (names.index(name) for name in ("begin_grouped_mlp", "grouped_mlp"))
    between = instructions[begun:used]
    assert any(one.opcode == "all-gather" and "bf16[2048,2048]" in one.shape for one in between)


@pytest.mark.parametrize("bucket", [Bucket(16, 1), Bucket(4, 32)], ids=str)
@pytest.mark.parametrize("target", rare_but(["v6e-1", "v5e-4", "v5e-1", "v5p-1", "tpu7x-1"], {"v6e-1"}))
def test_attention_to_latent_vectors_is_a_kernel_that_leaves_the_pool(target, bucket):
    config = Fixture.load("deepseek-v3").config
    space, compiled = compiled_step(config, target, bucket=bucket, backend="tpu", num_pages=4096)
    [pool] = space.kv_pages
    assert pool_moves(compiled, pool.shape, itemsize=2) == []
    assert "%latent_attention" in compiled.as_text()


@pytest.mark.parametrize("case", rare_but(["llama", "deepseek-v3", "deepseek-v3.2"], {"deepseek-v3.2"}))
def test_a_step_with_a_million_tokens_of_context_compiles(case):
    """The program of a bucket that is for such: page tables of 65,536 pages a row, worked off in groups of rows."""
    config = Fixture.load(case).config
    options = {"backend": "auto", "num_pages": 70_000, "max_model_len": 1 << 20}
    space, compiled = compiled_step(config, "v6e-1", **options)
    assert [layout.pages_per_row for layout in space.layouts(BUCKET)] == [8192, 65_536]
    for pages in space.kv_pages:
        assert pool_moves(compiled, pages.shape, itemsize=2) == []
    kernels = {"llama": "paged_attention", "deepseek-v3": "latent_attention", "deepseek-v3.2": "latent_attention"}
    assert kernels[case] in compiled.as_text()


@pytest.mark.parametrize("target", rare_but(["v6e-1", "v5e-4"], {"v6e-1"}))
def test_weights_on_the_host_come_a_layer_at_a_time(target):
    sizes = {
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "head_dim": 128,
    }
    config = {**Fixture.load("llama").config, **sizes, "num_hidden_layers": 8}
    space, compiled = compiled_step(config, target, backend="tpu", on_host_gib=1.0, num_pages=4096)
    on_host = sum(shard_bytes(struct) for struct in space.parameters.values() if is_on_host(struct))
    layer = sum(map(shard_bytes, space.structs(space.parts.layers[0])))
    used = compiled.memory_analysis()
    assert used.host_argument_size_in_bytes == on_host == 8 * layer
    assert used.temp_size_in_bytes < 2 * layer
    for pages in space.kv_pages:
        assert pool_moves(compiled, pages.sharding.shard_shape(pages.shape), itemsize=2) == []


ENCODING = list(itertools.product(ENCODERS, ["v6e-1", "v5e-1", "v5e-4"]))


@pytest.mark.parametrize(
    "step", rare_but(ENCODING, {("bert", "v6e-1"), ("bert", "v5e-1"), ("deberta_v3", "v6e-1")}), ids=str
)
def test_an_encoder_compiles_for_a_tpu_whole(step):
    """From tokens to what stands for texts and tokens, in one program; attention is a kernel where it has no distances."""
    case, target = step
    config = EncoderFixture.load(case).config
    bucket, pooler = Bucket(4, 64), PoolerShape(pooling=Pooling.MEAN)
    space, compiled = compiled_step(dict(config), target, bucket=bucket, backend="tpu", pooler=pooler)
    assert space.pools
    text = compiled.as_text()
    assert "f64" not in text
    assert ("%row_attention" in text) == ("deberta" not in case and "mpnet" not in case)


FILLING_VECTORS = {
    "qwen3-next": {"linear_key_head_dim": 128, "linear_value_head_dim": 128},
    "granite-hybrid": {"mamba_d_head": 64, "mamba_d_state": 128, "mamba_expand": 16},
}


@pytest.mark.parametrize("target", rare_but(["v6e-1", "v5e-4"], {"v6e-1"}))
@pytest.mark.parametrize("case", FILLING_VECTORS)
def test_no_step_moves_all_states(case, target):
    config = {**Fixture.load(case).config, **FILLING_VECTORS[case]}
    space, compiled = compiled_step(config, target, backend="xla")
    [states] = [struct for name, struct in space.states.items() if name in (RULE, SCAN)]
    text = compiled.as_text()
    assert "rows_of_one_token" in text
    assert "longer_rows" in text
    assert pool_sized_moves(text, (states.size // space.device_layout.mesh.size,)) == []


FEW, MANY = AdapterSpec(slots=4, rank=8), AdapterSpec(slots=16, rank=64)
THROUGH_ADAPTERS = [
    *itertools.product(["llama"], ["v6e-1", "v5e-1", "v5e-4"], [FEW], [None]),
    ("llama", "v6e-1", MANY, None),
    ("gemma3", "v5e-4", MANY, "int4"),
    ("qwen3-moe", "v6e-1", FEW, None),
    ("qwen3-moe", "v5e-4", FEW, "int8"),
]


@pytest.mark.parametrize("step", rare_but(THROUGH_ADAPTERS, {("llama", "v6e-1", FEW, None)}), ids=str)
def test_a_step_through_adapters_compiles_for_a_tpu(step):
    """And what writes their slots leaves the others where they lie."""
    case, target, adapters, quantization = step
    targets = ("q_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "embed_tokens", "lm_head")
    space, compiled = compiled_step(
        Fixture.load(case).config,
        target,
        backend="tpu",
        quantization=quantization,
        adapters=adapters,
        targets=targets,
    )
    assert "op:adapter_product" in compiled.as_text()
    on_one = case == "llama" and adapters == FEW and target.endswith("-1")
    assert ("op:adapted_gate" in compiled.as_text()) == on_one
    assert "f64" not in compiled.as_text()
    for program in adapter_programs(space):
        written = program.lower().compile()
        devices = 1 if space.device_layout.mesh is None else space.device_layout.mesh.size
        slots = sum(struct.size * 2 for struct in program.arguments[0])
        assert written.memory_analysis().alias_size_in_bytes >= slots // devices
    if case == "llama" and target == "v5e-4":
        *_, shape = space.sampling.shapes
        assert shape.adapters
        [sampling] = programs_of_shape(space, shape, hidden_struct(space))
        assert "op:adapter_product" in sampling.lower().compile().as_text()


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
    max_model_len: int = 64,
    pooler: PoolerShape | None = None,
    adapters: AdapterSpec | None = None,
    targets: tuple[str, ...] | None = None,
    on_host_gib: float = 0.0,
) -> tuple[ProgramSpace, Any]:
    """The programs of a model on chips as in "v5e-4", and its compiled step of a bucket, with the longest rows that there are."""
    generation, count = target.split("-")
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")  # other test processes may have libtpu loaded too
    chips = devices(generation, count=int(count))
    layout = share_layers(chips) if data == 1 else share_tokens(chips, data=data)
    model_class = resolve(hf_config)
    config = replace(read_config(model_class, hf_config), pooler=pooler)
    graph, parameters = abstract_model(
        model_class,
        config,
        dtype=jnp.bfloat16,
        layout=layout,
        platform="tpu",
        schemes=schemes or Schemes.by_option(quantization),
        adapters=adapters,
        adapted=has_slots(model_class.WEIGHTS, targets),
    )
    pages = lay_out(graph.cache, max_model_len=max_model_len)
    space = ProgramSpace(
        graph=graph,
        parameters=keep_on_host(parameters, on_host_gib, platform="tpu", here=False),
        cache=pages,
        vocab_size=config.vocab_size,
        grid=Grid([bucket]),
        max_num_seqs=bucket.batch,
        page_size=16,
        num_pages=(num_pages,) * len(pages.pools),
        kv_dtype=jnp.bfloat16,
        max_model_len=max_model_len,
        max_logprobs=5,
        attention_backend=backend,
        platform="tpu",
        device_layout=layout,
        adapters=adapters,
    )
    *_, forward = forward_programs(space, bucket)
    return space, forward.lower().compile()
