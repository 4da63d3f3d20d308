"""The goal of the default grid, on recorded traffic: `benchmarks/padding.py` as a test."""

import sys
from pathlib import Path

import pytest

from buckets import Limits, plan

LIMITS = Limits(max_num_seqs=256, max_num_batched_tokens=2048, max_model_len=16384, page_size=16)


@pytest.fixture
def padding(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "benchmarks"))
    before = set(sys.modules)
    import padding

    yield padding
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.mark.parametrize("rate", [1, 4])
def test_azure_conversations_are_padded_by_at_most_5_percent(padding, shared, rate):
    arrivals = padding.read_trace(shared / "traces/azure2023/AzureLLMInferenceTrace_conv.csv.gz")[:4000]
    grid = plan("rows", LIMITS)
    served = padding.serve(arrivals, grid, LIMITS, rate=rate, speed=padding.Speed(launch_ms=10, token_us=30))
    assert len(grid) <= 24
    assert served.report()["padding"] <= 0.05


def test_mooncake_traces_are_read(padding, shared):
    first = padding.read_trace(shared / "traces/mooncake/conversation_trace.jsonl.gz")[0]
    assert (first.time_s, first.prompt, first.output) == (0.0, 6758, 500)


@pytest.mark.parametrize("planner", ["rows", "linear", "exponential"])
def test_a_simulation_computes_every_token_once(padding, planner):
    arrivals = [padding.Arrival(number * 0.05, 1 + number * 37 % 900, 1 + number * 13 % 60) for number in range(120)]
    served = padding.serve(arrivals, plan(planner, LIMITS), LIMITS, rate=1, speed=padding.Speed(10, 30))
    assert served.prefill_tokens == sum(arrival.prompt for arrival in arrivals)
    assert served.decode_tokens == sum(arrival.output - 1 for arrival in arrivals)
    assert len(served.first_token_s) == len(arrivals)
    assert all(wait > 0 for wait in served.first_token_s)
    assert served.prefill_places >= served.prefill_tokens
    assert served.decode_places >= served.decode_tokens
