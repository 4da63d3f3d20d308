"""`jaxengine bench latency | throughput | serve | startup`, with vLLM's option names."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxengine.bench.workload import DATASETS
from jaxengine.cli.options import add_names, add_options, given_options
from jaxengine.config import EngineConfig
from jaxengine.errors import ConfigError

if TYPE_CHECKING:
    from jaxengine.bench.workload import BenchRequest

ENDPOINTS = ("/v1/completions", "/v1/chat/completions")
NOT_SHOWN = ("starts", "latencies", "errors")
"""What is kept as JSON and stands in no table."""


def add_command(commands: Any) -> None:
    """Declare the commands."""
    bench = commands.add_parser("bench", help="measure latency, throughput, a running server, or starts")
    kinds = bench.add_subparsers(dest="bench", metavar="what", required=True, parser_class=type(bench))

    latency = kinds.add_parser("latency", help="seconds until a batch of equal requests is answered")
    _add_lengths(latency, input_len=32, output_len=128)
    latency.add_argument("--batch-size", type=int, default=8, help="requests at once (8)")
    latency.add_argument("--num-iters-warmup", type=int, default=10, help="batches before those that count (10)")
    latency.add_argument("--num-iters", type=int, default=30, help="batches that count (30)")
    latency.set_defaults(run=run_latency)

    throughput = kinds.add_parser("throughput", help="tokens per second of many requests, all there from the start")
    _add_lengths(throughput, input_len=None, output_len=None)
    _add_dataset(throughput)
    throughput.set_defaults(run=run_throughput)

    startup = kinds.add_parser("startup", help="seconds to the first token, with nothing kept and with programs kept")
    startup.add_argument("--num-iters-cold", type=int, default=1, help="starts with an empty cache of programs (1)")
    startup.add_argument("--num-iters-warm", type=int, default=3, help="starts with a full one (3)")
    startup.set_defaults(run=run_startup)
    for engine in (latency, throughput, startup):
        engine.add_argument("--output-json", type=Path, metavar="FILE", help="where to write the figures as JSON")
        add_options(engine, EngineConfig)
        add_names(engine)

    serve = kinds.add_parser("serve", help="first token, tokens and whole answers of a running server, at given rates")
    _add_server(serve)
    _add_dataset(serve)
    _add_load(serve)
    serve.set_defaults(run=run_serve)


def _add_lengths(parser: argparse.ArgumentParser, *, input_len: int | None, output_len: int | None) -> None:
    for name, default in (("input", input_len), ("output", output_len)):
        shown = "as --random-*-len" if default is None else str(default)
        parser.add_argument(f"--{name}-len", type=int, default=default, help=f"tokens of each {name} ({shown})")


def _add_dataset(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("requests")
    group.add_argument("--dataset-name", choices=DATASETS, default=DATASETS[0])
    group.add_argument(
        "--dataset-path",
        metavar="FILE",
        help="a ShareGPT file; or a trace: Azure's CSV, Mooncake's JSON lines, what --record-traffic writes",
    )
    group.add_argument("--num-prompts", type=int, default=1000, help="how many requests (1000)")
    group.add_argument("--random-input-len", type=int, default=1024)
    group.add_argument("--random-output-len", type=int, default=128)
    group.add_argument(
        "--random-range-ratio", type=float, default=0.0, help="lengths within this share of the mean (0)"
    )
    group.add_argument("--random-prefix-len", type=int, default=0, help="tokens more that all prompts begin with (0)")
    group.add_argument("--sharegpt-output-len", type=int, help="tokens of each output (as long as the answers)")
    group.add_argument("--dataset-seed", type=int, default=0, help="of lengths and contents (0)")


def _add_server(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("server")
    group.add_argument("--base-url", help="such as http://127.0.0.1:8000 (default: of --host and --port)")
    group.add_argument("--host", default="127.0.0.1")
    group.add_argument("--port", type=int, default=8000)
    group.add_argument("--endpoint", default=ENDPOINTS[0], choices=ENDPOINTS)
    group.add_argument("--model", help="name to ask for (default: the first that the server has)")
    group.add_argument("--tokenizer", help="directory or hub id, counts a ShareGPT file's tokens (default: --model)")
    group.add_argument("--header", nargs="*", default=[], metavar="NAME=VALUE", help="further headers of requests")
    group.add_argument("--extra-body", type=json.loads, default={}, metavar="JSON", help="further fields of requests")


def _add_load(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("load")
    group.add_argument(
        "--request-rate",
        type=_rate,
        nargs="+",
        default=[float("inf")],
        metavar="RATE",
        help="requests per second; several are tried in turn; inf is all at once, trace as they were recorded (inf)",
    )
    group.add_argument("--burstiness", type=float, default=1.0, help="1 is a Poisson process, less comes in bursts (1)")
    group.add_argument("--max-concurrency", type=int, help="most requests open at once")
    group.add_argument("--seed", type=int, default=0)
    group.add_argument("--percentile-metrics", default="ttft,tpot,itl", help="of ttft, tpot, itl, e2el (ttft,tpot,itl)")
    group.add_argument("--metric-percentiles", default="99", metavar="P,...", help="(99)")
    group.add_argument(
        "--goodput", nargs="+", default=[], metavar="METRIC:MS", help="what makes a request good: ttft:200"
    )
    group.add_argument("--disable-tqdm", action="store_true", help="no progress bar")
    group.add_argument("--save-result", action="store_true", help="write the figures as JSON into --result-dir")
    group.add_argument("--result-dir", type=Path, default=Path())
    group.add_argument("--result-filename", help="(default: of the time, the rate and the model)")
    group.add_argument("--plot", type=Path, metavar="PNG", help="draw latencies by request rate")


def run_latency(namespace: argparse.Namespace) -> int:
    from jaxengine.bench.offline import latency

    sizes = {"input_len": namespace.input_len, "output_len": namespace.output_len, "batch_size": namespace.batch_size}

    def measured(llm: Any) -> dict[str, Any]:
        figures = latency(llm, **sizes, warmup=namespace.num_iters_warmup, iterations=namespace.num_iters)
        return {**sizes, **figures}

    return _with_engine(namespace, measured)


def run_throughput(namespace: argparse.Namespace) -> int:
    from jaxengine.bench.offline import throughput

    def measured(llm: Any) -> dict[str, Any]:
        def count(text: str) -> int:
            return len(llm.get_tokenizer().encode(text))

        return throughput(llm, lambda ids: _requests(namespace, count, ids))

    return _with_engine(namespace, measured)


def run_startup(namespace: argparse.Namespace) -> int:
    from jaxengine.bench.startup import startup

    options = given_options(namespace, EngineConfig)
    EngineConfig.from_options(**options)  # so that a wrong one is told here
    figures = startup(options, cold=namespace.num_iters_cold, warm=namespace.num_iters_warm)
    return _told(namespace.output_json, namespace, figures)


def _with_engine(namespace: argparse.Namespace, measure: Callable[[Any], dict[str, Any]]) -> int:
    from jaxengine.llm import LLM

    with LLM(**given_options(namespace, EngineConfig)) as llm:
        figures = measure(llm)
    return _told(namespace.output_json, namespace, figures)


def _requests(
    namespace: argparse.Namespace, tokens: Callable[[str], int], ids: range | None = None
) -> Sequence[BenchRequest]:
    from jaxengine.bench import workload

    given = {} if ids is None else {"ids": ids}
    if namespace.dataset_name == "random":
        return workload.random_requests(
            namespace.num_prompts,
            getattr(namespace, "input_len", None) or namespace.random_input_len,
            getattr(namespace, "output_len", None) or namespace.random_output_len,
            range_ratio=namespace.random_range_ratio,
            prefix_len=namespace.random_prefix_len,
            seed=namespace.dataset_seed,
            **given,
        )
    if namespace.dataset_path is None:
        raise ConfigError(f"--dataset-name {namespace.dataset_name} needs --dataset-path")
    if namespace.dataset_name == "trace":
        return workload.trace_requests(namespace.dataset_path, namespace.num_prompts, **given)
    return workload.sharegpt_requests(
        Path(namespace.dataset_path),
        namespace.num_prompts,
        tokens,
        output_len=namespace.sharegpt_output_len,
        seed=namespace.dataset_seed,
    )


def run_serve(namespace: argparse.Namespace) -> int:
    from jaxengine.bench import serving
    from jaxengine.bench.figures import write_json
    from jaxengine.bench.stream import Endpoint

    url = namespace.base_url or f"http://{namespace.host}:{namespace.port}"
    headers = dict(_split(pair, "=", "header") for pair in namespace.header)
    if key := os.environ.get("OPENAI_API_KEY"):
        headers.setdefault("Authorization", f"Bearer {key}")
    endpoint = Endpoint.of(url, namespace.endpoint, headers)
    goodput = {
        metric: _number(value, "goodput")
        for metric, value in (_split(pair, ":", "goodput") for pair in namespace.goodput)
    }
    loads = [
        serving.Load(
            rate=rate,
            burstiness=namespace.burstiness,
            max_concurrency=namespace.max_concurrency,
            seed=namespace.seed,
            body=namespace.extra_body,
            goodput=goodput,
        )
        for rate in namespace.request_rate
    ]
    metrics = namespace.percentile_metrics.split(",")
    if not set(metrics) <= set(serving.METRICS):
        raise ConfigError(f"percentile_metrics are of {', '.join(serving.METRICS)}, got {namespace.percentile_metrics}")
    percentiles = [_number(text, "metric_percentiles") for text in namespace.metric_percentiles.split(",")]
    model = namespace.model or _first_model(url, headers)
    requests = _requests(namespace, _counter(namespace.tokenizer or model))
    rows = []
    for load in loads:
        timings, seconds = asyncio.run(
            serving.run(endpoint, model, requests, load, progress=not namespace.disable_tqdm)
        )
        rows.append(serving.report(timings, seconds, load, metrics=metrics, percentiles=percentiles))
    if namespace.save_result:
        name = namespace.result_filename or f"jaxengine-{time.strftime('%Y%m%d-%H%M%S')}-{Path(model).name}.json"
        write_json(namespace.result_dir / name, _report(namespace, {"model": model, "runs": rows}))
    if namespace.plot is not None:
        from jaxengine.bench.plot import draw

        draw(rows, metrics, namespace.plot)
    _show(rows)
    return 1 if any(row["failed"] for row in rows) else 0


def _first_model(url: str, headers: Mapping[str, str]) -> str:
    request = urllib.request.Request(f"{url.rstrip('/')}/v1/models", headers=dict(headers))
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return str(json.load(response)["data"][0]["id"])
    except (OSError, ValueError, KeyError, IndexError) as error:
        raise ConfigError(f"no server of OpenAI's API answers at {url}: {error}") from None


def _counter(name: str) -> Callable[[str], int]:
    """Counts tokens with the tokenizer of that name, which is read when the first text is counted."""
    loaded: list[Any] = []

    def count(text: str) -> int:
        if not loaded:
            from transformers import AutoTokenizer

            loaded.append(AutoTokenizer.from_pretrained(name))
        return len(loaded[0].encode(text))

    return count


def _told(path: Path | None, namespace: argparse.Namespace, figures: Mapping[str, Any]) -> int:
    from jaxengine.bench.figures import write_json

    if path is not None:
        write_json(path, _report(namespace, figures))
    _show([figures])
    return 0


def _report(namespace: argparse.Namespace, figures: Mapping[str, Any]) -> dict[str, Any]:
    """Figures with what was asked for and what they were measured on."""
    from jaxengine.bench import machine

    asked = {name: value for name, value in vars(namespace).items() if name not in ("run", "command")}
    return {"machine": machine.describe(), "asked": json.loads(json.dumps(asked, default=str)), **figures}


def _show(rows: Sequence[Mapping[str, Any]]) -> None:
    from jaxengine.bench.figures import table

    print(table([{name: value for name, value in row.items() if name not in NOT_SHOWN} for row in rows]))
    for error in dict.fromkeys(error for row in rows for error in row.get("errors", ())):
        print(f"failed: {error}")


def _rate(text: str) -> float | str:
    return text if text == "trace" else float(text)


def _split(pair: str, separator: str, option: str) -> tuple[str, str]:
    name, found, value = pair.partition(separator)
    if not found:
        raise ConfigError(f"{option} takes NAME{separator}VALUE, got {pair!r}")
    return name, value


def _number(text: str, option: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"{option} takes numbers, got {text!r}") from None
