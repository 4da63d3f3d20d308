"""The `jaxengine` command, one file per command. JAX is loaded only when there is work."""

from __future__ import annotations

import argparse
import atexit
import gc
import importlib
import sys
import typing
from collections.abc import Sequence

from jaxengine import __version__
from jaxengine.errors import JaxEngineError
from jaxengine.options.flags import Parser, as_written

COMMANDS = {
    "chat": "chat",
    "complete": "chat",
    "top": "top",
    "generate": "generate",
    "serve": "serve",
    "run-batch": "batch",
    "bench": "bench",
    "compile": "ahead",
    "plan": "ahead",
    "cache": "cache",
    "convert": "tools",
    "doctor": "tools",
    "report": "report",
    "options": "reference",
}
"""The module of each command, in the order of the help."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; errors that users can mend are printed in one line and give exit status 1."""
    words = sys.argv[1:] if arguments is None else arguments
    parser = _parser(words)
    namespace, unknown = parser.parse_known_args(as_written(words))
    if unknown:
        _subparser(parser, namespace.command).error(f"unrecognized arguments: {' '.join(unknown)}")
    atexit.register(gc.freeze)  # a process that ends would look for garbage in all that it loaded: 0.4 s with JAX
    try:
        result: int = namespace.run(namespace)
    except JaxEngineError as error:
        print(f"jaxengine: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return result


def _parser(words: Sequence[str] = ()) -> Parser:
    """That of the command which the words name, or of all where they name none: to load all takes a tenth of a second."""
    parser = Parser(prog="jaxengine", description="A JAX/XLA-first inference engine for language models.")
    parser.add_argument("--version", action="version", version=f"jaxengine {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="command", required=True, parser_class=Parser)
    named = COMMANDS.get(words[0]) if words else None
    for module in dict.fromkeys(COMMANDS.values()) if named is None else (named,):
        importlib.import_module(f"jaxengine.cli.{module}").add_commands(commands)
    return parser


def _subparser(parser: argparse.ArgumentParser, command: str) -> Parser:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return typing.cast(Parser, action.choices[command])
    raise AssertionError("the parser has commands")
