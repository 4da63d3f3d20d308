"""Reads command lines and Python as far as that goes without a model or a server."""

from __future__ import annotations

import argparse
import inspect
import shlex
import types
from functools import lru_cache
from typing import Any

import jaxengine
from jaxengine import AsyncLLM, cli
from jaxengine.errors import ConfigError
from jaxengine.options.config import EngineConfig
from jaxengine.options.flags import as_written, given_options
from jaxengine.options.names import read_environment
from jaxengine.server.options import ServerConfig, read_options

ENTRIES = {
    ("jaxengine",): (),
    ("python", "-m", "jaxengine.serve"): ("serve",),
    ("vllm",): (),
    ("python", "-m", "vllm.entrypoints.openai.api_server"): ("serve",),
}
"""How a command begins, vLLM's among them, and the words that we know then."""


def as_ours(line: str) -> tuple[dict[str, str], list[str]]:
    """The variables and the words of a command line, for `jaxengine`."""
    words = shlex.split(line.replace("MODEL", "embedded"))
    variables = {}
    while "=" in words[0] and not words[0].startswith("-"):
        name, _, value = words.pop(0).partition("=")
        variables[name] = value
    for entry, ours in ENTRIES.items():
        if tuple(words[: len(entry)]) == entry:
            return variables, [*ours, *words[len(entry) :]]
    raise AssertionError(f"{line} begins with no command that is known")


@lru_cache
def parser() -> argparse.ArgumentParser:
    """The command line, made once: that takes as long as all the rest here."""
    return cli._parser()


def refusal(line: str) -> str:
    """Why a command line is not taken, as far as that is seen without a model or a server; empty when it is."""
    variables, words = as_ours(line)
    try:
        namespace = parser().parse_args(as_written(words))
        if namespace.command == "serve":
            given = given_options(namespace, EngineConfig, ServerConfig)
            read_options({**read_environment(variables), **given})
        elif namespace.command == "generate":
            EngineConfig.from_options(**given_options(namespace, EngineConfig))
    except ConfigError as error:
        return str(error)
    except SystemExit:
        return "it cannot be read"
    return ""


class Understood:
    """Stands for the engine: takes what it takes, and answers nothing."""

    real: type = jaxengine.LLM

    def __init__(self, *model: str, **options: Any) -> None:
        EngineConfig.from_options(**inspect.signature(self.real).bind(*model, **options).arguments.get("options", {}))

    @classmethod
    def from_engine_args(cls, *given: Any, **named: Any) -> Understood:
        inspect.signature(cls.real.from_engine_args).bind(*given, **named)  # type: ignore[attr-defined]
        return cls()

    def __enter__(self) -> Understood:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def chat(self, *given: Any, **named: Any) -> list[Any]:
        inspect.signature(self.real.chat).bind(self, *given, **named)  # type: ignore[attr-defined]
        return []

    def get_default_sampling_params(self) -> jaxengine.SamplingParams:
        return jaxengine.SamplingParams()

    def embed(self, *given: Any, **named: Any) -> list[Any]:
        inspect.signature(self.real.embed).bind(self, *given, **named)  # type: ignore[attr-defined]
        return [types.SimpleNamespace(outputs=types.SimpleNamespace(embedding=[]))]

    def encode(self, *given: Any, **named: Any) -> list[Any]:
        inspect.signature(self.real.encode).bind(self, *given, **named)  # type: ignore[attr-defined]
        return [None]

    def score(self, *given: Any, **named: Any) -> list[Any]:
        inspect.signature(self.real.score).bind(self, *given, **named)  # type: ignore[attr-defined]
        return []

    def get_weights(self) -> dict[str, Any]:
        return {}

    def update_weights(self, *given: Any, **named: Any) -> None:
        inspect.signature(self.real.update_weights).bind(self, *given, **named)  # type: ignore[attr-defined]

    def generate(self, *given: Any, **named: Any) -> list[Any]:
        inspect.signature(self.real.generate).bind(self, *given, **named)  # type: ignore[attr-defined]
        return []


class AsyncUnderstood(Understood):
    """The same for the event loop's."""

    real = AsyncLLM

    async def generate(self, *given: Any, **named: Any) -> Any:  # type: ignore[override]
        inspect.signature(self.real.generate).bind(self, *given, **named)  # type: ignore[attr-defined]
        for nothing in ():
            yield nothing


def stand_in() -> types.SimpleNamespace:
    """A module with the engine's names, of which none starts an engine."""
    names = {name: getattr(jaxengine, name) for name in jaxengine.__all__}
    return types.SimpleNamespace(
        **{**names, "LLM": Understood, "AsyncLLM": AsyncUnderstood, "AsyncLLMEngine": AsyncUnderstood}
    )
