"""`jaxengine serve`."""

from __future__ import annotations

import argparse
import logging
import os
import socket
from functools import partial
from typing import TYPE_CHECKING, Any

from jaxengine.errors import ConfigError
from jaxengine.options.config import EngineConfig
from jaxengine.options.flags import add_options, given_options
from jaxengine.options.names import read_environment
from jaxengine.server.address import listening
from jaxengine.server.options import ServerConfig, read_file, read_options
from jaxengine.startup.group.placed import placed
from jaxengine.startup.log import show_log

if TYPE_CHECKING:
    from jaxengine.front.front import Front


def add_commands(commands: Any) -> None:
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
    engine_config = placed(engine_config)

    from jaxengine.device.weights.source import check_name

    check_name(engine_config.model.model)  # before anything large is imported

    if engine_config.parallel.node_rank:
        return _follow(engine_config, server_config)
    if server_config.engines.headless:
        raise ConfigError("headless is for hosts with a node_rank of 1 or more: host 0 answers requests")
    with listening(server_config.network) as listener:
        if server_config.engines.disable_frontend_multiprocessing:
            return _serve_here(listener, engine_config, server_config)
        return _serve_beside(listener, engine_config, server_config)


def _follow(engine_config: EngineConfig, server_config: ServerConfig) -> int:
    """This host's part of an engine whose first host is another."""
    if not server_config.engines.headless:
        engine_config.parallel.check_first()
    from jaxengine.contract.messages import Begin
    from jaxengine.front.engine_process import EngineProcess
    from jaxengine.front.headless import FOLLOWER, run_headless

    log = logging.getLogger("jaxengine")
    begin = Begin(config=engine_config, log_layout=server_config.network.log_format, log_level=log.getEffectiveLevel())

    def launch(index: int) -> EngineProcess:
        return EngineProcess(begin, entry=FOLLOWER)

    return run_headless(
        launch, options=server_config.engines.supervision, shutdown_s=server_config.limits.shutdown_timeout
    )


def _serve_beside(listener: socket.socket, engine_config: EngineConfig, server_config: ServerConfig) -> int:
    """Each engine in a process of its own."""
    from jaxengine.contract.messages import Begin
    from jaxengine.front.engine_process import EngineProcess
    from jaxengine.front.replicas import begin_of

    log = logging.getLogger("jaxengine")
    begin = Begin(
        config=engine_config,
        prepare_grammars=True,
        log_layout=server_config.network.log_format,
        log_level=log.getEffectiveLevel(),
    )

    def launch(index: int) -> EngineProcess:
        return EngineProcess(begin_of(begin, index))

    engines: list[EngineProcess] = []
    try:
        engines.extend(map(launch, range(len(engine_config.parallel.ranks))))
        from jaxengine.server.launch import run_beside  # takes half a second, in which the engines start

        return run_beside(listener, engines, server_config, config=engine_config, launch=launch)
    finally:
        for engine in engines:
            engine.close()


def _serve_here(listener: socket.socket, engine_config: EngineConfig, server_config: ServerConfig) -> int:
    """The engine on a thread of this process."""
    if len(engine_config.parallel.ranks) > 1:
        raise ConfigError(
            f"data_parallel_size={engine_config.parallel.data_parallel_size} needs engines in processes of their own: leave out "
            "disable_frontend_multiprocessing"
        )
    from jaxengine.server.launch import run

    def build() -> Front:
        from jaxengine.grammar.sources import GrammarSources
        from jaxengine.server.formats import Formats
        from jaxengine.startup.device_half import load_builder

        def prepare(grammars: GrammarSources) -> None:
            grammars.prepare()
            grammars.tokenizer.prepare()

        check = partial(Formats.choose, server_config.api)
        return load_builder(engine_config)(engine_config, prepare_grammars=prepare, check=check).front

    return run(listener, build, server_config)
