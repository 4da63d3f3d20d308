"""Runs the parts of a report, each in a process of its own, one after the other."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from jaxengine.bench.report.privacy import cleaned

PARTS = ("devices", "kernels", "parity", "speed", "starts")
LIMIT_S = {"devices": 300.0, "kernels": 3600.0, "parity": 900.0, "speed": 1800.0}
MOST_CRASHES = 20
START = {"max_num_seqs": 8, "max_num_batched_tokens": 128, "max_model_len": 512}

Say = Callable[[str], None]


def report(parts: Sequence[str] = PARTS, *, quick: bool, say: Say = lambda line: None) -> dict[str, Any]:
    """The whole report, without anything that tells where it was made."""
    found: dict[str, Any] = {"report": 1, "quick": quick}
    for part in parts:
        begun = time.perf_counter()
        say(f"{part} ...")
        found[part] = _starts(quick) if part == "starts" else _gathered(part, quick)
        found[f"{part}_s"] = round(time.perf_counter() - begun, 1)
        say(f"{part}: {found[f'{part}_s']} s")
    result: dict[str, Any] = cleaned(found)
    return result


def _gathered(part: str, quick: bool) -> Any:
    """What a part told. One that crashes goes on behind what it crashed in, where its lines are numbered."""
    rows: list[Any] = []
    after = 0
    for _ in range(MOST_CRASHES):
        under_way: Mapping[str, Any] | None = None
        for line in _lines([part, *(["quick"] if quick else []), str(after)], LIMIT_S[part]):
            if "begins" in line:
                under_way = line["begins"]
                continue
            rows.append(line)
            under_way = None if line.get("number") == (under_way or {}).get("number") else under_way
        if not rows or "crash" not in rows[-1]:
            break
        rows[-1] |= under_way or {}
        if under_way is None or "number" not in under_way:
            break
        after = under_way["number"] + 1
    return rows if part in ("kernels", "speed") else rows[0] if rows else None


def _lines(words: Sequence[str], limit_s: float) -> Iterator[dict[str, Any]]:
    """The lines that a part prints, and a last one where it did not end as it should."""
    command = [sys.executable, "-m", "jaxengine.bench.report.parts", *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s)
        output, error, status = done.stdout, done.stderr, done.returncode
    except subprocess.TimeoutExpired as expired:
        output, error, status = _text(expired.stdout), "", None
    for line in output.splitlines():
        try:
            found = json.loads(line)
        except ValueError:
            continue  # of a library that prints
        if isinstance(found, dict):
            yield found
    if status != 0:
        last = error.strip().splitlines()[-1:] or [""]
        yield {"outcome": "crashes", "crash": "it took too long" if status is None else f"status {status}: {last[0]}"}


def _text(output: bytes | str | None) -> str:
    return output.decode(errors="replace") if isinstance(output, bytes) else output or ""


def _starts(quick: bool) -> Any:
    """Seconds to the first token, with nothing kept and with programs kept."""
    from jaxengine.bench.startup import startup
    from jaxengine.errors import JaxEngineError

    try:
        return startup(START, cold=1, warm=1 if quick else 3)
    except JaxEngineError as error:
        return {"error": str(error).splitlines()[-1]}


def counts(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """How many cases came to what, by op and backend."""
    found: dict[str, dict[str, int]] = {}
    for row in rows:
        of_backend = found.setdefault(f"{row.get('op', '?')} {row.get('backend', '?')}", {})
        of_backend[row["outcome"]] = of_backend.get(row["outcome"], 0) + 1
    return found
