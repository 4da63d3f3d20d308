"""The device half of an engine, loaded once options are known to be right: it takes a second."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxengine.collector import without_collection
from jaxengine.options.config import EngineConfig
from jaxengine.startup.native_ahead import begin_ahead

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxengine.startup.build import Engine


def load_builder(config: EngineConfig) -> Callable[..., Engine]:
    """`build_engine`. What this start calls of the CPU's own products is begun before JAX is loaded."""
    with without_collection():
        begin_ahead(config)
        from jaxengine.startup.build import build_engine

    return build_engine
