"""What is said of this machine's devices."""

from __future__ import annotations

from types import SimpleNamespace

import jax
import pytest

from jaxengine.errors import ConfigError
from jaxengine.runtime import target


@pytest.mark.parametrize("gibibytes", [3.3, 6.1, 7.4, 17.6, 100.0])
def test_a_little_more_or_less_memory_plans_the_same_pool(gibibytes, monkeypatch):
    size = int(gibibytes * 2**30)
    assert size * 7 / 8 <= target.steady(size) <= size
    pools = set()
    for change in (-0.01, 0.0, 0.01):
        monkeypatch.setattr(target, "host_memory_bytes", lambda available=int(size * (1 + change)): available)
        pools.add(target.device_memory_bytes(jax.devices()[0]))
    assert len(pools) == 1


def test_small_sizes_are_left_alone():
    assert [target.steady(size) for size in range(8)] == list(range(8))


def test_a_device_that_is_not_there_is_told_in_words(monkeypatch):
    def fail():
        raise AssertionError

    target.choose_device("cpu")
    with pytest.raises(ConfigError, match="'tpu' comes too late: this process has begun to use JAX on cpu"):
        target.choose_device("tpu")
    target.choose_device("cpu")
    monkeypatch.setattr(jax, "devices", fail)
    with pytest.raises(ConfigError, match=r"no device of the platform that was asked for \(cpu\): its plugin"):
        target.choose_device("auto")
    monkeypatch.setattr(jax, "devices", lambda: [SimpleNamespace(platform="neuron")])
    with pytest.raises(ConfigError, match="of platform 'neuron'; built are tpu, gpu, cpu"):
        target.choose_device("auto")
