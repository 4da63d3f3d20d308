"""The real TPU compiler takes the programs of each stage, for devices of its own, and writes pages in place."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import pytest

from jaxengine.device.runtime.forward_programs import between, forward_programs, hidden_struct
from jaxengine.device.runtime.memory import shard_bytes
from jaxengine.device.runtime.programs import all_passages, sample_programs
from jaxengine.device.runtime.snapshots import snapshot_programs
from jaxengine.device.runtime.target import find_target
from jaxengine.options.config import EngineConfig
from jaxengine.startup.pool import plan_space
from jaxengine.startup.prepare import prepare
from jaxengine.startup.progress import Progress
from tests.targets.test_tpu_compile import QWEN
from tests.targets.tpu import available

pytestmark = [pytest.mark.tpu_compile, pytest.mark.slow]


@pytest.mark.parametrize("tensor", [pytest.param(1, marks=pytest.mark.rare), 2])
def test_each_stage_compiles_for_its_chips(tensor: int, tmp_path: Path) -> None:
    available("v6e-4")
    (tmp_path / "config.json").write_text(json.dumps({**QWEN, "num_hidden_layers": 3}))
    config = EngineConfig.from_options(
        model=str(tmp_path / "config.json"),
        pipeline_parallel_size=2,
        tensor_parallel_size=tensor,
        max_num_seqs=16,
        max_model_len=512,
        num_pages=4096,
        bucket_planner="explicit",
        buckets=("16x64",),
    )
    space = plan_space(prepare(config, Progress(), target=find_target("v6e-4")), measure=False).space
    [bucket] = space.grid.buckets
    programs = forward_programs(space, bucket)
    assert [program.name for program in programs] == [f"forward {bucket} stage 0", f"forward {bucket} stage 1"]
    assert not set(programs[0].devices) & set(programs[1].devices)
    assert [len(view.layers) for view in space.views] == [2, 1]
    for program, view in zip(programs, space.views, strict=True):
        compiled = program.lower().compile(compiler_options=dict(program.compiler_options))
        assert compiled.memory_analysis().alias_size_in_bytes >= sum(map(shard_bytes, view.kv_pages))
        assert "tpu_custom_call" in compiled.as_text()
        if not view.ends:
            sent, *_ = compiled.output_shardings
            stream, _ = between(view, bucket.tokens)
            assert sent.is_equivalent_to(stream.sharding, len(stream.shape))
    sampling = sample_programs(space, hidden_struct(space))[0]
    assert sampling.devices == programs[-1].devices
    sampling.lower().compile(compiler_options=dict(sampling.compiler_options))
    assert list(snapshot_programs(space)) == []
    assert all(struct.sharding.mesh.devices.size == tensor for struct in jax.tree.leaves(space.parameters))


@pytest.mark.parametrize(("stages", "tensor"), [(4, 4), (2, 8)])
def test_what_passes_between_hosts_compiles_for_both(stages: int, tensor: int, tmp_path: Path) -> None:
    available("v6e-16")
    (tmp_path / "config.json").write_text(json.dumps({**QWEN, "num_hidden_layers": 4}))
    config = EngineConfig.from_options(
        model=str(tmp_path / "config.json"),
        pipeline_parallel_size=stages,
        tensor_parallel_size=tensor,
        max_num_seqs=16,
        max_model_len=512,
        num_pages=4096,
        bucket_planner="explicit",
        buckets=("16x64",),
    )
    space = plan_space(prepare(config, Progress(), target=find_target("v6e-16")), measure=False).space
    programs = [program for passage in all_passages(space) for program in passage.programs()]
    assert [program.name for program in programs][-1] == "tokens to stage 0"
    assert len(programs) == stages
    for program in programs:
        assert len(program.devices) == 2 * tensor
        compiled = program.lower().compile(compiler_options=dict(program.compiler_options))
        assert "collective-permute" in compiled.as_text()
        for given, made in zip(compiled.input_shardings[0], compiled.output_shardings, strict=True):
            assert made.is_equivalent_to(given, 2)
