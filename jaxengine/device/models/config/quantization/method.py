"""What is known of a method: one value for each, in a file of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from jaxengine.device.layers.schemes.stored import StoredFormats
from jaxengine.device.models.config.hf import ConfigReader


@dataclass(frozen=True, slots=True)
class Method:
    """How a `quantization_config` of this `quant_method` is read, and which keys say nothing of how matrices are stored."""

    read: Callable[[ConfigReader], StoredFormats]
    ignored: tuple[str, ...] = ()
