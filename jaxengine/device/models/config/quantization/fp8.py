"""float8 as DeepSeek and transformers write it, and as FBGEMM does."""

from __future__ import annotations

from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.quantization.method import Method
from jaxengine.device.models.config.quantization.modules import EVERY, Quantization
from jaxengine.device.models.config.quantization.values import FLOAT8, block_size, left_plain
from jaxengine.device.weights.formats.eight_bit import EightBit


def _read(reader: ConfigReader) -> Quantization:
    reader.choice("activation_scheme", "dynamic", ("dynamic", "static"))
    reader.choice("fmt", "e4m3", ("e4m3", "float8_e4m3fn"))
    reader.choice("expert_dtype", "fp8", ("fp8",))
    reader.choice("scale_fmt", "float", ("float", "ue8m0"))
    block = block_size(reader.raw("weight_block_size"))
    return Quantization(
        "fp8", ((EVERY, EightBit(dtype=FLOAT8, block=block, round_rows=block is None)),), left_plain(reader)
    )


def _read_fbgemm(reader: ConfigReader) -> Quantization:
    return Quantization("fbgemm_fp8", ((EVERY, EightBit(dtype=FLOAT8, round_rows=True)),), left_plain(reader))


METHOD = Method(_read, ignored=("kv_cache_scheme", "dequantize"))
FBGEMM = Method(_read_fbgemm, ignored=("activation_scale_ub",))
