"""From the command to the first text of the embedded model: on a terminal, as somebody sees it, and into a pipe. JSON out.

    python -m benchmarks.first_text --rounds 10

Each round starts `jaxengine generate` twice for each, in processes of their own, with nothing kept and then with what the first
one kept. A terminal shows text as it comes; into a pipe goes the whole answer. `first_s` is when the first text behind the
prompt is read, `end_s` when the process has ended, by the clock.
"""

from __future__ import annotations

import argparse
import json
import os
import pty
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict

from tqdm import tqdm

from jaxengine.bench import machine

PROMPT = "Once upon a time"
BEHIND = 4
"""So many bytes behind the prompt are text, whatever a terminal is told in between."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    found = defaultdict[str, list[tuple[float, float]]](list)
    for _ in tqdm(range(rounds)):
        for where in ("terminal", "pipe"):
            with tempfile.TemporaryDirectory() as kept:
                for what in ("nothing kept", "programs kept"):
                    found[f"{where}, {what}"].append(start(kept, terminal=where == "terminal"))
    starts = {
        name: {
            "first_s": [first for first, _ in times],
            "end_s": [end for _, end in times],
            "median_first_s": round(statistics.median(first for first, _ in times), 2),
        }
        for name, times in found.items()
    }
    print(json.dumps({"benchmark": "first_text", "machine": machine.describe(), "starts": starts}, indent=1))


def start(kept: str, *, terminal: bool) -> tuple[float, float]:
    """Seconds until the first text, and until the end."""
    reading, writing = pty.openpty() if terminal else os.pipe()
    command = [sys.executable, "-m", "jaxengine", "generate", PROMPT, "--seed", "3"]
    begun = time.perf_counter()
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=writing,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "JAXENGINE_CACHE_DIR": kept},
    )
    os.close(writing)
    text, first = b"", 0.0
    while part := _read(reading):
        text += part
        _, _, answer = text.partition(PROMPT.encode())
        if not first and len(answer.strip()) >= BEHIND:
            first = time.perf_counter() - begun
    os.close(reading)
    if process.wait() or not first:
        raise SystemExit(f"{' '.join(command)} failed: {text.decode(errors='replace')}")
    return round(first, 2), round(time.perf_counter() - begun, 2)


def _read(reading: int) -> bytes:
    try:
        return os.read(reading, 1 << 16)
    except OSError:  # the other end of a terminal is closed
        return b""


if __name__ == "__main__":
    main()
