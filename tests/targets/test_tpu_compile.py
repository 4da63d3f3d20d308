"""Every device program of an engine compiles for the named TPU generations, on one chip and on four."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from buckets import Bucket, Grid
from jaxengine.device.layers.schemes.by_path import Schemes
from jaxengine.device.layers.sharding import share_layers
from jaxengine.device.models.drafts.whole_model import WholeModel
from jaxengine.device.models.parameters import abstract_model
from jaxengine.device.models.registry import read_config, resolve
from jaxengine.device.runtime import calibration
from jaxengine.device.runtime.block_moves import move_programs
from jaxengine.device.runtime.cache_layout import lay_out
from jaxengine.device.runtime.draft_space import DraftSpace
from jaxengine.device.runtime.forward_programs import forward_programs
from jaxengine.device.runtime.memory import shard_shape, slot_bytes
from jaxengine.device.runtime.programs import all_programs
from jaxengine.device.runtime.snapshots import snapshot_names, snapshot_programs
from jaxengine.device.runtime.space import ProgramSpace
from jaxengine.device.runtime.target import platform_of
from jaxengine.embedded import checkpoint_path
from jaxengine.startup.quantization import choose_head
from pallas_kernels.check import pool_moves
from tests.device.models import two_shapes
from tests.device.models.cases import Fixture
from tests.integration.engines import LLAMA
from tests.quick import rare_but
from tests.targets import tpu
from xla_cache import obtain

pytestmark = pytest.mark.tpu_compile

MANY_PAGES = 4096  # no chip's own memory holds them: a copy of the pool cannot hide there
GRID = Grid([Bucket(8, 1), Bucket(8, 16)])
NUM_SEQUENCES = 16
DEEPSEEK = Fixture.load("deepseek-v3").config | {"vocab_size": 4096}
QWEN = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "vocab_size": 4096,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "rope_scaling": None,
    "hidden_act": "silu",
    "attention_bias": False,
    "sliding_window": None,
    "use_sliding_window": False,
    "max_window_layers": 2,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "bfloat16",
}


def space(
    config: dict[str, Any],
    devices: list[Any],
    *,
    num_pages: int = MANY_PAGES,
    quantization: str | None = None,
    kv_dtype: str = "bfloat16",
    lm_head_dtype: str = "auto",
) -> ProgramSpace:
    model_class = resolve(config)
    model_config = read_config(model_class, config)
    device_layout = share_layers(devices)
    platform = platform_of(devices)
    schemes = choose_head(Schemes.by_option(quantization), lm_head_dtype, tied=model_config.tie_word_embeddings)
    graph, parameters = abstract_model(
        model_class,
        model_config,
        dtype=jnp.bfloat16,
        layout=device_layout,
        platform=platform,
        schemes=schemes,
        kv_dtype=kv_dtype,
    )
    cache = lay_out(graph.cache, max_model_len=512)
    return ProgramSpace(
        graph=graph,
        parameters=parameters,
        cache=cache,
        vocab_size=model_config.vocab_size,
        grid=GRID,
        max_num_seqs=NUM_SEQUENCES,
        page_size=64,
        num_pages=(num_pages,) * len(cache.pools),
        kv_dtype=jnp.dtype(kv_dtype),
        max_model_len=512,
        max_logprobs=20,
        attention_backend="auto",
        platform=platform,
        device_layout=device_layout,
        host_blocks=(4,) * len(cache.pools),
    )


def check(whole: ProgramSpace, kernel: str = "tpu_custom_call") -> None:
    """Compile everything; pool and slots are written in place and never copied, and attention is the target's kernel."""
    pools, counts = [shard_shape(pages) for pages in whole.kv_pages], shard_shape(whole.slots.counts)
    for program in all_programs(whole):
        compiled, _ = obtain(program)
        if program.name.startswith(("forward", "pages")):
            itemsize = whole.kv_dtype.itemsize
            held = pools if program.name.startswith("forward") else [pools[int(program.name.split()[-1])]]
            moves = [move for pool in held for move in pool_moves(compiled, pool, itemsize=itemsize)]
            assert [move for move in moves if program.donate or "not aliased" not in move] == [], program.name
        else:
            # with so small a vocabulary the counts are hardly larger than what a scatter works in, and on a GPU smaller; a
            # table in int8, of which blocks get other tiles within the product, is larger
            most = 1.5 if whole.platform == "tpu" else math.inf
            moves = pool_moves(compiled, counts, itemsize=4, most_temporary=most)
            assert [move for move in moves if "= s8[" not in move] == [], program.name
        if program.name.startswith("forward"):
            assert kernel in compiled.as_text(), program.name


