"""Which dtype the weights and activations have."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from jaxengine.errors import ConfigError, nearest

logger = logging.getLogger("jaxengine")

NAMES: Mapping[str, np.dtype[Any]] = {
    "float32": np.dtype(np.float32),
    "float": np.dtype(np.float32),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
    "half": np.dtype(np.float16),
}


FLOAT16_STAND_INS: Mapping[str, str] = {"tpu": "bfloat16", "cpu": "float32"}


def resolve_dtype(option: str, *, checkpoint: str | None, platform: str) -> np.dtype[Any]:
    """The dtype to load the weights in and to compute with.

    `auto` is the checkpoint's own dtype, with one exception, and a line that says so: float16 becomes bfloat16 on TPUs, whose
    matrix units have no float16, and float32 on CPUs, where XLA multiplies float16 15 to 25 times slower than either other
    type. vLLM's `auto` makes float16 of float32 checkpoints; that changes results without being asked and overflows where
    bfloat16 would not, so a float32 checkpoint stays float32 here and `--dtype bfloat16` is there for who wants the speed.

    Args:
        option: The `dtype` option: auto, half, float16, bfloat16, float or float32.
        checkpoint: What config.json names as `dtype` or `torch_dtype`; None where it names nothing, which is float32.
        platform: tpu, gpu or cpu.

    Raises:
        ConfigError: not such a dtype, or a checkpoint in a type that is not one of them.
    """
    if option != "auto":
        if option not in NAMES:
            raise ConfigError(
                f"dtype must be auto or one of {', '.join(NAMES)}, got {option!r}.{nearest(option, NAMES)}"
            )
        return NAMES[option]
    name = (checkpoint or "float32").removeprefix("torch.")
    if name not in NAMES:
        raise ConfigError(
            f"the checkpoint's dtype is {name!r}, which the engine cannot compute with; pass dtype=bfloat16 or float32"
        )
    if NAMES[name] == np.float16 and platform in FLOAT16_STAND_INS:
        stand_in = FLOAT16_STAND_INS[platform]
        logger.warning(
            "float16 checkpoint: loaded as %s, since float16 is not for a %s (dtype overrides)", stand_in, platform
        )
        return NAMES[stand_in]
    return NAMES[name]
