"""Bundles are built for machines that are not here, from config.json alone, and a second build finds the first one's work."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jaxengine import cli
from jaxengine.device.runtime.programs import all_programs
from jaxengine.device.runtime.target import find_target
from jaxengine.errors import ConfigError
from jaxengine.options.config import EngineConfig
from jaxengine.startup.bundle import adopt, bundle_pool
from jaxengine.startup.pool import plan_space
from jaxengine.startup.prepare import prepare
from jaxengine.startup.program_context import program_context
from jaxengine.startup.progress import Progress
from jaxengine.tools.compile_ahead import compile_ahead
from tests.integration.engines import SMALL, write_config
from tests.targets.tpu import available
from xla_cache import Bundle, ProgramCache, require_same

pytestmark = pytest.mark.usefixtures("quick_engines")

OPTIONS = {name: value for name, value in SMALL.items() if name not in ("load_format", "skip_tokenizer_init")}
PROGRAMS = 8
# Each of the two forward passes is three programs there, and sampling with every option two.
CPU_PROGRAMS = PROGRAMS + 2 * 2 + 1


def config(directory: Path, **options: object) -> EngineConfig:
    model = write_config(directory / "model", head_dim=128, hidden_size=128, torch_dtype="bfloat16")
    store = str(directory / "store")
    return EngineConfig.from_options(model=str(model), xla_cache_path=store, **{**OPTIONS, **options})


def test_a_bundle_for_this_machine_and_again(tmp_path, caplog):
    manifest = compile_ahead(config(tmp_path), "local", tmp_path / "bundle")
    assert len(manifest.records) == CPU_PROGRAMS
    assert Bundle.open(tmp_path / "bundle").verify() == []
    with caplog.at_level("INFO", logger="jaxengine"):
        again = compile_ahead(config(tmp_path), "local", tmp_path / "bundle")
    assert [record.file for record in again.records] == [record.file for record in manifest.records]
    said = [record.message for record in caplog.records]
    assert sum("was there" in line for line in said) == CPU_PROGRAMS
    assert any("ETA" in line for line in said)


@pytest.mark.slow
def test_a_single_file(tmp_path):
    manifest = compile_ahead(config(tmp_path, buckets=("1x16", "4x1")), "cpu", tmp_path / "bundle.zip")
    bundle = Bundle.open(tmp_path / "bundle.zip")
    assert bundle.verify() == []
    assert bundle.manifest.records == manifest.records


@pytest.mark.tpu_compile
@pytest.mark.parametrize(("name", "devices"), [("v6e-1", 1), ("v5e-4", 4)])
def test_a_bundle_for_a_tpu_that_is_not_here(tmp_path, name, devices):
    available(name)
    given = config(tmp_path, tensor_parallel_size=devices)
    manifest = compile_ahead(given, name, tmp_path / "bundle")
    assert len(manifest.records) == PROGRAMS
    assert manifest.context["target.platform"] == "tpu"
    assert manifest.context["target.devices"] == str(devices)
    pool = manifest.description["pool"]["num_pages"] * 2 * 8 * 8 * 128 * 2 * 2 // devices
    for record in manifest.records:
        if record.program.startswith(("forward", "copy")):
            assert record.memory.alias >= pool // 2, "the donated pool is not written in place"


@pytest.mark.tpu_compile
@pytest.mark.rare
def test_a_bundle_for_the_hosts_of_a_slice(tmp_path: Path) -> None:
    """One build for all of them: a start that takes over its options and pool, as each host's does, finds every program."""
    available("v6e-16")
    model = write_config(
        tmp_path / "model", num_attention_heads=16, head_dim=128, hidden_size=2048, torch_dtype="bfloat16"
    )
    options = {**OPTIONS, "buckets": ("4x16",), "tensor_parallel_size": 16, "num_pages": 20}
    given = EngineConfig.from_options(model=str(model), **options)
    manifest = compile_ahead(given, "v6e-16", tmp_path / "bundle")
    assert (manifest.context["target.devices"], manifest.context["target.hosts"]) == ("16", "4")
    bundle = Bundle.open(tmp_path / "bundle")
    adopted, _ = adopt(given, bundle)
    prepared = prepare(adopted, Progress(), target=find_target("v6e-16"))
    cache = ProgramCache(program_context(prepared.model), bundle=bundle, require_bundle=True)
    require_same(bundle, cache.context, command="")
    programs = all_programs(plan_space(prepared, cache=cache, pool=bundle_pool(bundle)).space)
    assert {program.name for program in programs} == {record.program for record in manifest.records}
    assert all(bundle.find(cache.key(program)) is not None for program in programs)


def test_unknown_targets_and_too_many_devices_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="unknown target 'v6e-3'"):
        compile_ahead(config(tmp_path), "v6e-3", tmp_path / "bundle")
    available("v6e-1")
    with pytest.raises(ConfigError, match=r"target v6e-1 has 1 \(TPU v6 lite\)"):
        compile_ahead(config(tmp_path, tensor_parallel_size=4), "v6e-1", tmp_path / "bundle")


def test_the_command_spreads_over_the_whole_target(tmp_path, monkeypatch):
    available("v6e-4")
    seen = {}
    monkeypatch.setattr(
        "jaxengine.tools.compile_ahead.compile_ahead",
        lambda given, target, output: seen.update(given=given, target=target, output=output),
    )
    model = str(write_config(tmp_path) / "config.json")
    assert cli.main(["compile", model, "--target", "v6e-4", "--max-num-seqs", "4", "-o", str(tmp_path / "out")]) == 0
    assert seen["given"].parallel.tensor_parallel_size == 4
    assert seen["given"].scheduler.max_num_seqs == 4
    assert cli.main(["compile", model, "--target", "v6e-4", "--tp", "2", "-o", str(tmp_path / "out")]) == 0
    assert seen["given"].parallel.tensor_parallel_size == 2
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "llama"