@pytest.mark.parametrize("generation", rare_but(tpu.ONE_CHIP, {"tpu7x"}))
def test_embedded_model_on_one_chip(generation):
    config = json.loads((Path(checkpoint_path()) / "config.json").read_text())
    devices = tpu.devices(generation, count=1)
    check(space(config, devices))


@pytest.mark.slow
@pytest.mark.parametrize(("generation", "chips"), [("v6e", 1), pytest.param("v5e", 4, marks=pytest.mark.rare)])
def test_a_model_drafts_for_another_in_place(generation, chips):
    plain = space(QWEN, tpu.devices(generation, count=chips))
    keeps = (*plain.graph.cache, *plain.graph.cache)
    whole = dataclasses.replace(
        plain,
        grid=Grid([Bucket(8, 4)]),
        cache=lay_out(keeps, max_model_len=512),
        num_drafts=3,
        draft=DraftSpace(graph=plain.graph, parameters=plain.parameters, as_draft=WholeModel),
    )
    pools = [shard_shape(pages) for pages in whole.kv_pages]
    programs = {program.name: program for program in all_programs(whole)}
    for name in ("place 8x4", "draft 8x4", "sample 64 greedy", "sample 64 full"):
        compiled, _ = obtain(programs[name])
        if name.startswith("draft"):
            moves = [move for pool in pools for move in pool_moves(compiled, pool, itemsize=2)]
            assert moves == []
            assert "tpu_custom_call" in compiled.as_text()


@pytest.mark.parametrize(
    ("generation", "chips"),
    [
        ("v6e", 1),
        pytest.param("v5e", 1, marks=pytest.mark.rare),
        pytest.param("v5e", 4, marks=pytest.mark.rare),
        pytest.param("v6e", 4, marks=pytest.mark.rare),
    ],
)
def test_int8_matrices_are_multiplied_as_integers(generation, chips):
    whole = space(QWEN, tpu.devices(generation, count=chips), quantization="int8", lm_head_dtype="int8")
    if chips > 1:  # so many that devices split the residual stream
        whole = dataclasses.replace(whole, grid=Grid([Bucket(8, 1), Bucket(8, 64)]))
    check(whole)
    matrices = sum(struct.dtype == jnp.int8 for path, struct in whole.parameters.items() if path.endswith(".weight"))
    table = shard_shape(whole.parameters["embed.table"])
    programs = all_programs(whole)
    many, *_, few = (program for program in programs if program.name.startswith("forward"))
    sample = next(program for program in programs if program.name.startswith("sample"))
    for program, count, by_kernel in ((many, matrices, True), (few, matrices, False), (sample, 1, False)):
        text = obtain(program)[0].as_text()
        # a product is a convolution to this compiler, in a fusion that may be of two
        of_xla = re.findall(r"s32\[[^]]*\]\S* (?:convolution|dot)\(", text)
        of_kernel = [line for line in text.splitlines() if "tpu_custom_call" in line and "int8_matmul" in line]
        assert [len(of_xla), len(of_kernel)] == ([0, count] if by_kernel else [count, 0]), program.name
        sent = re.findall(r"= (\w+)\[([\d,]+)\]\S* (?:all-gather|all-reduce|all-to-all)\(", text)
        assert not [shape for dtype, shape in sent if dtype == "s32" and math.prod(map(int, shape.split(","))) > 4096]
        if program is many and chips > 1:  # rows are rounded before they are sent, once for all that read them
            assert sum(dtype == "s8" for dtype, _ in sent) == 4 * QWEN["num_hidden_layers"]
            assert "bf16" not in {dtype for dtype, shape in sent if shape == "512,512"}
        for rows, columns in ((512, 1024), table):  # nor made wide on the way
            assert not re.findall(rf"(?:bf16|f32)\[{rows},{columns}\]\S* convert\(", text), program.name
    assert program.name.endswith("greedy")
    assert obtain(program)[0].memory_analysis().temp_size_in_bytes < math.prod(table) // 2


