"""Sets of instructions that C++ can be built for on this machine."""

from __future__ import annotations

from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")
_FLAGS = set(_CPUINFO.read_text().split()) if _CPUINFO.exists() else set()
_NEEDED = {
    "x86-64": {"sse2"},
    "x86-64-v3": {"avx2", "fma"},
    "x86-64-v4": {"avx512f", "avx512bw", "avx512dq", "avx512vl"},
}
INSTRUCTIONS = [name for name, needed in _NEEDED.items() if needed <= _FLAGS]
"""By GCC's names."""
