"""Several engines on one GPU in one go: started side by side, which is what takes the time, and measured one after the other.

    python -m benchmarks.limits_in_turn OUT \\
        "bf16 0.5 --config llama.json --dtype bfloat16 --sequences 1 16 64 256 --traces" \\
        "int4 0.2 --config llama.json --dtype bfloat16 --sequences 1 16 64 --engine-options '{\\"quantization\\":\\"int4\\"}'" \\
        "temps 0.2 XLA_FLAGS=--xla_gpu_temp_buffer_use_separate_color=true --config llama.json --dtype bfloat16"

Each is a name, the share of the device's memory that it may take, variables of the environment if there are any, and options of
`benchmarks.limits`. `OUT` gets what each prints, NAME.json, and its log. An engine that fails is left out; the others go on.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import threading
from contextlib import suppress
from itertools import dropwhile
from pathlib import Path

from tqdm import tqdm


class Engine:
    """A process of `benchmarks.limits`, which says that it is ready and then waits for its turn."""

    def __init__(self, out: Path, given: str) -> None:
        self.name, share, *rest = shlex.split(given)
        options = list(dropwhile(lambda word: not word.startswith("-"), rest))
        variables = dict(word.split("=", 1) for word in rest[: len(rest) - len(options)])
        self._report = (out / f"{self.name}.json").open("w")
        self._log = (out / f"{self.name}.log").open("w")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.limits", "--wait", "--alike-layers", *options],
            stdin=subprocess.PIPE,
            stdout=self._report,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "XLA_PYTHON_CLIENT_MEM_FRACTION": share, **variables},
        )
        self._ready = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._log.write(line)
            self._log.flush()
            if line == "ready\n":
                self._ready.set()
        self._ready.set()  # it has ended

    def wait_until_ready(self) -> None:
        """Or has failed."""
        self._ready.wait()

    def measure(self) -> bool:
        """Let it measure; whether it did."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it has failed
            self.process.stdin.write("\n")
            self.process.stdin.flush()
        return self.process.wait() == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("engines", nargs="+", metavar='"NAME SHARE [VARIABLE=VALUE ...] OPTIONS"')
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    engines = [Engine(given.out, engine) for engine in given.engines]
    for engine in tqdm(engines, desc="starting", unit="engine"):
        engine.wait_until_ready()
    failed = [engine.name for engine in tqdm(engines, desc="measuring", unit="engine") if not engine.measure()]
    if failed:
        raise SystemExit(f"these failed, and their logs in {given.out} say why: {', '.join(failed)}")


if __name__ == "__main__":
    main()
