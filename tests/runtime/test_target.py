"""What is said of this machine's devices."""

from __future__ import annotations

import jax
import pytest

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
