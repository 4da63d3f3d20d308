"""Recorded traffic: when requests arrive, how long they are, and which prompts begin alike.

No trace has text. A prompt is a list of runs `(content, tokens)`: equal contents stand for equal tokens, so that prompts which
begin with the same runs share them in the prefix cache, as they did when they were recorded.
"""

from __future__ import annotations

import csv
import gzip
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import IO

MOONCAKE_BLOCK = 512
"""Tokens that one of Mooncake's hashes stands for."""
SHARED = 0
"""The content of tokens that were cached when a trace was recorded that does not say what they were."""
OWN = 1 << 28
"""Contents from here on are one request's own."""
CONTENTS = 1 << 30
"""More than any content."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request: seconds since the first one, its prompt as runs, the tokens of its output, and whose it is."""

    time_s: float
    runs: tuple[tuple[int, int], ...]
    output: int
    share: str = ""

    @property
    def prompt(self) -> int:
        """Tokens of the prompt."""
        return sum(tokens for _, tokens in self.runs)

    def token_ids(self) -> tuple[int, ...]:
        """The prompt as tokens: every token of a run is its content."""
        ids: list[int] = []
        for content, tokens in self.runs:
            ids += [content] * tokens
        return tuple(ids)


def read(source: str) -> list[Arrival]:
    """The requests of a trace file in order of arrival, or made ones (`random:COUNT:PROMPT:OUTPUT`, means in tokens)."""
    if source.startswith("random:"):
        count, prompt, output = map(int, source.split(":")[1:])
        return made(count, prompt, output)
    path = Path(source)
    with _open(path) as lines:
        rows = list(_azure(lines) if ".csv" in path.name else _json_lines(lines))
    first = min(row.time_s for row in rows)
    return sorted((replace(row, time_s=row.time_s - first) for row in rows), key=lambda row: row.time_s)


def made(count: int, prompt: int, output: int, *, rate: float = 10.0, seed: int = 0) -> list[Arrival]:
    """Independent requests at `rate` a second, with log-normal lengths as chats have them (sigma 1)."""
    chance = random.Random(seed)
    arrivals, now = [], 0.0
    for number in range(count):
        sizes = [max(1, round(mean * chance.lognormvariate(-0.5, 1))) for mean in (prompt, output)]
        arrivals.append(Arrival(now, ((OWN + number, sizes[0]),), sizes[1]))
        now += chance.expovariate(rate)
    return arrivals


def _open(path: Path) -> IO[str]:
    return gzip.open(path, "rt", newline="") if path.suffix == ".gz" else path.open(newline="")


def _azure(lines: IO[str]) -> Iterator[Arrival]:
    for number, row in enumerate(csv.DictReader(lines)):
        # Seven digits of a second are one more than datetime reads.
        time = datetime.fromisoformat(row["TIMESTAMP"][:26])
        prompt, output = max(1, int(row["ContextTokens"])), max(1, int(row["GeneratedTokens"]))
        yield Arrival(time.timestamp(), ((OWN + number, prompt),), output)


def _json_lines(lines: IO[str]) -> Iterator[Arrival]:
    """Mooncake's traces, what `--record-traffic` writes, and plain `{"prompt_tokens": ..., "output_tokens": ...}`."""
    for number, row in enumerate(map(json.loads, lines)):
        if "hash_ids" in row:
            yield _mooncake(row)
            continue
        prompt, cached = max(1, row["prompt_tokens"]), row.get("cached_tokens", 0)
        runs = ((SHARED, cached), (OWN + number, prompt - cached))
        yield Arrival(row.get("arrival_s", 0.0), tuple(run for run in runs if run[1]), max(1, row["output_tokens"]))


def _mooncake(row: dict[str, object]) -> Arrival:
    timestamp, hashes, left, output = (row[name] for name in ("timestamp", "hash_ids", "input_length", "output_length"))
    assert isinstance(timestamp, int | float)
    assert isinstance(hashes, list)
    assert isinstance(left, int)
    assert isinstance(output, int)
    runs = []
    for content in hashes:
        if left <= 0:
            break
        runs.append((1 + content, min(MOONCAKE_BLOCK, left)))
        left -= MOONCAKE_BLOCK
    return Arrival(timestamp / 1000, tuple(runs), max(1, output))
