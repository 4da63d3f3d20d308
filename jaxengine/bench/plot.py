"""Latencies by request rate, and what shapes waste, as pictures."""

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
    figure = _figure(4 * len(metrics), 3.5)
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


def draw_grids(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Token places, real and padded, and seconds of the device, by grid.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    figure = _figure(9, 0.6 * len(rows) + 1.5)
    places, seconds = figure.subplots(1, 2, sharey=True)
    names = [f"{row['grid']} ({row['programs']})" for row in rows][::-1]
    tokens, padded, spent = (
        [row[name] for row in rows][::-1] for name in ("computed_tokens", "padded_places", "device_s")
    )
    places.barh(names, tokens, label="tokens")
    places.barh(names, padded, left=tokens, label="padding")
    places.set(title="token places, by grid (shapes)")
    places.legend()
    seconds.barh(names, spent, color="C2")
    seconds.set(title="device time, s")
    figure.savefig(path, dpi=150)


def _figure(width: float, height: float) -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError(
            "--plot needs matplotlib: pip install 'jaxengine[train]', or pip install matplotlib"
        ) from None
    return Figure(figsize=(width, height), layout="constrained")
