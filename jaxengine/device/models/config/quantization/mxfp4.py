"""MXFP4, of experts, as gpt-oss has it."""

from __future__ import annotations

from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.quantization.method import Method
from jaxengine.device.models.config.quantization.modules import Modules, Quantization
from jaxengine.device.models.config.quantization.values import left_plain
from jaxengine.device.weights.formats.mxfp4 import Mxfp4


def _read(reader: ConfigReader) -> Quantization:
    return Quantization("mxfp4", ((Modules(parts=("experts",)), Mxfp4()),), left_plain(reader))


METHOD = Method(_read)
