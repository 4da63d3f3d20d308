"""Targets have the names that users know; accelerators that this machine has not are compiled for all the same."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tests.targets.tpu import available
from xla_cache import target as target_module
from xla_cache.chips import CHIPS, GIB
from xla_cache.target import Target, TargetError, target, targets

NAMES = "local cpu v4-8 v5e-1 v5e-4 v5e-8 v5p-8 v6e-1 v6e-4 v6e-8 tpu7x-2 tpu7x-8 v5e-64 v6e-256 a100 h100 h200"


def test_the_names_that_users_know():
    known = [found.name for found in targets()]
    assert set(NAMES.split()) <= set(known)
    assert len(set(known)) == len(known)
    assert target("V6E-4") is target("v6e-4")


def test_an_unknown_name_gets_the_nearest():
    with pytest.raises(TargetError, match=r"unknown target 'v6e-5'\. Did you mean 'v6e-\d+'\? Known are .*v5e-64"):
        target("v6e-5")


def test_local_targets_are_this_machine():
    assert target("local").devices() == jax.devices()
    assert target("cpu").devices() == jax.devices("cpu")
    assert not target("cpu").compile_only
    fingerprint = target("cpu").fingerprint(1)
    assert fingerprint["target.platform"] == "cpu"
    assert fingerprint["target.devices"] == "1"


@pytest.mark.parametrize("name", ["v4", "v5e", "v5p", "v6e", "tpu7x", "a100", "h100", "h200"])
def test_chip_facts_are_plausible(name):
    chip = CHIPS[name]
    # a wrong unit would be off by a thousand
    assert 15 * GIB < chip.memory_bytes < 200 * GIB
    assert 0.5e12 < chip.memory_bandwidth < 10e12
    assert 100e12 < chip.matrix_flops < 3e15
    assert 1e9 < chip.clock_hz < 3e9
    assert chip.source


@pytest.mark.parametrize(
    ("name", "installed", "word"), [("v6e-4", "libtpu", "libtpu"), ("h200", "jax_cuda13_plugin", "CUDA plugin")]
)
def test_what_is_missing_is_said(monkeypatch, name, installed, word):
    monkeypatch.setattr(target_module.importlib.util, "find_spec", lambda package: None)
    found = target(name)
    assert word in found.missing
    with pytest.raises(TargetError, match=f"compile for {name} .*pip install"):
        found.devices()
    monkeypatch.setattr(
        target_module.importlib.util, "find_spec", lambda package: object() if package == installed else None
    )
    assert found.missing is None


TPUS = [found.name for found in targets() if found.platform == "tpu"]


@pytest.mark.tpu_compile
@pytest.mark.parametrize("name", TPUS)
def test_the_compiler_knows_every_tpu(name):
    found: Target = available(name)
    devices = found.devices()
    assert len(devices) == found.num_devices
    assert len({device.process_index for device in devices}) == found.num_hosts
    assert {(device.platform, device.device_kind) for device in devices} == {("tpu", found.chip.device_kind)}


@pytest.mark.tpu_compile
@pytest.mark.parametrize("name", ["v4-8", "v5e-1", "v5p-8", "v6e-1", "tpu7x-2"])
def test_memory_is_what_the_compiler_grants(name):
    found = available(name)
    mesh = Mesh(np.asarray(found.devices()[:1]), ("x",))
    too_large = jax.ShapeDtypeStruct((1 << 40,), jnp.int8, sharding=NamedSharding(mesh, PartitionSpec()))
    granted = f"{found.chip.memory_bytes / GIB:.2f}"
    with jax.set_mesh(mesh):
        lowered = jax.jit(lambda x: x + 1).trace(too_large).lower(lowering_platforms=("tpu",))
    with pytest.raises(jax.errors.JaxRuntimeError, match=rf"\({granted}G\)"):
        lowered.compile()


@pytest.mark.tpu_compile
def test_a_program_over_a_whole_target_compiles():
    found = available("v6e-8")
    mesh = Mesh(np.asarray(found.devices()), ("x",))
    rows = NamedSharding(mesh, PartitionSpec("x"))
    struct = jax.ShapeDtypeStruct((64, 128), jnp.bfloat16, sharding=rows)
    with jax.set_mesh(mesh):
        compiled = jax.jit(lambda x: x.T @ x).trace(struct).lower(lowering_platforms=("tpu",)).compile()
    assert "all-reduce" in compiled.as_text()
