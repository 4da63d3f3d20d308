"""The CPU's C++ under sanitizers: drivers with threads of their own, each a program that is built and run."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from pallas_kernels.native import FOLDER
from tests.pallas_kernels.instructions import INSTRUCTIONS
from tests.quick import slow_but
from xla_cache.library import find_compiler

DRIVERS = sorted((Path(__file__).parent / "sanitized").glob("*.cc"))
FLAGS = (
    "-std=c++17",
    "-O1",
    "-g1",  # lines are what a report names; the places of variables take a fifth of the time
    "-ffp-contract=fast",
    "-pthread",
    "-w",
    "--param=asan-instrumentation-with-call-threshold=0",  # the same checks as calls, for half the code
)
# Checks of addresses, half the time of all: AddressSanitizer finds one outside of any object when it is used.
FOUND_BY_USE = "-fno-sanitize=null,object-size,pointer-overflow"


@pytest.mark.parametrize("driver", DRIVERS, ids=lambda path: path.stem)
@pytest.mark.parametrize(
    "way",
    slow_but(
        [
            ("address,undefined", "native"),
            *(("address,undefined", name) for name in INSTRUCTIONS),
            ("thread", "native"),
        ],
        (),
        often=[("address,undefined", "native")],
    ),
    ids=" ".join,
)
def test_they_find_nothing(tmp_path: Path, driver: Path, way: tuple[str, str]) -> None:
    """All types and odd extents, in buffers of exactly their size."""
    sanitizer, instructions = way
    program = tmp_path / "driver"
    sanitizing = (f"-fsanitize={sanitizer}", FOUND_BY_USE, "-fno-sanitize-recover=all")
    flags = (*FLAGS, f"-march={instructions}", *sanitizing, "-I", str(FOLDER))
    words = (find_compiler().command[0], *flags, str(driver), "-o", str(program))
    built = subprocess.run(words, capture_output=True, text=True)
    if built.returncode:
        assert not re.search(r"\.(cc|h):\d", built.stderr), built.stderr
        pytest.skip(f"this compiler has no {sanitizer} sanitizer or no {instructions}: {built.stderr[:200]}")
    ran = subprocess.run([str(program)], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert "all agree" in ran.stdout
