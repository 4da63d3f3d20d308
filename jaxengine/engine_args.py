"""vLLM's `EngineArgs`: the options of an engine as one value, to be made in one place and used in another."""

from __future__ import annotations

from typing import Any

from jaxengine.config import EngineConfig


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

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.options.items())})"

    def create_engine_config(self) -> EngineConfig:
        """What the options come to."""
        return EngineConfig.from_options(**self.options)


class AsyncEngineArgs(EngineArgs):
    """The same for `AsyncLLM`."""
