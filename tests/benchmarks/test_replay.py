"""The replay: traces are read, every token is computed once, and one launch a step beats two."""

from __future__ import annotations

import dataclasses
import gzip
import json
from pathlib import Path

import pytest

from benchmarks import replay
from benchmarks.replaying.rules import OnePrompt, PaddedUp, TwoLaunches
from benchmarks.replaying.targets import TARGETS
from benchmarks.replaying.tiers import Sizes
from buckets import Bucket, Limits
from jaxengine.bench import traffic
from jaxengine.bench.clock import Launch
from jaxengine.bench.scheduled import Rows
from jaxengine.bench.traffic import OWN, SHARED, Arrival

LIMITS = Limits(max_num_seqs=256, max_num_batched_tokens=2048, max_model_len=16384, page_size=64, free_tokens=128)
V6E = TARGETS["v6e"]
RULES = ["tokens", "linear", *replay.PEERS]


def chats(count: int) -> list[Arrival]:
    return [
        Arrival(number * 0.05, ((OWN + number, 1 + number * 37 % 900),), 1 + number * 13 % 60)
        for number in range(count)
    ]


def test_azure_traces_are_read(tmp_path: Path) -> None:
    lines = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:50.9951690,396,0\n2023-11-16 18:15:46.4951690,374,44\n"
    (tmp_path / "trace.csv.gz").write_bytes(gzip.compress(lines.encode()))
    first, second = traffic.read(str(tmp_path / "trace.csv.gz"))
    assert (first.time_s, first.prompt, first.output) == (0.0, 374, 44)
    assert (second.time_s, second.prompt, second.output) == (4.5, 396, 1)
    assert first.token_ids()[0] != second.token_ids()[0]


def test_mooncakes_equal_blocks_are_equal_tokens(tmp_path: Path) -> None:
    rows = [
        {"timestamp": 3000, "input_length": 600, "output_length": 5, "hash_ids": [0, 7]},
        {"timestamp": 1000, "input_length": 1024, "output_length": 6, "hash_ids": [0, 9]},
    ]
    (tmp_path / "trace.jsonl").write_text("\n".join(map(json.dumps, rows)))
    first, second = traffic.read(str(tmp_path / "trace.jsonl"))
    assert (first.time_s, first.prompt, first.output) == (0.0, 1024, 6)
    assert (second.time_s, second.prompt, second.output) == (2.0, 600, 5)
    assert first.token_ids()[:512] == second.token_ids()[:512]
    assert not set(first.token_ids()[512:]) & set(second.token_ids())


def test_recorded_and_plain_lengths_are_read(tmp_path: Path) -> None:
    rows = [
        {"prompt_tokens": 30, "output_tokens": 5},
        {"arrival_s": 2.5, "prompt_tokens": 100, "cached_tokens": 64, "output_tokens": 7},
    ]
    (tmp_path / "trace.jsonl").write_text("\n".join(map(json.dumps, rows)))
    plain, recorded = traffic.read(str(tmp_path / "trace.jsonl"))
    assert (plain.time_s, plain.runs, plain.output) == (0.0, ((OWN, 30),), 5)
    assert (recorded.time_s, recorded.runs, recorded.output) == (2.5, ((SHARED, 64), (OWN + 1, 36)), 7)


def test_made_traffic_has_the_means_that_were_asked_for() -> None:
    arrivals = traffic.read("random:4000:200:50")
    assert sum(arrival.prompt for arrival in arrivals) / 4000 == pytest.approx(200, rel=0.1)
    assert sum(arrival.output for arrival in arrivals) / 4000 == pytest.approx(50, rel=0.1)


def test_a_launch_reads_weights_or_computes_and_attention_comes_on_top() -> None:
    empty = V6E.seconds([Launch(8, 0, ())], 0)
    assert V6E.seconds([Launch(128, 0, ())], 0) == empty == V6E.launch_s + V6E.floor_s
    assert V6E.seconds([Launch(2048, 0, ())], 0) == pytest.approx(V6E.launch_s + 2048 * V6E.token_s)
    assert V6E.seconds([Launch(8, 1000, ())], 0) == pytest.approx(empty + 1000 * V6E.context_s)
    tiles = V6E.seconds([Launch(256, 0, [(100, 130)])], 0) - empty
    assert tiles == pytest.approx((228 + 230) * 128 * V6E.pair_s[128])
    assert V6E.seconds([Launch(8, 0, ())], 9) == pytest.approx(empty + V6E.head_s + 16 * V6E.sample_s)


