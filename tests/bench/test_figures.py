"""Percentiles, tables, files."""

from __future__ import annotations

import json

import numpy as np
import pytest

from jaxengine.bench.figures import percentile, summary_ms, table, write_json


@pytest.mark.parametrize("share", [0, 10, 50, 90, 99, 100])
def test_percentiles_are_those_of_numpy(share):
    for count in (1, 2, 7, 100):
        values = list(np.random.default_rng(count).normal(size=count))
        assert percentile(values, share) == pytest.approx(np.percentile(values, share))


def test_a_summary_has_vllms_names():
    assert summary_ms("ttft", [0.1, 0.3], [99.0, 99.9]) == {
        "mean_ttft_ms": 200.0,
        "median_ttft_ms": 200.0,
        "std_ttft_ms": 100.0,
        "p99_ttft_ms": 298.0,
        "p99.9_ttft_ms": 299.8,
    }
    assert summary_ms("tpot", [], [99.0]) == {}


def test_a_table_has_a_line_for_each_figure():
    assert table([{"rate": 1.0, "failed": 0}, {"rate": 12.5, "more": None}]).splitlines() == [
        "rate    1.00  12.50",
        "failed     0      -",
        "more       -      -",
    ]


def test_a_report_is_written_whole(tmp_path):
    path = tmp_path / "new" / "report.json"
    write_json(path, {"a": 1})
    write_json(path, {"a": 2})
    assert json.loads(path.read_text()) == {"a": 2}
    assert list(path.parent.iterdir()) == [path]
