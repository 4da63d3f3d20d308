"""Flags of the command line, generated from the options in `config.py` and its like."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import types
import typing
from collections.abc import Sequence
from typing import Any, NoReturn

from jaxengine.errors import nearest
from jaxengine.options.names import known_names
from jaxengine.options.option import iter_options

EPILOG = (
    "vLLM's other names are known too: what asks for what is done anyway is taken, the rest is refused with what there is "
    "instead. `jaxengine options` lists them all."
)
HAS_NAMES = "vllm_names"
"""In a namespace, that vLLM's names were declared."""


class Parser(argparse.ArgumentParser):
    """argparse, except that options are never abbreviated, an unknown one names the nearest known, and an error is two lines.

    Its many options are declared when it first reads or helps: of all commands one does.
    """

    def __init__(self, **keywords: Any) -> None:
        self._later: tuple[type, ...] = ()
        self._knows_names = False
        super().__init__(**keywords, allow_abbrev=False)

    def declare_later(self, composites: tuple[type, ...]) -> None:
        """Declare the options of `composites` before a word is read or help is given, and vLLM's names when there is a word that
        is no option: most command lines have none."""
        self._later = composites
        self._knows_names = True
        self.epilog = self.epilog or EPILOG

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self._declare()
        words = sys.argv[1:] if args is None else args
        flags = [word.partition("=")[0] for word in words if word.startswith("-")]
        if self._knows_names and not self._option_string_actions.keys() >= set(flags):
            self._knows_names = False
            _add_names(self)
        return super().parse_known_args(args, namespace)

    def format_help(self) -> str:
        self._declare()
        return super().format_help()

    def _declare(self) -> None:
        later, self._later = self._later, ()
        for composite in later:
            _add_options(self, composite)

    def error(self, message: str) -> NoReturn:
        if message.startswith("unrecognized arguments: "):
            given = message.removeprefix("unrecognized arguments: ").split()[0].split("=")[0]
            shown = [action for action in self._actions if action.help != argparse.SUPPRESS]
            message = (
                f"unknown option {given}.{nearest(given, [flag for action in shown for flag in action.option_strings])}"
            )
        self.exit(2, f"{self.prog}: error: {message}\n{self.prog} --help shows every option\n")


def as_written(words: Sequence[str]) -> list[str]:
    """Words as vLLM's users write them, in the one form that the parser knows.

    `--max_model_len=4k` is `--max-model-len=4k`, `--flag=false` is `--no-flag`, and `--option.key value` adds a key to an option
    that takes JSON.
    """
    written: list[str] = []
    keys: dict[str, dict[str, Any]] = {}
    rest = iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        if not word.startswith("--"):
            written.append(word)
            continue
        name = name.replace("_", "-")
        option, *path = name.split(".")
        if path:
            keys.setdefault(option, {})[path[0].replace("-", "_")] = _json(value if equals else next(rest, ""))
        elif value.lower() in ("true", "false"):
            written.append(name if value.lower() == "true" else f"--no-{name.removeprefix('--')}")
        else:
            written.append(f"{name}{equals}{value}")
    return written + [f"{option}={json.dumps(given)}" for option, given in keys.items()]


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def add_options(parser: argparse.ArgumentParser, *composites: type) -> None:
    """A flag for every option of `composites`, grouped as their dataclasses are; and vLLM's names that are no options, so that
    they are read and their fate is told: the help does not show them."""
    if isinstance(parser, Parser):
        parser.declare_later(composites)
        return
    for composite in composites:
        _add_options(parser, composite)
    _add_names(parser)
    parser.epilog = parser.epilog or EPILOG


