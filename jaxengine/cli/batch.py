"""`jaxengine run-batch`."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from jaxengine.options.config import EngineConfig
from jaxengine.options.flags import add_options, given_options
from jaxengine.options.names import read_environment
from jaxengine.server.options import ApiConfig, LimitConfig, read_options
from jaxengine.startup.log import show_log


@dataclass(frozen=True, kw_only=True)
class AnswerConfig:
    """The options of a server that are about its answers."""

    api: ApiConfig = field(default_factory=ApiConfig)
    limits: LimitConfig = field(default_factory=LimitConfig)


def add_commands(commands: Any) -> None:
    """Declare the command."""
    batch = commands.add_parser(
        "run-batch", help="answer a file of requests, a line of JSON each (OpenAI's batch format)"
    )
    batch.add_argument(
        "-i", "--input-file", required=True, metavar="FILE", help="requests: custom_id, method, url, body"
    )
    batch.add_argument(
        "-o", "--output-file", required=True, metavar="FILE", help="answers, in the order of the requests"
    )
    add_options(batch, EngineConfig, AnswerConfig)
    batch.set_defaults(run=run)


def run(namespace: argparse.Namespace) -> int:
    show_log("text")
    given = given_options(namespace, EngineConfig, AnswerConfig)
    # Lines wait for their turn as long as the batch takes.
    engine_config, server_config = read_options({"request_timeout": 0.0, **read_environment(os.environ), **given})

    import asyncio

    from jaxengine.cli.batch_run import check_files, run_batch
    from jaxengine.device.weights.source import check_name
    from jaxengine.server.formats import Formats
    from jaxengine.startup.device_half import load_builder

    source, target = Path(namespace.input_file), Path(namespace.output_file)
    check_files(source, target)
    check_name(engine_config.model.model)
    engine = load_builder(engine_config)(engine_config, check=partial(Formats.choose, server_config.api))
    try:
        asyncio.run(run_batch(engine.front, server_config, source, target))
    finally:
        engine.close()
    return 0  # what is wrong with a line is said in its answer