@pytest.mark.parametrize(
    ("generation", "chips", "kv_dtype"),
    [
        ("v6e", 1, "int8"),
        *(
            pytest.param(generation, chips, kv_dtype, marks=pytest.mark.rare)
            for generation, chips in (("v5e", 1), ("v6e", 4), ("tpu7x", 1))
            for kv_dtype in ("int8", "float8_e4m3fn", "float8_e5m2")
        ),
    ],
)
def test_quantised_caches_are_written_and_read_in_place(generation, chips, kv_dtype):
    check_quantised(space(QWEN, tpu.devices(generation, count=chips), kv_dtype=kv_dtype), chips)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("generation", "chips", "kv_dtype"),
    [("v6e", 1, "int8"), pytest.param("v5e", 4, "float8_e4m3fn", marks=pytest.mark.rare)],
)
def test_quantised_latents_are_written_and_read_in_place(generation, chips, kv_dtype):
    devices = tpu.devices(generation, count=chips)
    check_quantised(space(DEEPSEEK, devices, kv_dtype=kv_dtype), chips)


def check_quantised(whole: ProgramSpace, chips: int) -> None:
    """As `check`, and what measures scales leaves the cache where it is."""
    check(whole)
    [pages], [pool] = whole.kv_pages, whole.cache.pools
    ids = jax.ShapeDtypeStruct((4,), jnp.int32, sharding=whole.replicated)
    looking = calibration.magnitudes.trace(pages, ids, pool=pool, devices=chips, kv_dtype=whole.kv_dtype)
    compiled = looking.lower(lowering_platforms=("tpu",)).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < math.prod(shard_shape(pages)) // 8


@pytest.mark.parametrize(("generation", "chips"), [("v6e", 1), pytest.param("v6e", 4, marks=pytest.mark.rare)])
def test_heads_of_two_shapes_are_in_two_pools(generation, chips):
    """As in Gemma 4: 256 channels where layers see a window, 512 where they see everything."""
    changes = {
        "hidden_size": 512,
        "head_dim": 256,
        "intermediate_size": 1024,
        "vocab_size": 4096,
        "torch_dtype": "bfloat16",
    }
    with two_shapes.known():
        whole = space({**two_shapes.CONFIG, **changes}, tpu.devices(generation, count=chips))
    assert [pool.key for pool in whole.cache.pools] == [512, 256]
    check(whole)


@pytest.mark.slow
@pytest.mark.parametrize("generation", rare_but(tpu.FOUR_CHIPS, {"v5p"}))
def test_qwen3_on_four_chips_with_repeated_kv_heads(generation):
    devices = tpu.devices(generation, count=4)
    check(space(QWEN, devices))


@pytest.mark.slow
@pytest.mark.rare
def test_llama_with_tied_embeddings_on_four_chips():
    devices = tpu.devices("v6e", count=4)
    # a vocabulary whose counts no chip's own memory holds, as with the pages: what is copied there is no copy of the state
    check(space({**LLAMA, "head_dim": 64, "hidden_size": 256, "vocab_size": 4096, "torch_dtype": "bfloat16"}, devices))


def test_no_logits_are_gathered_where_a_reduction_serves():
    devices = tpu.devices("v6e", count=4)
    whole = space(QWEN, devices)
    for program in all_programs(whole):
        if program.name.startswith("sample"):
            compiled, _ = obtain(program)
            gathered = re.findall(r"f32\[\d+,4096\]\S* all-gather\(", compiled.as_text())
            assert not gathered, program.name


def test_no_matrix_is_brought_to_fast_memory_for_the_next_run():
    few = Bucket(8, 1)
    whole = dataclasses.replace(space(QWEN, tpu.devices("v6e", count=1)), grid=Grid([few]))
    compiled, _ = obtain(forward_programs(whole, few)[0])
    assert "cross_program_prefetch" not in compiled.as_text()


