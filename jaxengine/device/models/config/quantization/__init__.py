"""The `quantization_config` of config.json: what a checkpoint says of its quantised matrices, read as strictly as the rest.

Of a method that is not built, of a variant of one that is, and of a key that no one looked at, the message says what can be done.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxengine.device.layers.schemes.stored import StoredFormats
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.config.quantization import awq, compressed_tensors, fp8, gguf, gptq, modelopt, mxfp4
from jaxengine.device.models.config.quantization.method import Method
from jaxengine.device.models.config.quantization.values import INSTEAD, MADE, WHERE
from jaxengine.errors import ConfigError, nearest

DECODED = ("mxfp4",)
"""Methods of checkpoints that can as well be read as plain ones, which the `quantization` option then quantises anew."""
METHODS: Mapping[str, Method] = {
    "awq": awq.METHOD,
    "gptq": gptq.METHOD,
    "fp8": fp8.METHOD,
    "fbgemm_fp8": fp8.FBGEMM,
    "mxfp4": mxfp4.METHOD,
    "modelopt": modelopt.METHOD,
    "compressed-tensors": compressed_tensors.METHOD,
    "gguf": gguf.METHOD,
}
_COMMON = {
    "lm_head": Ignored("the head's tensors say so themselves", allowed=(None, True, False)),
    "modules_to_convert": Ignored("tensors say so themselves"),
}


def read_quantization(values: Mapping[str, Any]) -> StoredFormats | None:
    """What config.json says of quantised matrices; None: there are none.

    Raises:
        ConfigError: a method or a variant that is not built, or a key that is not read.
    """
    given = values.get("quantization_config")
    if given is None:
        given = values.get("compression_config")  # as llm-compressor once wrote it
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise ConfigError(f"{WHERE} must be an object, got {given!r}")
    method = given.get("quant_method")
    if method is None and ("w_bit" in given or "q_group_size" in given):
        method = "awq"
    if not isinstance(method, str) or method not in METHODS:
        raise ConfigError(
            f"the checkpoint is quantised (quantization_config with quant_method {method!r}), which is not built; "
            f"known are {', '.join(METHODS)}.{nearest(str(method), METHODS)} {INSTEAD}"
        )
    reader = ConfigReader({key: value for key, value in given.items() if key != "quant_method"}, where=WHERE)
    result = METHODS[method].read(reader)
    reader.finish({**dict.fromkeys(METHODS[method].ignored, MADE), **_COMMON}, family=f"quantization {method}")
    return result
