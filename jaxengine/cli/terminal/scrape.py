"""One look at a server's metrics, and what happened between two."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

from jaxengine.errors import JaxEngineError

LABELS = ("shape", "le", "finished_reason")
"""Labels by which samples are told apart; those of several engines and models are added up."""

Key = tuple[str, tuple[tuple[str, str], ...]]


@dataclass(frozen=True)
class Scrape:
    """The samples of a moment, in seconds of `time.monotonic`, by name and `LABELS`. `model` is the first that they tell of."""

    samples: Mapping[Key, float]
    model: str = ""
    moment: float = field(default_factory=time.monotonic)

    @classmethod
    def of(cls, text: str) -> Scrape:
        """Of an exposition in Prometheus's text format.

        Raises:
            JaxEngineError: it is none, or of no engine.
        """
        samples: dict[Key, float] = {}
        model = ""
        try:
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    key = sample.name, tuple((name, sample.labels[name]) for name in LABELS if name in sample.labels)
                    samples[key] = samples.get(key, 0.0) + sample.value
                    model = model or sample.labels.get("model_name", "")
        except ValueError as error:
            raise JaxEngineError(f"these are no metrics: {error}") from error
        if not any(name.startswith("vllm:") for name, _ in samples):
            raise JaxEngineError("the server has no metrics of an engine (vllm:...)")
        return cls(samples, model)

    def value(self, name: str, **labels: str) -> float:
        """A sample, 0 where there is none."""
        return self.samples.get((name, tuple(labels.items())), 0.0)

    def shapes(self) -> list[str]:
        """The shapes of steps that were run, in the order of their counts."""
        return [dict(labels)["shape"] for name, labels in self.samples if name == "jaxengine:step_time_seconds_count"]


@dataclass(frozen=True)
class Between:
    """What happened from one look to the next."""

    before: Scrape
    now: Scrape

    @property
    def seconds(self) -> float:
        return max(1e-9, self.now.moment - self.before.moment)

    def gained(self, name: str, **labels: str) -> float:
        """How much a counter rose. One that fell has begun anew with its server."""
        now, before = self.now.value(name, **labels), self.before.value(name, **labels)
        return now - before if now >= before else now

    def rate(self, name: str, **labels: str) -> float:
        """The same a second."""
        return self.gained(name, **labels) / self.seconds

    def percentile(self, name: str, share: float) -> float | None:
        """What `share` percent of a histogram's new values were at most, by its buckets; None where nothing came."""
        bounds = sorted(
            {
                float(dict(labels)["le"]): dict(labels)["le"]
                for each, labels in self.now.samples
                if each == f"{name}_bucket"
            }.items()
        )
        counts = [(bound, self.gained(f"{name}_bucket", le=text)) for bound, text in bounds]
        if not counts or not counts[-1][1]:
            return None
        return next((bound for bound, count in counts if count >= counts[-1][1] * share / 100), math.inf)
