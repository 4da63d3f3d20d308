"""Families with a row for each engine, or for each of what an engine has."""

from __future__ import annotations

from dataclasses import replace

from jaxengine.contract.metrics import NOTHING_YET
from jaxengine.server.telemetry.families import Families, by, plain
from jaxengine.server.telemetry.tally import Distribution, EngineNumbers, Tally

FAMILIES = Families("tiny")


def engine(rank: int, *, num_running: int) -> EngineNumbers:
    scheduler = replace(NOTHING_YET.scheduler, num_running=num_running)
    return EngineNumbers(rank, replace(NOTHING_YET, scheduler=scheduler), Tally(max_model_len=64))


ENGINES = [engine(0, num_running=3), engine(2, num_running=5)]


def test_a_counter_has_a_sample_for_each_engine() -> None:
    family = FAMILIES.counter("c", "Text.", plain(ENGINES, lambda each: each.scheduler.num_running))
    assert (family.name, family.type, family.documentation) == ("c", "counter", "Text.")
    assert [(sample.name, sample.labels, sample.value) for sample in family.samples] == [
        ("c_total", {"model_name": "tiny", "engine": "0"}, 3),
        ("c_total", {"model_name": "tiny", "engine": "2"}, 5),
    ]


def test_a_gauge_has_a_sample_for_each_name_of_each_engine() -> None:
    rows = by("state", ENGINES, lambda each: {"on": 1, "off": each.rank})
    samples = FAMILIES.gauge("g", "Text.", rows).samples
    assert [(sample.name, sample.labels["engine"], sample.labels["state"], sample.value) for sample in samples] == [
        ("g", "0", "on", 1),
        ("g", "0", "off", 0),
        ("g", "2", "on", 1),
        ("g", "2", "off", 2),
    ]


def test_a_histogram_has_cumulative_buckets_a_sum_and_a_count() -> None:
    times = Distribution((1.0, 2.0))
    for value in (0.5, 1.5, 9.0):
        times.add(value)
    samples = FAMILIES.histogram("h", "Text.", plain(ENGINES[:1], lambda _: times)).samples
    assert [(sample.name, sample.labels.get("le"), sample.value) for sample in samples] == [
        ("h_bucket", "1.0", 1),
        ("h_bucket", "2.0", 2),
        ("h_bucket", "+Inf", 3),
        ("h_sum", None, 11.0),
        ("h_count", None, 3),
    ]
