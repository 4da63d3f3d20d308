"""What a checkpoint says of a quantised KV cache."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxengine.device.models.config.quantization.values import WHERE
from jaxengine.errors import ConfigError


def read_cache_scheme(values: Mapping[str, Any]) -> str | None:
    """What config.json says of a quantised KV cache, `int8` or `fp8`; None: nothing.

    Raises:
        ConfigError: it is another.
    """
    given = values.get("quantization_config") or values.get("compression_config") or {}
    inner = given.get("quantization") or {}  # as ModelOpt nests it
    algorithm = given.get("kv_cache_quant_algo") or inner.get("kv_cache_quant_algo")
    scheme = given.get("kv_cache_scheme")
    if algorithm is not None and algorithm.upper() != "FP8":
        raise _cache_not_built(f"kv_cache_quant_algo {algorithm!r}")
    if isinstance(scheme, Mapping):
        symmetric, dynamic = scheme.get("symmetric", True), scheme.get("dynamic") or False
        if scheme.get("num_bits", 8) != 8 or not symmetric or dynamic:
            raise _cache_not_built(f"kv_cache_scheme {dict(scheme)}")
        return "int8" if scheme.get("type", "float") == "int" else "fp8"
    return "fp8" if scheme or algorithm else None


def _cache_not_built(what: str) -> ConfigError:
    return ConfigError(
        f"{WHERE}: {what} is not built; static fp8 and int8 are. kv_cache_dtype='bfloat16', 'fp8' or 'int8' decides instead."
    )