@pytest.mark.slow
def test_devices_split_the_residual_stream_of_many_tokens():
    """Sums go where tokens are, in the model's own type, and are gathered before they are read; few tokens are all-reduced."""
    whole = dataclasses.replace(space(QWEN, tpu.devices("v5e", count=4)), grid=Grid([Bucket(8, 1), Bucket(8, 64)]))
    many, few = (obtain(forward_programs(whole, bucket)[0])[0].as_text() for bucket in whole.grid.buckets)
    assert "all-gather" in many
    assert not re.findall(r"f32\[\d+,512\]\S* (?:all-reduce|reduce-scatter)\(", many)
    assert "all-gather" not in few


@pytest.mark.slow
def test_four_devices_compute_beside_what_they_send_of_many_tokens():
    """Nothing of a layer is gathered or scattered at once: parts are sent while others are multiplied."""
    many = Bucket(8, 256)
    whole = dataclasses.replace(space(QWEN, tpu.devices("v6e", count=4)), grid=Grid([many]))
    text = obtain(forward_programs(whole, many)[0])[0].as_text()
    assert not re.findall(r"\[2048,512\]\S* (?:all-gather|reduce-scatter)\(", text)
    started = re.findall(r"%([\w.-]+) = \S.* collective-permute-start\(", text)
    assert len(started) >= 2 * 20, "two gathers of 4 and two sums of 6 a layer"
    [entry] = re.findall(r"^ENTRY .*?^}", text, re.M | re.S)
    beside = [
        re.search(rf"%{re.escape(name)} = .*?collective-permute-done\([^\n]*%{re.escape(name)}\b", entry, re.S)
        for name in started
    ]
    hidden = [one for one in beside if one and " fusion(" in one[0]]
    assert len(hidden) >= len(started) / 2


@pytest.mark.parametrize(("generation", "chips"), [("v6e", 4), pytest.param("v5e", 1, marks=pytest.mark.slow)])
def test_snapshots_of_states_are_copied_in_place(generation, chips):
    """Nothing but one slot's states moves, from one array that lies where it lay to another."""
    config = Fixture.load("qwen3-next").config
    whole = dataclasses.replace(space(config, tpu.devices(generation, count=chips)), num_snapshots=MANY_PAGES)
    one = slot_bytes(whole.snapshots) // (1 + MANY_PAGES)
    programs = list(snapshot_programs(whole))
    assert [program.name for program in programs] == list(snapshot_names(whole))
    for program in programs:
        compiled, _ = obtain(program)
        memory = compiled.memory_analysis()
        assert memory.alias_size_in_bytes >= slot_bytes(program.arguments[0]), program.name
        assert memory.temp_size_in_bytes <= 64 * one, program.name
        assert not re.findall(r"(?:all-gather|all-reduce|all-to-all|collective-permute)\(", compiled.as_text())


@pytest.mark.parametrize(("generation", "chips"), [("v6e", 4), pytest.param("v5e", 1, marks=pytest.mark.slow)])
def test_snapshots_of_states_move_to_the_host_and_back_in_place(generation, chips):
    config = Fixture.load("qwen3-next").config
    whole = space(config, tpu.devices(generation, count=chips))
    whole = dataclasses.replace(whole, num_snapshots=MANY_PAGES, host_blocks=(*whole.host_blocks, 4))
    one = slot_bytes(whole.snapshots) // (1 + MANY_PAGES)
    *_, to_host, from_host = move_programs(whole)
    assert [to_host.name, from_host.name] == ["states to host", "states from host"]
    for program, written in ((to_host, 0), (from_host, slot_bytes(whole.snapshots))):
        compiled, _ = obtain(program)
        memory = compiled.memory_analysis()
        assert memory.alias_size_in_bytes >= written, program.name
        assert memory.temp_size_in_bytes <= 64 * one, program.name
        assert not re.findall(r"(?:all-gather|all-reduce|all-to-all|collective-permute)\(", compiled.as_text())
