"""MXFP4, of experts, as gpt-oss has it."""

from __future__ import annotations

from jaxengine.models.hf import ConfigReader
from jaxengine.models.quantization_config.method import Method
from jaxengine.models.quantization_config.modules import Modules, Quantization
from jaxengine.models.quantization_config.values import left_plain
from jaxengine.weights.formats.mxfp4 import Mxfp4


def _read(reader: ConfigReader) -> Quantization:
    return Quantization("mxfp4", ((Modules(parts=("experts",)), Mxfp4()),), left_plain(reader))


METHOD = Method(_read)
