"""`jaxengine bench serve`, with vLLM's option names."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from jaxengine.cli.bench_shared import add_dataset, add_html, counter, rate, report, requests, show, write_page
from jaxengine.errors import ConfigError

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
BACKENDS = {"vllm": COMPLETIONS, "openai": COMPLETIONS, "openai-chat": CHAT}
"""vLLM's names of what is measured, and the endpoints that they are here."""


def add_command(kinds: Any) -> None:
    """Declare the command."""
    serve = kinds.add_parser("serve", help="first token, tokens and whole answers of a running server, at given rates")
    _add_server(serve)
    add_dataset(serve)
    _add_load(serve)
    serve.set_defaults(run=run_serve)


def _add_server(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("server")
    group.add_argument("--base-url", help="such as http://127.0.0.1:8000 (default: of --host and --port)")
    group.add_argument("--host", default="127.0.0.1")
    group.add_argument("--port", type=int, default=8000)
    group.add_argument("--backend", default="vllm", choices=BACKENDS, help="vLLM's name of an endpoint (vllm)")
    group.add_argument("--endpoint", choices=(COMPLETIONS, CHAT), help="(default: that of --backend)")
    group.add_argument("--model", help="name to ask for (default: the first that the server has)")
    group.add_argument("--tokenizer", help="directory or hub id, counts a ShareGPT file's tokens (default: --model)")
    group.add_argument("--header", nargs="*", default=[], metavar="NAME=VALUE", help="further headers of requests")
    group.add_argument("--extra-body", type=json.loads, default={}, metavar="JSON", help="further fields of requests")


def _add_load(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("load")
    group.add_argument(
        "--request-rate",
        type=rate,
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
    group.add_argument(
        "--profile", action="store_true", help="trace what is measured, on a server that was started with --profile DIR"
    )
    add_html(group)


def run_serve(namespace: argparse.Namespace) -> int:
    import asyncio

    from jaxengine.bench import serving
    from jaxengine.bench.figures import write_json
    from jaxengine.bench.pictures import serve_page
    from jaxengine.bench.stream import Endpoint

    url = namespace.base_url or f"http://{namespace.host}:{namespace.port}"
    headers = dict(_split(pair, "=", "header") for pair in namespace.header)
    if key := os.environ.get("OPENAI_API_KEY"):
        headers.setdefault("Authorization", f"Bearer {key}")
    endpoint = Endpoint.of(url, namespace.endpoint or BACKENDS[namespace.backend], headers)
    goodput = {
        metric: _number(value, "goodput")
        for metric, value in (_split(pair, ":", "goodput") for pair in namespace.goodput)
    }
    loads = [
        serving.Load(
            rate=each,
            burstiness=namespace.burstiness,
            max_concurrency=namespace.max_concurrency,
            seed=namespace.seed,
            body=namespace.extra_body,
            goodput=goodput,
        )
        for each in namespace.request_rate
    ]
    metrics = namespace.percentile_metrics.split(",")
    if not set(metrics) <= set(serving.METRICS):
        raise ConfigError(f"percentile_metrics are of {', '.join(serving.METRICS)}, got {namespace.percentile_metrics}")
    percentiles = [_number(text, "metric_percentiles") for text in namespace.metric_percentiles.split(",")]
    model = namespace.model or _first_model(url, headers)
    sent = requests(namespace, counter(namespace.tokenizer or model))
    rows, seen = [], []
    with _traced(url, headers) if namespace.profile else nullcontext():
        for load in loads:
            running = serving.run(endpoint, model, sent, load, progress=not namespace.disable_tqdm)
            timings, seconds = asyncio.run(running)
            seen.append(timings)
            rows.append(serving.report(timings, seconds, load, metrics=metrics, percentiles=percentiles))
    if namespace.save_result:
        name = namespace.result_filename or f"jaxengine-{time.strftime('%Y%m%d-%H%M%S')}-{Path(model).name}.json"
        write_json(namespace.result_dir / name, report(namespace, {"model": model, "runs": rows}))
    write_page(namespace, partial(serve_page, rows, seen, metrics))
    show(rows)
    return 1 if any(row["failed"] for row in rows) else 0


def _first_model(url: str, headers: Mapping[str, str]) -> str:
    import urllib.request

    request = urllib.request.Request(f"{url.rstrip('/')}/v1/models", headers=dict(headers))
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return str(json.load(response)["data"][0]["id"])
    except (OSError, ValueError, KeyError, IndexError) as error:
        raise ConfigError(f"no server of OpenAI's API answers at {url}: {error}") from None


@contextmanager
def _traced(url: str, headers: Mapping[str, str]) -> Iterator[None]:
    _post(url, "/start_profile", headers)
    try:
        yield
    finally:
        _post(url, "/stop_profile", headers)


def _post(url: str, path: str, headers: Mapping[str, str]) -> None:
    import urllib.error
    import urllib.request

    request = urllib.request.Request(f"{url.rstrip('/')}{path}", headers=dict(headers), method="POST")
    try:
        urllib.request.urlopen(request, timeout=600).close()
    except urllib.error.HTTPError as error:
        raise ConfigError(f"the server refused {path}: {error.read().decode(errors='replace')}") from None
    except OSError as error:
        raise ConfigError(f"the server did not answer {path}: {error}") from None


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
