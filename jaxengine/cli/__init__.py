"""The `jaxengine` command, one file per command. JAX is loaded only when there is work."""

from __future__ import annotations

import argparse
import sys
import typing
from collections.abc import Sequence

from jaxengine import __version__
from jaxengine.cli import ahead, batch, bench, cache, chat, generate, reference, report, serve, tools, top
from jaxengine.errors import JaxEngineError
from jaxengine.options.flags import Parser, as_written


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; errors that users can mend are printed in one line and give exit status 1."""
    parser = _parser()
    namespace, unknown = parser.parse_known_args(as_written(sys.argv[1:] if arguments is None else arguments))
    if unknown:
        _subparser(parser, namespace.command).error(f"unrecognized arguments: {' '.join(unknown)}")
    try:
        result: int = namespace.run(namespace)
    except JaxEngineError as error:
        print(f"jaxengine: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return result


def _parser() -> Parser:
    parser = Parser(prog="jaxengine", description="A JAX/XLA-first inference engine for language models.")
    parser.add_argument("--version", action="version", version=f"jaxengine {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="command", required=True, parser_class=Parser)
    chat.add_commands(commands)
    top.add_command(commands)
    generate.add_command(commands)
    serve.add_command(commands)
    batch.add_command(commands)
    bench.add_command(commands)
    ahead.add_commands(commands)
    cache.add_command(commands)
    tools.add_commands(commands)
    report.add_command(commands)
    reference.add_command(commands)
    return parser


def _subparser(parser: argparse.ArgumentParser, command: str) -> Parser:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return typing.cast(Parser, action.choices[command])
    raise AssertionError("the parser has commands")
