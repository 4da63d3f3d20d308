"""Flags of the command line, generated from the options in `config.py` and its like."""

from __future__ import annotations

import argparse
import dataclasses
import json
import types
import typing
from typing import Any, NoReturn

from jaxengine import config
from jaxengine.errors import nearest
from jaxengine.server.options import RETIRED_OPTIONS


class Parser(argparse.ArgumentParser):
    """argparse, except that options are never abbreviated and an unknown one names the nearest known."""

    def __init__(self, **keywords: Any) -> None:
        super().__init__(**keywords, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        if message.startswith("unrecognized arguments: "):
            given = message.removeprefix("unrecognized arguments: ").split()[0].split("=")[0]
            known = [option for action in self._actions for option in action.option_strings]
            name = given.removeprefix("--").replace("-", "_")
            successor = RETIRED_OPTIONS.get(name) or config.RETIRED_OPTIONS.get(name)
            message = f"unknown option {given}.{' ' + successor if successor else nearest(given, known)}"
        super().error(message)


def dashed(word: str) -> str:
    """`--max_model_len=4k` as `--max-model-len=4k`: vLLM's users write either."""
    if not word.startswith("--"):
        return word
    name, equals, value = word.partition("=")
    return f"{name.replace('_', '-')}{equals}{value}"


def add_options(parser: argparse.ArgumentParser, composite: type) -> None:
    """A flag for every option of `composite`, grouped as its dataclasses are."""
    groups = {group.name: parser.add_argument_group(f"{group.name} options") for group in dataclasses.fields(composite)}
    for group, spec in config.iter_options(composite):
        flags = [f"--{name.replace('_', '-')}" for name in (spec.name, *spec.metadata["aliases"])]
        # suppressed, so that only what the user gave reaches EngineConfig and its own defaults stay the only ones
        keywords: dict[str, Any] = {"dest": spec.name, "help": spec.metadata["help"], "default": argparse.SUPPRESS}
        if isinstance(spec.default, bool):
            keywords["action"] = argparse.BooleanOptionalAction
        else:
            keywords["type"] = _reader(spec, composite)
            if isinstance(keywords["type"], _Items):
                keywords |= {"nargs": "+", "action": _Extend}
            keywords["choices"] = spec.metadata["choices"]
            keywords["metavar"] = None if spec.metadata["choices"] else spec.name.rsplit("_", 1)[-1].upper()
        groups[group].add_argument(*flags, **keywords)


@dataclasses.dataclass(frozen=True)
class _Items:
    """Reads one word of an option that takes several; `split` ones may also be written with commas."""

    item: type
    split: bool

    def __call__(self, text: str) -> tuple[Any, ...]:
        words = text.replace(" ", ",").split(",") if self.split else [text]
        if text.startswith("["):  # a JSON list, as vLLM takes it
            words = [str(item) for item in json.loads(text)]
        return tuple(self.item(word) for word in words if word)

    def __repr__(self) -> str:
        return f"list of {self.item.__name__}"


class _Extend(argparse.Action):
    """Joins the items of all words, as one tuple."""

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: Any = None) -> None:
        before = getattr(namespace, self.dest, ())
        setattr(namespace, self.dest, (*before, *(item for items in values for item in items)))


def _reader(spec: dataclasses.Field[Any], composite: type) -> Any:
    hints = typing.get_type_hints(_owner(spec, composite))
    kind = hints[spec.name]
    options = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    if any(typing.get_origin(option) is tuple for option in options):
        item = next(typing.get_args(option)[0] for option in options if typing.get_origin(option) is tuple)
        return _Items(item, split=spec.metadata["split"])
    if str in options:
        return str
    return next((option for option in (int, float) if option in options), str)


def _owner(spec: dataclasses.Field[Any], composite: type) -> type:
    for group in dataclasses.fields(composite):
        owner = typing.cast(type, group.default_factory)
        if any(field is spec for field in dataclasses.fields(owner)):
            return owner
    raise AssertionError(f"{spec.name} belongs to no group of options")


def given_options(namespace: argparse.Namespace, composite: type = config.EngineConfig) -> dict[str, Any]:
    """The options of `composite` that the command line gave."""
    names = {spec.name for _, spec in config.iter_options(composite)}
    return {name: value for name, value in vars(namespace).items() if name in names}
