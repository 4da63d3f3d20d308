"""`jaxengine options`: every option, and every name known from vLLM, as a page of Markdown (`examples/docs/options.md`)."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Iterable, Iterator
from typing import Any

from jaxengine.contract.sampling_options import OPTIONS
from jaxengine.options.config import EngineConfig
from jaxengine.options.names import Name, known_names
from jaxengine.server.options import ServerConfig


def add_commands(commands: Any) -> None:
    """Declare the command."""
    options = commands.add_parser("options", help="every option and every name known from vLLM, as Markdown")
    options.set_defaults(run=run)


def run(namespace: argparse.Namespace) -> int:
    print("\n".join(page()))
    return 0


def page() -> Iterator[str]:
    """The lines of the page."""
    yield from (
        "# Options",
        "",
        "Made by `jaxengine options`. On the command line an option is written `--max-model-len 4096`, in Python",
        "`LLM(max_model_len=4096)`, in a file for `serve --config` as a YAML key. None is an option that is not given.",
    )
    for composite, where in ((EngineConfig, "all commands, and `LLM(...)`"), (ServerConfig, "`jaxengine serve`")):
        for group in dataclasses.fields(composite):
            yield from ("", f"## {group.name.capitalize()}: {where}", "")
            yield from _table(
                ("option", "default", "meaning"),
                (
                    (_names(spec.name, *spec.metadata["aliases"]), _default(spec), _meaning(spec))
                    for spec in dataclasses.fields(group.default_factory)  # type: ignore[arg-type]
                ),
            )
    yield from (
        "",
        "## Sampling: each request, `SamplingParams(...)`, `jaxengine generate`, generation_config.json",
        "",
        "The numbers by which tokens are chosen, at every endpoint that generates. They are applied in this order.",
        "",
    )
    yield from _table(
        ("option", "default", "allowed", "meaning"),
        ((_names(option.name), f"`{option.default}`", option.allowed, option.about) for option in OPTIONS),
    )
    yield from (
        "",
        "## vLLM's other names",
        "",
        "Known on the command line and to `LLM(...)`. Values that ask for what is done anyway are taken. Others are *refused*,",
        "have *no effect* and a line in the log that says so, or are *read as* an option from above.",
        "",
    )
    yield from _table(
        ("name", "taken", "other values", "instead"),
        ((_names(name), _neutral(known), known.fate, known.says) for name, known in known_names().items()),
    )
    yield from (
        "",
        "## vLLM's environment variables",
        "",
        "An option that is given goes before a variable. A variable without effect is named in the log.",
        "",
    )
    yield from _table(
        ("variable", "", "instead"),
        (
            (f"`{name}`", "read" if variable.fate == "read as" else "no effect", variable.says)
            for name, variable in known_names("variables").items()
        ),
    )


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    for row in (head, ("---",) * len(head), *rows):
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"


def _names(*names: str) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _default(spec: dataclasses.Field[Any]) -> str:
    default = {} if spec.default is dataclasses.MISSING else spec.default
    return "" if default in (None, "", {}, ()) else f"`{_written(default)}`"


def _meaning(spec: dataclasses.Field[Any]) -> str:
    choices = spec.metadata["choices"]
    return f"{spec.metadata['help']} ({', '.join(choices)})" if choices else str(spec.metadata["help"])


def _neutral(known: Name) -> str:
    return ", ".join(f"`{_written(value)}`" for value in known.neutral if value not in ("", [], {}))


def _written(value: Any) -> str:
    if isinstance(value, str):
        return value
    return " ".join(map(str, value)) if isinstance(value, tuple) else json.dumps(value)
