"""Values that several methods have in common, and what is said of those that are not built."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.config.quantization.modules import Modules
from jaxengine.errors import ConfigError

logger = logging.getLogger("jaxengine")

WHERE = "config.json: quantization_config"
INSTEAD = (
    "Use the model's bfloat16 checkpoint; quantization='int8', 'int4' or 'fp8' makes such matrices while it loads."
)
FLOAT8 = "float8_e4m3fn"
MADE = Ignored("how the checkpoint was made, or with which kernels")


def log_weights_only() -> None:
    """Say what becomes of activations that a checkpoint would have in float4."""
    logger.info(
        "the checkpoint rounds activations to 4 bits, which is not built: only its matrices are of 4 bits (W4A16)"
    )


def left_plain(reader: ConfigReader) -> Modules:
    """Modules that are as they are, as most methods list them."""
    lists = (reader.raw("modules_to_not_convert"), reader.raw("ignored_layers"))
    names = [name for given in lists for name in module_names(given)]
    return Modules(parts=tuple(name.removesuffix(".weight").strip(".") for name in names))


def head_is_stored(reader: ConfigReader) -> bool:
    """Whether the head is quantised too."""
    return bool(reader.nullable("lm_head", None, bool))


def module_names(given: Any) -> Sequence[str]:
    """A list of names that may be missing."""
    if given is None:
        return ()
    if isinstance(given, str) or not isinstance(given, Sequence) or not all(isinstance(name, str) for name in given):
        raise ConfigError(f"{WHERE}: a list of modules must be a list of names, got {given!r}")
    return given


def group_size(size: int) -> int | None:
    """Inputs that share a scale; None: all of them."""
    if size < -1 or size == 0:
        raise ConfigError(f"{WHERE}: group_size must be -1 (all inputs) or at least 1, got {size}")
    return None if size == -1 else size


def block_size(given: Any) -> tuple[int, int] | None:
    """Outputs and inputs that share a scale; None: there are no blocks."""
    if given is None:
        return None
    if (
        not isinstance(given, Sequence)
        or len(given) != 2
        or not all(isinstance(size, int) and size > 0 for size in given)
    ):
        raise ConfigError(f"{WHERE}: weight_block_size must be outputs and inputs, such as [128, 128], got {given!r}")
    return given[0], given[1]


def only(key: str, value: int, *allowed: int) -> None:
    """Refuse a value of `key` that is not built."""
    if value not in allowed:
        raise not_built(f"{key}={value}", f"{' and '.join(map(str, allowed))} {'is' if len(allowed) == 1 else 'are'}")


def not_built(what: str, built: str) -> ConfigError:
    """The refusal of `what`; `built`: what is, with its verb."""
    return ConfigError(f"{WHERE}: {what} is not built; {built} built. {INSTEAD}")
