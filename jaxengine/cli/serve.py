"""`jaxengine serve`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from jaxengine.cli.options import add_options, given_options
from jaxengine.config import EngineConfig
from jaxengine.errors import ConfigError
from jaxengine.server.options import ServerConfig, read_file

if TYPE_CHECKING:
    from jaxengine.startup.build import Engine


def add_command(commands: Any) -> None:
    """Declare the command."""
    serve = commands.add_parser("serve", help="an OpenAI-compatible HTTP server")
    serve.add_argument("model_name", nargs="?", metavar="MODEL", help="the same as --model")
    serve.add_argument("--config", metavar="FILE", help="YAML file of options; those given here win")
    add_options(serve, EngineConfig)
    add_options(serve, ServerConfig)
    serve.set_defaults(run=run)


def run(namespace: argparse.Namespace) -> int:
    if namespace.model_name is not None:
        if hasattr(namespace, "model"):
            raise ConfigError(f"the model is given twice: {namespace.model_name!r} and --model {namespace.model!r}")
        namespace.model = namespace.model_name
    engine, server = read_file(namespace.config) if namespace.config else ({}, {})
    engine_config = EngineConfig.from_options(**{**engine, **given_options(namespace)})
    server_config = ServerConfig.from_options(**{**server, **given_options(namespace, ServerConfig)})

    from jaxengine.server.launch import run as serve
    from jaxengine.startup.progress import show_log

    show_log()

    def build() -> Engine:
        from jaxengine.startup.build import build_engine

        return build_engine(engine_config, prepare_grammars=True)

    return serve(build, server_config)