def _add_options(parser: argparse.ArgumentParser, composite: type) -> None:
    for group in dataclasses.fields(composite):
        shown, hints = parser.add_argument_group(f"{group.name} options"), typing.get_type_hints(group.default_factory)
        for spec in dataclasses.fields(group.default_factory):  # type: ignore[arg-type]
            names = (spec.name, *spec.metadata["aliases"])
            flags = [f"--{name.replace('_', '-')}" for name in names]
            short = [f"-{alias}" for alias in spec.metadata["aliases"] if len(alias) <= 3]
            flags += [flag for flag in short if flag not in parser._option_string_actions]  # a command's own come first
            # suppressed, so that only what the user gave reaches EngineConfig and its own defaults stay the only ones
            keywords: dict[str, Any] = {"dest": spec.name, "help": spec.metadata["help"], "default": argparse.SUPPRESS}
            if isinstance(spec.default, bool):
                keywords["action"] = argparse.BooleanOptionalAction
            else:
                keywords["type"] = _reader(spec, hints[spec.name])
                if isinstance(keywords["type"], _Items):
                    keywords |= {"nargs": "+", "action": _Extend}
                choices = spec.metadata["choices"]
                keywords["metavar"] = f"{{{','.join(choices)}}}" if choices else spec.name.rsplit("_", 1)[-1].upper()
            shown.add_argument(*flags, **keywords)


def _add_names(parser: argparse.ArgumentParser) -> None:
    for name, known in known_names().items():
        flags = [f"--{name.replace('_', '-')}"] + ([f"-{known.short}"] if known.short else [])
        if not parser._option_string_actions.keys().isdisjoint(flags):
            continue
        keywords: dict[str, Any] = {"dest": name, "help": argparse.SUPPRESS, "default": argparse.SUPPRESS}
        if known.is_flag:
            keywords["action"] = argparse.BooleanOptionalAction
        elif known.is_list:
            keywords["nargs"] = "*"
        parser.add_argument(*flags, **keywords)
    parser.set_defaults(**{HAS_NAMES: True})


@dataclasses.dataclass(frozen=True)
class _Items:
    """Reads one word of an option that takes several; `split` ones may also be written with commas."""

    item: type
    split: bool

    def __call__(self, text: str) -> tuple[Any, ...]:
        words = text.replace(" ", ",").split(",") if self.split else [text]
        if text.startswith("["):  # a JSON list, as vLLM takes it
            words = [item if isinstance(item, str) else json.dumps(item) for item in json.loads(text)]
        return tuple(self.item(word) for word in words if word)

    def __repr__(self) -> str:
        return f"list of {self.item.__name__}"


class _Extend(argparse.Action):
    """Joins the items of all words, as one tuple."""

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: Any = None) -> None:
        before = getattr(namespace, self.dest, None) or ()
        setattr(namespace, self.dest, (*before, *(item for items in values for item in items)))


def _reader(spec: dataclasses.Field[Any], kind: Any) -> Any:
    """What reads the words of an option that is annotated as of this `kind`."""
    options = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    if any(typing.get_origin(option) is tuple for option in options):
        item = next(typing.get_args(option)[0] for option in options if typing.get_origin(option) is tuple)
        return _Items(item, split=spec.metadata["split"])
    kind = str if str in options else next((option for option in (int, float) if option in options), str)
    return _Nullable(kind) if type(None) in options else kind


@dataclasses.dataclass(frozen=True)
class _Nullable:
    """Reads one word; `None` is an option that is not given."""

    kind: type

    def __call__(self, text: str) -> Any:
        return None if text == "None" else self.kind(text)

    def __repr__(self) -> str:
        return self.kind.__name__


def defaults(composite: type) -> dict[str, Any]:
    """What the options of `composite` are when they are not given, by the names under which flags are kept; vLLM's names None."""
    own = {
        spec.name: {} if spec.default is dataclasses.MISSING else spec.default for _, spec in iter_options(composite)
    }
    return {**dict.fromkeys(known_names()), **own}


def given_options(namespace: argparse.Namespace, *composites: type) -> dict[str, Any]:
    """What the command line gave of the options of `composites` and of vLLM's names."""
    names = {spec.name for composite in composites for _, spec in iter_options(composite)}
    if hasattr(namespace, HAS_NAMES):
        names |= known_names().keys()
    return {name: value for name, value in vars(namespace).items() if name in names}
