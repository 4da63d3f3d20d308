"""`jaxengine bench latency | throughput | serve | startup | account | padding`, with vLLM's option names."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from jaxengine.cli import bench_padding, bench_serve
from jaxengine.cli.bench_shared import add_dataset, add_html, add_lengths, requests, told
from jaxengine.options.config import EngineConfig
from jaxengine.options.flags import add_options, given_options


def add_commands(commands: Any) -> None:
    """Declare the commands."""
    bench = commands.add_parser(
        "bench", help="measure latency, throughput, a running server, starts, or what shapes waste"
    )
    kinds = bench.add_subparsers(dest="bench", metavar="what", required=True, parser_class=type(bench))

    latency = kinds.add_parser("latency", help="seconds until a batch of equal requests is answered")
    add_lengths(latency, input_len=32, output_len=128)
    latency.add_argument("--batch-size", type=int, default=8, help="requests at once (8)")
    latency.add_argument("--num-iters-warmup", type=int, default=10, help="batches before those that count (10)")
    latency.add_argument("--num-iters", type=int, default=30, help="batches that count (30)")
    latency.set_defaults(run=run_latency)

    throughput = kinds.add_parser("throughput", help="tokens per second of many requests, all there from the start")
    add_lengths(throughput, input_len=None, output_len=None)
    add_dataset(throughput)
    throughput.set_defaults(run=run_throughput)

    startup = kinds.add_parser("startup", help="seconds to the first token, with nothing kept and with programs kept")
    startup.add_argument(
        "--num-iters-cold",
        type=int,
        default=1,
        help="starts with an empty cache of programs (1); with 0 one that is not counted fills it",
    )
    startup.add_argument("--num-iters-warm", type=int, default=3, help="starts with a full one (3)")
    startup.set_defaults(run=run_startup)
    account = kinds.add_parser("account", help="where the time of a step goes, beside what the machine allows")
    add_lengths(account, input_len=128, output_len=16)
    account.add_argument("--batch-size", type=int, nargs="+", default=[1, 8, 32], help="sequences at once (1 8 32)")
    account.set_defaults(run=run_account)
    for engine in (latency, throughput, startup, account):
        engine.add_argument("--output-json", type=Path, metavar="FILE", help="where to write the figures as JSON")
        if engine is not latency:
            add_html(engine)
        add_options(engine, EngineConfig)

    bench_serve.add_command(kinds)
    bench_padding.add_command(kinds)


def run_latency(namespace: argparse.Namespace) -> int:
    from jaxengine.bench.offline import latency

    sizes = {"input_len": namespace.input_len, "output_len": namespace.output_len, "batch_size": namespace.batch_size}

    def measured(llm: Any) -> dict[str, Any]:
        figures = latency(llm, **sizes, warmup=namespace.num_iters_warmup, iterations=namespace.num_iters)
        return {**sizes, **figures}

    return _with_engine(namespace, measured)


def run_throughput(namespace: argparse.Namespace) -> int:
    from jaxengine.bench.offline import throughput
    from jaxengine.bench.pictures import throughput_page

    sent: list[Any] = []

    def measured(llm: Any) -> dict[str, Any]:
        def count(text: str) -> int:
            return len(llm.get_tokenizer().encode(text))

        def make(ids: range) -> list[Any]:
            sent.extend(requests(namespace, count, ids))
            return sent

        return throughput(llm, make)

    return _with_engine(namespace, measured, page=lambda figures, facts: throughput_page(figures, sent, facts))


def run_startup(namespace: argparse.Namespace) -> int:
    from jaxengine.bench.pictures import startup_page
    from jaxengine.bench.startup import startup

    options = given_options(namespace, EngineConfig)
    EngineConfig.from_options(**options)  # so that a wrong one is told here
    figures = startup(options, cold=namespace.num_iters_cold, warm=namespace.num_iters_warm)
    return told(namespace, figures, page=partial(startup_page, figures))


def run_account(namespace: argparse.Namespace) -> int:
    from jaxengine.bench.account import account
    from jaxengine.bench.pictures import account_page
    from jaxengine.startup.build import build_engine
    from jaxengine.startup.model_plan import plan_model

    lengths = {"input_len": namespace.input_len, "output_len": max(2, namespace.output_len)}
    config = EngineConfig.from_options(**given_options(namespace, EngineConfig))
    engine, plan = build_engine(config), plan_model(config, weights=False)
    try:
        steps = [step for size in namespace.batch_size for step in account(engine, plan, batch_size=size, **lengths)]
    finally:
        engine.close()
    return told(namespace, {"steps": steps}, steps, page=partial(account_page, steps))


def _with_engine(
    namespace: argparse.Namespace,
    measure: Callable[[Any], dict[str, Any]],
    page: Callable[[dict[str, Any], Any], Any] | None = None,
) -> int:
    from jaxengine.api.llm import LLM

    with LLM(**given_options(namespace, EngineConfig)) as llm:
        figures = measure(llm)
    return told(namespace, figures, page=None if page is None else partial(page, figures))
