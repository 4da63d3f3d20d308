"""`jaxengine serve`."""

from __future__ import annotations

import argparse
import os
from functools import partial
from typing import TYPE_CHECKING, Any

from jaxengine.errors import ConfigError
from jaxengine.options.config import EngineConfig
from jaxengine.options.flags import add_options, given_options
from jaxengine.options.names import read_environment
from jaxengine.server.options import ServerConfig, read_file, read_options
from jaxengine.startup.progress import show_log

if TYPE_CHECKING:
    from jaxengine.front.front import Front


def add_command(commands: Any) -> None:
    """Declare the command."""
    serve = commands.add_parser("serve", help="an OpenAI-compatible HTTP server")
    serve.add_argument("model_name", nargs="?", metavar="MODEL", help="the same as --model")
    serve.add_argument("--config", metavar="FILE", help="YAML file of options; those given here win")
    add_options(serve, EngineConfig, ServerConfig)
    serve.set_defaults(run=run)


def run(namespace: argparse.Namespace) -> int:
    show_log("text")
    if namespace.model_name is not None:
        if hasattr(namespace, "model"):
            raise ConfigError(f"the model is given twice: {namespace.model_name!r} and --model {namespace.model!r}")
        namespace.model = namespace.model_name
    file = read_file(namespace.config) if namespace.config else {}
    given = given_options(namespace, EngineConfig, ServerConfig)
    engine_config, server_config = read_options({**read_environment(os.environ), **file, **given})
    show_log(server_config.network.log_format)

    from jaxengine.device.weights.source import check_name

    check_name(engine_config.model.model)  # before anything large is imported

    from jaxengine.server.formats import Formats
    from jaxengine.server.launch import run as serve

    def build() -> Front:
        from jaxengine.startup.build import build_engine

        check = partial(Formats.choose, server_config.api)
        return build_engine(engine_config, prepare_grammars=True, check=check).front

    return serve(build, server_config)
