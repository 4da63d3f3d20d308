"""Families of Prometheus' exposition: a name, a text, and a row for each sample that an engine has of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partialmethod
from typing import TypeVar

from prometheus_client import Metric

from jaxengine.server.telemetry.tally import Distribution, EngineNumbers

V = TypeVar("V", float, Distribution)
Row = tuple[int, Mapping[str, str], V]
"""A sample: rank of the engine, labels of its own, value."""


def plain(engines: Sequence[EngineNumbers], value: Callable[[EngineNumbers], V]) -> list[Row[V]]:
    """A row for each engine."""
    return [(engine.rank, {}, value(engine)) for engine in engines]


def by(
    label: str, engines: Sequence[EngineNumbers], values: Callable[[EngineNumbers], Mapping[str, V]]
) -> list[Row[V]]:
    """A row for each value that an engine has, with its name as `label`."""
    return [(engine.rank, {label: name}, value) for engine in engines for name, value in values(engine).items()]


@dataclass(frozen=True)
class Families:
    """Makes families. Beside its own labels each sample has `model_name` and `engine`, which is the rank."""

    model_name: str

    def _family(self, kind: str, name: str, text: str, rows: Iterable[Row[float]]) -> Metric:
        family = Metric(name, text, kind)
        for rank, labels, value in rows:
            family.add_sample(f"{name}_total" if kind == "counter" else name, self._labels(rank, labels), value)
        return family

    gauge = partialmethod(_family, "gauge")
    counter = partialmethod(_family, "counter")

    def histogram(self, name: str, text: str, rows: Iterable[Row[Distribution]]) -> Metric:
        """A family of distributions, in cumulative buckets."""
        family = Metric(name, text, "histogram")
        for rank, labels, distribution in rows:
            labelled = self._labels(rank, labels)
            for bound, count in distribution.cumulative():
                family.add_sample(f"{name}_bucket", {**labelled, "le": bound}, count)
            family.add_sample(f"{name}_sum", labelled, distribution.total)
            family.add_sample(f"{name}_count", labelled, distribution.count)
        return family

    def _labels(self, rank: int, own: Mapping[str, str]) -> dict[str, str]:
        return {"model_name": self.model_name, "engine": str(rank), **own}
