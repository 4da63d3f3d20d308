"""What is said of this machine's devices."""

from __future__ import annotations

import os
from types import SimpleNamespace

import jax
import pytest

from jaxengine.device.runtime import target
from jaxengine.errors import ConfigError


@pytest.mark.parametrize("gibibytes", [3.3, 6.1, 7.4, 17.6, 100.0])
def test_a_little_more_or_less_memory_plans_the_same_pool(gibibytes, monkeypatch):
    size = int(gibibytes * 2**30)
    assert size * 7 / 8 <= target.steady(size) <= size
    pools = set()
    for change in (-0.01, 0.0, 0.01):
        monkeypatch.setattr(target, "host_memory_bytes", lambda available=int(size * (1 + change)): available)
        pools.add(target.device_memory_bytes(jax.devices()))
    assert len(pools) == 1


def test_small_sizes_are_left_alone():
    assert [target.steady(size) for size in range(8)] == list(range(8))


def test_jax_may_have_most_of_a_gpu_unless_the_user_says_how_much(monkeypatch):
    new, old = target.MEMORY_FRACTIONS
    for given, expected in [({}, {new: "0.92"}), ({new: "0.5"}, {new: "0.5"}), ({old: "0.5"}, {old: "0.5"})]:
        for variable in target.MEMORY_FRACTIONS:
            monkeypatch.delenv(variable, raising=False)
        for variable, value in given.items():
            monkeypatch.setenv(variable, value)
        target.choose_device("cpu")
        assert {name: os.environ[name] for name in target.MEMORY_FRACTIONS if name in os.environ} == expected


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


@pytest.mark.parametrize(
    ("count", "stages", "expected"),
    [
        (4, 2, [4, 5, 6, 7, 0, 1, 2, 3]),
        (4, 1, [0, 1, 4, 5]),
        (2, 4, [4, 5, 6, 7, 0, 1, 2, 3]),
        (1, 2, [4, 0]),
    ],
)
def test_the_last_stage_lies_on_the_first_host(
    count: int, stages: int, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    devices = [
        SimpleNamespace(id=number, process_index=number // 4, platform="cpu", device_kind="cpu") for number in range(8)
    ]
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    there = SimpleNamespace(name="local", compile_only=False, devices=lambda: devices)
    assert [device.id for device in target.select_devices(count, there, stages=stages)] == expected  # type: ignore[arg-type]
