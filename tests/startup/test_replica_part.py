"""A replica's part of a machine: no device and no core is two replicas', and none is left over."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxengine.errors import ConfigError
from jaxengine.options.config import EngineConfig
from jaxengine.startup import replica_part
from jaxengine.startup.replica_part import part_of_cores, part_of_devices, take_part, visible


@given(st.integers(1, 9), st.lists(st.integers(0, 99), min_size=1, max_size=40, unique=True))
def test_cores_are_parted(count: int, cores: list[int]) -> None:
    parts = [part_of_cores(index, count, cores) for index in range(count)]
    assert all(parts)
    assert set(chain(*parts)) <= set(cores)
    if len(cores) >= count:
        assert list(chain(*parts)) == cores
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


@given(st.integers(1, 8), st.integers(1, 8), st.integers(0, 70))
def test_devices_are_parted_or_there_are_too_few(count: int, each: int, there: int) -> None:
    devices = [f"GPU-{number}" for number in range(there)]
    if count * each > there:
        with pytest.raises(ConfigError, match=f"need {count * each} devices, and this machine has {there}"):
            part_of_devices(0, count, each, devices)
        return
    parts = [part_of_devices(index, count, each, devices) for index in range(count)]
    assert list(chain(*parts)) == devices[: count * each]


def test_what_a_process_sees_of_gpus_and_chips() -> None:
    assert visible("gpu", ["2", "3"], 1) == {"CUDA_VISIBLE_DEVICES": "2,3"}
    chips = visible("tpu", ["4", "5", "6", "7"], 1)
    assert chips["TPU_VISIBLE_CHIPS"] == "4,5,6,7"
    assert chips["TPU_CHIPS_PER_PROCESS_BOUNDS"] == "2,2,1"
    assert chips["TPU_PROCESS_BOUNDS"] == "1,1,1"
    assert chips["TPU_PROCESS_PORT"] != visible("tpu", ["0"], 0)["TPU_PROCESS_PORT"]
    with pytest.raises(ConfigError, match=r"1, 2, 4, 8 chips of a TPU host, not 3"):
        visible("tpu", ["0", "1", "2"], 0)


def test_gpus_are_those_that_the_server_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a, GPU-b,GPU-c,GPU-d")
    config = EngineConfig.from_options(device="gpu", dp=2, tp=2, data_parallel_rank=1)
    assert take_part(config.parallel) == "replica 1 has GPUs GPU-c, GPU-d"
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-c,GPU-d"


def test_the_platform_is_told_as_jax_would_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_part, "_is_installed", lambda name: name == "jax_cuda12_plugin")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    for device, environment, platform in [
        ("auto", "", "gpu"),
        ("auto", "cpu", "cpu"),
        ("auto", "cuda,cpu", "gpu"),
        ("cpu", "", "cpu"),
        ("cuda", "", "gpu"),
        ("tpu", "cpu", "tpu"),
    ]:
        monkeypatch.setenv("JAX_PLATFORMS", environment)
        assert replica_part._platform(device) == platform
    monkeypatch.setenv("JAX_PLATFORMS", "")
    monkeypatch.setattr(replica_part, "_is_installed", lambda name: False)
    assert replica_part._platform("auto") == "cpu"


def test_whoever_is_alone_has_the_machine() -> None:
    before = os.sched_getaffinity(0)
    assert take_part(EngineConfig().parallel) is None
    assert take_part(EngineConfig.from_options(dp=8, data_parallel_rank=3, data_parallel_size_local=1).parallel) is None
    assert os.sched_getaffinity(0) == before


CORES = """
import os
from jaxengine.options.config import EngineConfig
from jaxengine.startup.replica_part import take_part
before = sorted(os.sched_getaffinity(0))
parallel = EngineConfig.from_options(device="cpu", dp=len(before), data_parallel_rank=len(before) - 1).parallel
take_part(parallel)
import jax, jax.numpy as jnp
jnp.ones((300, 300)).dot(jnp.ones((300, 300))).block_until_ready()
names = [open(f"/proc/self/task/{task}/comm").read().strip() for task in os.listdir("/proc/self/task")]
from xla_cache import available_cores
print(len(os.sched_getaffinity(0)), names.count("tf_XLAEigen"), available_cores())
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")
def test_xla_has_as_many_threads_as_the_replica_has_cores() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}  # of eight devices here
    command = [sys.executable, "-c", CORES]
    printed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=120)
    assert printed.stdout.split() == ["1", "1", "1"]
