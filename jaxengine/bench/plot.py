"""Latencies by request rate, as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxengine.errors import ConfigError


def draw(rows: Sequence[Mapping[str, Any]], metrics: Sequence[str], path: Path) -> None:
    """Median and highest percentile of each metric, by the requests that were answered per second.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError(
            "--plot needs matplotlib: pip install 'jaxengine[train]', or pip install matplotlib"
        ) from None
    figure = Figure(figsize=(4 * len(metrics), 3.5), layout="constrained")
    for number, metric in enumerate(metrics, start=1):
        axes = figure.add_subplot(1, len(metrics), number)
        ordered = sorted(
            (row for row in rows if f"median_{metric}_ms" in row), key=lambda row: row["request_throughput"]
        )
        rates = [row["request_throughput"] for row in ordered]
        for name in dict.fromkeys(
            key
            for row in ordered
            for key in row
            if key.endswith(f"_{metric}_ms") and key[0] in "mp" and "mean" not in key
        ):
            axes.plot(rates, [row[name] for row in ordered], marker="o", label=name.split("_")[0])
        axes.set(title=metric, xlabel="requests/s answered", ylabel="ms", ylim=(0, None))
        axes.legend()
    figure.savefig(path, dpi=150)
