"""Starts of an engine, each in a process of its own: with nothing kept, and with what the one before kept."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tqdm import tqdm

from jaxengine.bench.figures import percentile
from jaxengine.errors import ConfigError, JaxEngineError

PERCENTILES = (50.0, 90.0, 99.0)


def first_token(options: Mapping[str, Any], environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Seconds of one start by phase (`first_token.py`).

    Raises:
        JaxEngineError: the process ended with an error, whose last lines it gives.
    """
    spawned = str(time.clock_gettime(time.CLOCK_MONOTONIC))
    done = subprocess.run(
        [sys.executable, "-m", "jaxengine.bench.first_token", spawned, json.dumps(dict(options))],
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise JaxEngineError("a start failed:\n" + "\n".join(done.stderr.splitlines()[-5:]))
    report: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return report


def startup(options: Mapping[str, Any], *, cold: int, warm: int) -> dict[str, Any]:
    """`cold` starts with an empty cache of programs each, then `warm` ones with a full one; seconds until the first token.

    Without cold ones a start that is not counted fills the cache.

    Raises:
        ConfigError: no start is asked for, or fewer.
        JaxEngineError: a start failed.
    """
    if min(cold, warm) < 0 or cold + warm == 0:
        raise ConfigError(f"starts must be 0 or more, cold or warm, and 1 in all; got {cold} cold and {warm} warm")
    starts: dict[str, list[dict[str, Any]]] = {"cold": [], "warm": []}
    with tempfile.TemporaryDirectory() as scratch, tqdm(total=max(cold, 1) + warm, unit="start") as bar:
        for number in range(max(cold, 1)):
            kept = {"xla_cache_path": str(Path(scratch) / str(number))}
            report = first_token({**options, **kept})
            if cold:
                starts["cold"].append(report)
            bar.update()
        for _ in range(warm):
            starts["warm"].append(first_token({**options, **kept}))
            bar.update()
    figures: dict[str, Any] = {}
    for kind, reports in starts.items():
        seconds = [report["first_token_s"] for report in reports]
        if seconds:
            figures[f"avg_{kind}_startup_time"] = round(sum(seconds) / len(seconds), 3)
            figures |= {
                f"p{share:g}_{kind}_startup_time": round(percentile(seconds, share), 3) for share in PERCENTILES
            }
            figures[f"avg_{kind}_compilation_time"] = round(
                sum(report["phases_s"].get("compile", 0.0) for report in reports) / len(reports), 3
            )
    return {**figures, "starts": starts}
