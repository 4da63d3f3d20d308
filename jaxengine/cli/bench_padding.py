"""`jaxengine bench padding`: what shapes waste on given traffic, without a model."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

from jaxengine.cli.ahead import TARGET_HELP, config_for
from jaxengine.cli.bench_shared import add_dataset, add_html, add_lengths, counter, rate, requests, told
from jaxengine.options.config import EngineConfig
from jaxengine.options.flags import add_options

DEFAULT_GRIDS = ("configured", "linear", "exponential", "traffic")


def add_command(kinds: Any) -> None:
    """Declare the command."""
    padding = kinds.add_parser(
        "padding", help="padded places and device time of a grid of shapes on given traffic, without running a model"
    )
    add_lengths(padding, input_len=None, output_len=None)
    add_dataset(padding)
    group = padding.add_argument_group("replay")
    group.add_argument("--target", default="local", help=f"(local) {TARGET_HELP}")
    group.add_argument(
        "--request-rate",
        type=rate,
        default=float("inf"),
        metavar="RATE",
        help="requests per second; inf has one waiting always, trace is as they were recorded (inf)",
    )
    group.add_argument(
        "--grids",
        nargs="+",
        default=list(DEFAULT_GRIDS),
        metavar="GRID",
        help="that of the engine's options, of planners by name, or planned from this traffic "
        f"({' '.join(DEFAULT_GRIDS)})",
    )
    add_html(group)
    group.add_argument("--output-json", type=Path, metavar="FILE", help="where to write the figures as JSON")
    add_options(padding, EngineConfig)
    padding.set_defaults(run=run_padding)


def run_padding(namespace: argparse.Namespace) -> int:
    config = config_for(namespace)
    from jaxengine.bench.padding import Padding, arrivals_of, shape_lines
    from jaxengine.bench.pictures import padding_page
    from jaxengine.bench.serving import RECORDED, Load
    from jaxengine.device.runtime.target import find_target

    load = Load(rate=namespace.request_rate, seed=namespace.dataset_seed)
    engine = Padding(config, find_target(namespace.target, compiles=False))
    tokenizer = config.model.tokenizer or str(engine.model.source.path)
    arrivals = arrivals_of(requests(namespace, counter(tokenizer)), load)
    recorded = load.rate == RECORDED or float(load.rate) < float("inf")
    rows = [replay.report() for replay in engine.replays(arrivals, namespace.grids, recorded=recorded)]
    left_out = sum(not engine.holds(arrival) for arrival in arrivals)
    figures = {"requests": len(arrivals) - left_out, "left_out": left_out, "grids": rows}
    told(namespace, figures, rows, page=partial(padding_page, rows))
    for row in rows:
        print(f"\n{row['grid']}: --bucket-planner explicit --buckets {row['buckets']}")
        print("\n".join(shape_lines(row)))
    if left_out:
        print(f"\nleft out: {left_out} requests that are longer than the context or the KV cache")
    return 0
