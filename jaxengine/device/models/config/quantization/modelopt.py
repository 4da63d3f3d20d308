"""float8 and NVFP4 as NVIDIA's ModelOpt writes it, in config.json or in a file beside it."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping

from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.quantization.method import Method
from jaxengine.device.models.config.quantization.modules import EVERY, Modules, Quantization
from jaxengine.device.models.config.quantization.values import FLOAT8, MADE, log_weights_only, module_names, not_built
from jaxengine.device.weights.formats import Format, nvfp4
from jaxengine.device.weights.formats.eight_bit import EightBit

FORMATS: Mapping[str, Format] = {"FP8": EightBit(dtype=FLOAT8, round_rows=True), "NVFP4": nvfp4.MODELOPT}


def _read(reader: ConfigReader) -> Quantization:
    inner = reader.section("quantization", ignored={"kv_cache_quant_algo": MADE, "group_size": MADE})
    source = reader if inner is None else inner
    algorithm = source.required("quant_algo", str)
    if algorithm not in FORMATS:
        raise not_built(f"ModelOpt's quant_algo {algorithm!r}", f"{' and '.join(map(repr, FORMATS))} are")
    if algorithm == "NVFP4":
        log_weights_only()
    names = [*module_names(source.raw("exclude_modules")), *module_names(source.raw("ignore"))]
    plain = Modules(
        tuple(name for name in names if "*" not in name),
        tuple(fnmatch.translate(name) for name in names if "*" in name),
    )
    return Quantization("modelopt", ((EVERY, FORMATS[algorithm]),), plain)


METHOD = Method(_read, ignored=("producer", "kv_cache_scheme", "config_groups", "kv_cache_quant_algo", "group_size"))
