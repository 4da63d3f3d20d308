"""`jaxengine bench padding`: every token is computed once on every grid, and what a grid wastes is told by shape."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jaxengine.bench import padding
from jaxengine.bench.serving import Load
from jaxengine.bench.traffic import OWN, Arrival
from jaxengine.bench.workload import BenchRequest, random_requests
from jaxengine.cli import main
from jaxengine.device.runtime.target import LOCAL
from jaxengine.errors import ConfigError
from jaxengine.options.config import EngineConfig
from jaxengine.tools.charts import number_text
from tests.tools.pages import read_page

OPTIONS = {"max_num_seqs": 4, "max_num_batched_tokens": 32, "max_model_len": 128, "page_size": 16, "num_pages": 40}


def engine(**options: object) -> padding.Padding:
    return padding.Padding(EngineConfig.from_options(**{**OPTIONS, **options}), LOCAL)


def replays(arrivals: list[Arrival], *grids: str, recorded: bool = False, **options: object) -> list[padding.Replay]:
    return list(engine(**options).replays(arrivals, grids, recorded=recorded))


def test_every_grid_computes_every_token_once_and_says_what_its_shapes_wasted() -> None:
    arrivals = padding.arrivals_of(random_requests(20, 30, 12, range_ratio=0.9), Load(rate=float("inf")))
    tokens = sum(arrival.prompt + arrival.output - 1 for arrival in arrivals)
    found = replays(arrivals, *padding.GRIDS, bucket_planner="explicit", buckets=("4x8", "4x1"))
    assert [replay.name for replay in found] == list(padding.GRIDS)
    assert set(map(str, found[0].grid.buckets)) == {"4x8", "4x1"}
    for report in (replay.report() for replay in found):
        shapes = report["shapes"]
        assert report["computed_tokens"] == sum(shape["tokens"] for shape in shapes) == tokens
        assert report["padded_places"] == sum(shape["padded_places"] for shape in shapes) >= 0
        assert report["steps"] == sum(shape["steps"] for shape in shapes)
        assert report["programs"] == len(shapes) == len(report["buckets"].split())
        assert report["device_s"] > 0


def test_a_coarse_grid_wastes_more() -> None:
    arrivals = [Arrival(10.0 * number, ((OWN + number, 3),), 2) for number in range(6)]
    coarse, fine = replays(arrivals, "configured", "traffic", recorded=True, deterministic=True)
    assert coarse.report()["padded_places"] == 6 * (29 + 31)  # one shape of 32 places, a prompt and a token alone in it
    assert max(shape["places"] for shape in fine.report()["shapes"] if shape["steps"]) < 8
    assert fine.report()["device_s"] < coarse.report()["device_s"] / 2


def test_prompts_that_begin_alike_share_their_pages() -> None:
    arrivals = [Arrival(10.0 * number, ((7, 64), (OWN + number, 5)), 1) for number in range(3)]
    for caching, tokens in ((True, 69 + 2 * 5), (False, 3 * 69)):
        [replay] = replays(arrivals, "tokens", recorded=True, enable_prefix_caching=caching)
        assert replay.report()["computed_tokens"] == tokens


def test_requests_become_traffic() -> None:
    requests = [BenchRequest("text", 9, 4), BenchRequest((5, 5, 6), 3, 2, 0.5)]
    texts, ids = padding.arrivals_of(requests, Load(rate=2.0))
    assert (texts.time_s, texts.prompt, texts.output) == (0.0, 9, 4)
    assert ids.runs == ((5, 2), (6, 1))
    assert ids.time_s > 0


def test_what_cannot_be_replayed_is_told() -> None:
    long = [Arrival(0.0, ((OWN, 200),), 1)]
    with pytest.raises(ConfigError, match="none of the 1 requests fits the context of 128 tokens"):
        replays(long, "tokens")
    with pytest.raises(ConfigError, match=r"grids are configured, .*, got squares"):
        replays(long, "squares")
    with pytest.raises(ConfigError, match="no tokens to draft from"):
        engine(speculative_config={"method": "ngram", "num_speculative_tokens": 2})


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"prompt_tokens": 30, "output_tokens": 5, "arrival_s": number / 9} for number in range(8)]
    trace = tmp_path / "trace.jsonl"
    trace.write_text("\n".join(map(json.dumps, [*rows, {"prompt_tokens": 400, "output_tokens": 5, "arrival_s": 1.0}])))
    words = ["bench", "padding", "--dataset-name", "trace", "--dataset-path", str(trace), "--request-rate", "trace"]
    words += ["--max-model-len", "128", "--output-json", str(tmp_path / "r.json"), "--html", str(tmp_path / "r.html")]
    assert main([*words, "--grids", "configured", "traffic"]) == 0
    shown = capsys.readouterr().out
    assert "configured: --bucket-planner explicit --buckets 64x8 " in shown
    assert "left out: 1 requests" in shown
    kept = json.loads((tmp_path / "r.json").read_text())
    assert (kept["requests"], kept["left_out"]) == (8, 1)
    assert [grid["computed_tokens"] for grid in kept["grids"]] == [8 * 34] * 2
    assert kept["asked"]["request_rate"] == "trace"
    page = read_page(tmp_path / "r.html")
    assert page.charts >= 3
    assert [*page.row("device_s")] == ["device_s", *(number_text(grid["device_s"]) for grid in kept["grids"])]
