"""Headers of the CPU's C++ include what they use: each compiles by itself, so that no source depends on an order."""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax.ffi
import pytest

from pallas_kernels.native import FOLDER
from xla_cache.library import find_compiler

HEADERS = sorted(FOLDER.glob("*.h"))


@pytest.mark.slow
@pytest.mark.parametrize("instructions", ["native", "x86-64-v3"])
def test_each_compiles_alone(tmp_path: Path, instructions: str) -> None:
    def problems(header: Path) -> str:
        source = tmp_path / f"{header.stem}.cc"
        source.write_text(f'#include "{header.name}"\n')
        folders = ("-I", str(FOLDER), "-I", jax.ffi.include_dir())
        flags = ("-std=c++17", "-fsyntax-only", "-w", f"-march={instructions}", *folders)
        return subprocess.run((find_compiler().command[0], *flags, str(source)), capture_output=True, text=True).stderr

    if "march" in problems(FOLDER / "operands.h"):
        pytest.skip(f"this compiler does not know {instructions}")
    with ThreadPoolExecutor(2) as threads:
        assert [found for found in threads.map(problems, HEADERS) if found] == []
