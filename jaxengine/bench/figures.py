"""Figures of many measurements, under vLLM's names, and how they are shown and kept."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` percent of `values` lie, interpolated; `values` must not be empty."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * share / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def summary_ms(name: str, seconds: Sequence[float], percentiles: Sequence[float]) -> dict[str, float]:
    """`mean_NAME_ms`, `median_`, `std_` and `pNN_` of times in seconds; none of no times."""
    if not seconds:
        return {}
    found = {
        f"mean_{name}_ms": statistics.fmean(seconds),
        f"median_{name}_ms": statistics.median(seconds),
        f"std_{name}_ms": statistics.pstdev(seconds),
        **{f"p{share:g}_{name}_ms": percentile(seconds, share) for share in percentiles},
    }
    return {key: round(value * 1000, 3) for key, value in found.items()}


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows side by side, a line for each figure."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [[name, *(_shown(row.get(name)) for row in rows)] for name in names]
    widths = [max(len(line[column]) for line in cells) for column in range(len(rows) + 1)]
    return "\n".join(
        "  ".join(
            [line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))]
        )
        for line in cells
    )


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def write_json(path: Path, report: Mapping[str, Any]) -> None:
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.{os.getpid()}.part")
    beside.write_text(json.dumps(report, indent=2) + "\n")
    beside.replace(path)
