"""What all programs of a model depend on, as named parts of their cache keys."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from enum import Enum
from typing import Any

import pallas_kernels
from jaxengine.device.models.config.decoder_config import DecoderConfig
from jaxengine.device.models.interface import Model
from jaxengine.device.runtime import programs
from jaxengine.startup.model_plan import ModelPlan
from xla_cache import device_fingerprint, environment, source_digests

PACKAGES = ("jaxengine", "buckets", "pallas_kernels", "xla_cache")
"""Where the code of a traced program is looked for."""

NATIVE = "target.native"
"""The part that names the library of custom calls (`startup/native.py`): programs with it run only where that is registered."""


def program_context(model: ModelPlan) -> dict[str, str]:
    """The key parts that all programs of a model on its devices share."""
    target = device_fingerprint(model.devices)
    native = {} if model.native is None else {NATIVE: model.native}
    config = {f"model.{name}": value for name, value in describe_config(model.config).items()}
    return {
        **environment(target["target.platform"]),
        **target,
        **native,
        **source_digests(traced(model.model_class), PACKAGES),
        **config,
        "model.class": f"{model.model_class.__module__}.{model.model_class.__qualname__}",
        "model.parameter_dtype": str(model.dtype),
        "model.quantization": repr(model.schemes),
        **({"model.stages": str(model.stages)} if model.stages else {}),
        "model.kv_dtype": str(model.kv_dtype),
    }


def traced(model_class: type[Model]) -> tuple[str, ...]:
    """The modules that define what is traced: the programs, the model, and every backend that an op may choose by name."""
    return programs.__name__, model_class.__module__, pallas_kernels.__name__


def describe_config(config: DecoderConfig) -> dict[str, str]:
    """Each field of a model's configuration that its class reads, as text that is equal where the values are."""
    return {
        field.name: json.dumps(_plain(getattr(config, field.name)), sort_keys=True)
        for field in dataclasses.fields(config)
        if field.metadata.get("traced", True)
    }


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Enum):
        return value.name
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {type(value).__name__: fields}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    raise TypeError(f"a model configuration holds a {type(value).__name__}, which no cache key can describe: {value!r}")
