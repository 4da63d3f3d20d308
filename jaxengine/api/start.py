"""From what a program asks for to an engine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jaxengine.device.weights.source import check_name
from jaxengine.options.config import EngineConfig
from jaxengine.options.names import read_environment
from jaxengine.startup.device_half import load_builder
from jaxengine.startup.group.placed import placed
from jaxengine.startup.log import show_log

if TYPE_CHECKING:
    from jaxengine.startup.engine import HostedEngine


def start_engine(model: str | None, options: Mapping[str, Any]) -> HostedEngine:
    """The engine of an LLM. Wrong options and names are told before anything large is loaded.

    Raises:
        ConfigError, CheckpointError, CapacityError: as `LLM`.
    """
    config = read_options(model, options)
    config.parallel.check_alone()
    # The device half is loaded here and not above, so that a wrong option or path is reported without loading JAX.
    return load_builder(config)(config)


def read_options(model: str | None, options: Mapping[str, Any]) -> EngineConfig:
    """What the options of an LLM come to.

    Raises:
        ConfigError: an option or a name is wrong.
    """
    show_log()
    config = EngineConfig.from_options(**{**read_environment(os.environ), "model": model, **options})
    check_name(config.model.model)
    config = placed(config)
    config.parallel.check_first()
    return config
