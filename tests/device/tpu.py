"""Compile-only TPU devices: the real TPU compiler, without a TPU."""

from __future__ import annotations

import importlib.util
import os
from typing import Any

import pytest

# one chip needs its bounds spelled out; v4 and v5p join two cores to one device ("megacore")
ONE_CHIP = {
    "v4": ("v4:2x2x1", {"chip_config_name": "megacore"}),
    "v5e": ("v5e:1x1", {"chips_per_host_bounds": (1, 1, 1)}),
    "v5p": ("v5p:2x2x1", {}),
    "v6e": ("v6e:1x1", {"chips_per_host_bounds": (1, 1, 1)}),
    "tpu7x": ("tpu7x:1x1x1", {"chips_per_host_bounds": (1, 1, 1)}),
}
FOUR_CHIPS = {
    "v4": ("v4:2x2x1", {"chip_config_name": "megacore"}),
    "v5e": ("v5e:2x2", {}),
    "v5p": ("v5p:2x2x1", {}),
    "v6e": ("v6e:2x2", {}),
    "tpu7x": ("tpu7x:2x2x1", {}),
}


def devices(generation: str, *, count: int) -> list[Any]:
    """Compile-only devices of one TPU generation; skips where libtpu is not installed."""
    if importlib.util.find_spec("libtpu") is None:
        pytest.skip("needs libtpu: pip install -e '.[tpu]' (no TPU needed)")
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
    os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-4")
    os.environ.setdefault("TPU_LOG_DIR", "disabled")
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")  # test processes run side by side
    from jax.experimental.topologies import get_topology_desc

    name, options = (ONE_CHIP if count == 1 else FOUR_CHIPS)[generation]
    return list(get_topology_desc(platform="tpu", topology_name=name, **options).devices)[:count]
