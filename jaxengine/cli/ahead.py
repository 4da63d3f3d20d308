"""`jaxengine compile` and `jaxengine plan`: for accelerators that need not be here."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

from jaxengine.collector import without_collection
from jaxengine.errors import ConfigError
from jaxengine.options.config import EngineConfig
from jaxengine.options.flags import add_options, given_options

TARGET_HELP = "what to compile for, such as local, v5e-4, v6e-1 or h200; `python -m xla_cache targets` lists all"


def add_commands(commands: Any) -> None:
    """Declare the commands."""
    compile_ = commands.add_parser("compile", help="build every program for a target, as a bundle to start from")
    _add_common(compile_)
    compile_.add_argument(
        "-o", "--output", required=True, metavar="PATH", help="directory to write, or a single file that ends in .zip"
    )
    compile_.set_defaults(run=run_compile)

    plan = commands.add_parser("plan", help="programs, memory and time on a target, without weights or hardware")
    _add_common(plan)
    plan.add_argument("--json", action="store_true", help="print one JSON object")
    plan.add_argument("--html", type=Path, metavar="FILE", help="write a page with plots and the numbers behind them")
    compiling = plan.add_mutually_exclusive_group()
    compiling.add_argument(
        "--compile",
        dest="compiling",
        action="store_const",
        const="largest",
        default="nothing",
        help="compile the largest and the smallest program of each kind, for the memory they need and the compiler's own times",
    )
    compiling.add_argument(
        "--compile-all", dest="compiling", action="store_const", const="all", help="compile every program"
    )
    plan.set_defaults(run=run_plan)


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model_name", nargs="?", metavar="MODEL", help="checkpoint directory, hub id or config.json; no weights needed"
    )
    parser.add_argument("--target", required=True, help=TARGET_HELP)
    add_options(parser, EngineConfig)


def run_compile(namespace: argparse.Namespace) -> int:
    config = config_for(namespace)
    from jaxengine.startup.log import show_log
    from jaxengine.tools.compile_ahead import compile_ahead

    show_log()
    compile_ahead(config, namespace.target, Path(namespace.output).expanduser())
    return 0


def run_plan(namespace: argparse.Namespace) -> int:
    with without_collection():
        config = config_for(namespace)
        from jaxengine.startup.log import show_log
        from jaxengine.tools.plan import plan_engine
        from jaxengine.tools.plan_report import lines

        show_log()
        plan = plan_engine(config, namespace.target, compiling=namespace.compiling)
    if namespace.html is not None:
        from jaxengine.tools.plan_page import plan_page

        plan_page(plan).write(namespace.html)
    if namespace.json:
        print(json.dumps(plan.to_json()))
    else:
        print("\n".join(lines(plan)))
    return 0 if plan.fits else 1


def config_for(namespace: argparse.Namespace) -> EngineConfig:
    """The engine's options; over as many devices as the target has for each replica, unless they say otherwise."""
    if namespace.target != "local":
        # Compiling for another machine must not take this one's accelerator from whoever uses it.
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
    from jaxengine.device.runtime.target import find_target

    options = given_options(namespace, EngineConfig)
    named = getattr(namespace, "model_name", None)
    if named is not None:
        if "model" in options:
            raise ConfigError(f"the model is given twice: {named!r} and --model {options['model']!r}")
        options["model"] = named
    target = find_target(namespace.target, compiles=False)
    if target.num_devices is not None:
        shared = {name: value for name, value in options.items() if name.startswith(("data_parallel", "pipeline_"))}
        parallel = EngineConfig.from_options(**shared).parallel
        parts = parallel.replicas_here * parallel.pipeline_parallel_size
        options.setdefault("tensor_parallel_size", max(1, target.num_devices // parts))
    return EngineConfig.from_options(**options)
