"""What a benchmark ran on: recorded in every result, because a number without its machine says nothing."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

from jaxengine.tools.doctor import package_version

PACKAGES = ("jaxengine", "jax", "jaxlib", "flax", "numpy", "libtpu")


def describe() -> dict[str, Any]:
    """Processor, cores, memory, Python and package versions of this machine."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "load_average_1m": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "versions": {name: version for name in PACKAGES if (version := package_version(name)) is not None},
    }


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
