"""`jaxengine bench`, as it is typed."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from jaxengine.cli import main
from jaxengine.options.config import EngineConfig
from jaxengine.startup.build import build_engine
from tests.robustness.loopback import Loopback
from tests.tools.pages import read_page

SMALL = ["--max-num-seqs", "4", "--max-num-batched-tokens", "32", "--max-model-len", "128", "--num-pages", "33"]
ONE_SHAPE = [
    "--max-num-seqs",
    "4",
    "--max-model-len",
    "128",
    "--num-pages",
    "33",
    "--bucket-planner",
    "explicit",
    "--buckets",
    "4x8",
]

pytestmark = [pytest.mark.usefixtures("quick_engines"), pytest.mark.filterwarnings("ignore::DeprecationWarning")]


@pytest.fixture(scope="module")
def port(quick_engines: None) -> Iterator[int]:
    engine = build_engine(
        EngineConfig.from_options(max_num_seqs=4, max_num_batched_tokens=32, max_model_len=128, num_pages=33)
    )
    server = Loopback(engine)
    yield server.port
    server.close()
    engine.close()


@pytest.mark.slow
def test_a_server_is_measured_at_several_rates(port, tmp_path, capsys):
    words = ["bench", "serve", "--port", str(port), "--num-prompts", "4", "--random-input-len", "9"]
    words += ["--random-output-len", "3", "--request-rate", "50", "inf", "--goodput", "ttft:60000", "--disable-tqdm"]
    assert (
        main(
            [
                *words,
                "--save-result",
                "--result-dir",
                str(tmp_path),
                "--result-filename",
                "r.json",
                "--html",
                str(tmp_path / "r.html"),
            ]
        )
        == 0
    )
    shown = capsys.readouterr().out
    assert [line.split() for line in shown.splitlines() if line.startswith("completed")] == [["completed", "4", "4"]]
    kept = json.loads((tmp_path / "r.json").read_text())
    assert [row["total_output_tokens"] for row in kept["runs"]] == [12, 12]
    assert kept["asked"]["random_input_len"] == 9
    assert kept["machine"]["cores"] > 0
    assert "p99_itl_ms" in shown
    page = read_page(tmp_path / "r.html")
    assert page.charts == 7, "by rate and of all requests, for three metrics, and the throughput"
    assert page.row("completed") == ["completed", "4", "4"]
    assert page.row("asked random_input_len")[1] == "9"


@pytest.mark.slow
def test_requests_that_fail_are_told_and_are_the_exit_status(port, capsys):
    words = ["bench", "serve", "--port", str(port), "--num-prompts", "2", "--random-input-len", "500", "--disable-tqdm"]
    assert main(words) == 1
    assert "maximum context length is 128 tokens" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--port", "1"], "no server of OpenAI's API answers at http://127.0.0.1:1"),
        (["--goodput", "ttft"], "goodput takes NAME:VALUE, got 'ttft'"),
        (["--header", "a"], "header takes NAME=VALUE, got 'a'"),
        (["--metric-percentiles", "x"], "metric_percentiles takes numbers, got 'x'"),
        (["--percentile-metrics", "speed"], "percentile_metrics are of ttft, tpot, itl, e2el, got speed"),
        (["--model", "m", "--dataset-name", "trace"], "--dataset-name trace needs --dataset-path"),
    ],
)
def test_what_cannot_be_measured_is_told(words, error, capsys):
    assert main(["bench", "serve", *words]) == 1
    assert error in capsys.readouterr().err


@pytest.mark.slow
def test_an_engine_is_measured_without_a_server(tmp_path, capsys):
    lengths = ["--input-len", "9", "--output-len", "3", "--output-json", str(tmp_path / "r.json")]
    assert main(["bench", "latency", *lengths, *ONE_SHAPE, "--num-iters", "2", "--num-iters-warmup", "1"]) == 0
    kept = json.loads((tmp_path / "r.json").read_text())
    assert len(kept["latencies"]) == 2
    assert kept["avg_latency"] == pytest.approx(sum(kept["latencies"]) / 2, abs=1e-5)
    words = ["bench", "throughput", *lengths, *ONE_SHAPE, "--num-prompts", "6", "--html", str(tmp_path / "r.html")]
    assert main(words) == 0
    kept = json.loads((tmp_path / "r.json").read_text())
    assert (kept["num_requests"], kept["total_num_tokens"], kept["compile_events_after_ready"]) == (6, 72, 0)
    assert "tokens_per_second" in capsys.readouterr().out
    assert 0 < kept["computed_tokens"] <= kept["token_places"]
    assert read_page(tmp_path / "r.html").charts == 3


@pytest.mark.slow
def test_starts_are_measured(tmp_path):
    file = tmp_path / "r.json"
    words = ["bench", "startup", "--num-iters-cold", "1", "--num-iters-warm", "1", "--output-json", str(file)]
    assert main([*words, *SMALL, "--html", str(tmp_path / "r.html")]) == 0
    assert read_page(tmp_path / "r.html").charts == 2
    kept = json.loads(file.read_text())
    [cold], [warm] = kept["starts"]["cold"], kept["starts"]["warm"]
    assert cold["programs"]["store"] == 0 < cold["programs"]["compiler"] == warm["programs"]["store"]
    assert kept["avg_cold_startup_time"] == cold["first_token_s"]