def work(decoding: int, *prompts: int) -> Rows:
    return Rows(Bucket(256, 8), decoding, 1000, [(0, count) for count in prompts])


def test_the_rules_of_others() -> None:
    assert [launch.places for launch in PaddedUp(LIMITS).launches(work(100, 200))] == [512]
    assert PaddedUp(LIMITS).programs == 8
    assert [launch.places for launch in OnePrompt(LIMITS).launches(work(100, 200, 10))] == [128, 256, 128]
    two = TwoLaunches(LIMITS)
    assert two.programs == 11
    assert [(launch.places, launch.tile) for launch in two.launches(work(100, 200, 10))] == [(128, None), (512, 16)]
    assert two.grid.fill(10, 10, [5000, 10], max_tokens=2048).takes == (1792, 0)
    assert two.grid.fill(10, 10, [100, 30], max_tokens=2048).takes == (100, 16)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("speed", [None, 2.0])
def test_every_token_is_computed_once(rule: str, speed: float | None) -> None:
    arrivals = chats(100)
    served, _ = replay.run(rule, LIMITS, arrivals, V6E, speed=speed)
    outputs = sum(arrival.output for arrival in arrivals)
    assert (served.requests, served.outputs) == (100, outputs)
    assert served.tokens == sum(arrival.prompt for arrival in arrivals) + outputs - 100
    assert served.places >= served.tokens
    assert len(served.first_token_s) == 100
    assert min(served.first_token_s) > 0
    assert served.device_s <= served.wall_s * (1 + 1e-9)


def test_common_beginnings_are_computed_once() -> None:
    arrivals = [Arrival(number * 10.0, ((7, 6400), (OWN + number, 64)), 2) for number in range(3)]
    served, _ = replay.run("tokens", LIMITS, arrivals, V6E, speed=1.0)
    assert served.tokens == 6400 + 3 * 65


@pytest.mark.slow
def test_one_launch_a_step_takes_less_time_than_two() -> None:
    arrivals = traffic.read("random:400:1000:200")
    two, _ = replay.run("two launches", LIMITS, arrivals, V6E, speed=None)
    one, _ = replay.run("tokens", LIMITS, arrivals, V6E, speed=None)
    assert two.launches > two.steps
    assert one.launches == one.steps
    assert one.device_s < 0.93 * two.device_s


def test_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "budgets.png"
    arguments = ["--trace", "random:40:300:20", "--rules", "tokens", "--budgets", "512", "64", "--plot", str(picture)]
    assert replay.main(arguments) == 0
    report = json.loads(capsys.readouterr().out)
    assert [row["budget"] for row in report["results"]] == [512, 64]
    assert all(row["loaded"]["requests"] == 40 for row in report["results"])
    assert report["results"][0]["loaded"]["speed"] == report["results"][1]["loaded"]["speed"]
    assert picture.stat().st_size > 10_000


def test_tiers_save_computing_what_the_device_has_no_room_for() -> None:
    stems = [((1000 * number, 40 * LIMITS.page_size),) for number in range(1, 9)]
    arrivals = [Arrival(0.1 * number, (*stems[number % 8], (5000 + number, 9)), 3) for number in range(48)]
    few = dataclasses.replace(V6E, kv_tokens=100 * LIMITS.page_size)
    none, _ = replay.run("tokens", LIMITS, arrivals, few, speed=1.0)
    for sizes in (Sizes(5e9, 0), Sizes(1e9, 9e9)):
        served, found = replay.run("tokens", LIMITS, arrivals, few, sizes, speed=1.0)
        assert served.requests == none.requests == 48
        assert served.tokens < none.tokens
        assert found["hit_rates"]["behind"] > 0.3
        assert found["moved_gb"]["host to device"] > 0
