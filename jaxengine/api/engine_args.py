"""vLLM's `EngineArgs`: the options of an engine as one value, to be made in one place and used in another."""

from __future__ import annotations

import argparse
from typing import Any, Self, TypeVar

from jaxengine.options.config import EngineConfig
from jaxengine.options.flags import HAS_NAMES, add_options, defaults, given_options

P = TypeVar("P", bound=argparse.ArgumentParser)


class EngineArgs:
    """Options of an engine, by any name that `LLM` takes.

    Args:
        model: as `LLM`'s.
        options: as `LLM`'s.

    Raises:
        ConfigError: an option that is unknown or not allowed.

    Attributes:
        options: all of them by name, as they were given: `LLM(**args.options)`.
    """

    def __init__(self, model: str | None = None, **options: Any) -> None:
        self.options = {"model": model, **options}
        self.create_engine_config()

    @staticmethod
    def add_cli_args(parser: P) -> P:
        """Declare every option, and every name known from vLLM, for a command line of one's own. An option that is not given has
        its default in the namespace, a name None."""
        add_options(parser, EngineConfig)
        parser.set_defaults(**defaults(EngineConfig))
        return parser

    @classmethod
    def from_cli_args(cls, args: argparse.Namespace) -> Self:
        """What such a command line gave. Other arguments of the namespace are left out.

        Raises:
            ConfigError: as `EngineArgs`.
        """
        every = argparse.Namespace(**{HAS_NAMES: True, **vars(args)})
        return cls(**{name: value for name, value in given_options(every, EngineConfig).items() if value is not None})

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.options.items())})"

    def create_engine_config(self) -> EngineConfig:
        """What the options come to."""
        return EngineConfig.from_options(**self.options)


class AsyncEngineArgs(EngineArgs):
    """The same for `AsyncLLM`."""
