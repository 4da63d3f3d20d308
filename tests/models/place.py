"""A checkpoint in memory becomes the arrays of a model, by its weight table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from jaxengine.weights.matching import match


def place(
    model_class: Any, config: Any, tensors: Mapping[str, np.ndarray], parameters: Mapping[str, jax.ShapeDtypeStruct]
) -> tuple[jax.Array, ...]:
    """Arrays in the order of `parameters`; every tensor and every parameter must have its place."""
    arrays: dict[str, jax.Array] = {}
    for assignment in match(tensors, model_class.WEIGHTS, parameters, config):
        for write in assignment.writes:
            tensor = tensors[assignment.source]
            value = write.transform(tensor, config) if write.transform else tensor
            struct = parameters[write.target]
            assert value.shape == struct.shape, (assignment.source, write.target, value.shape, struct.shape)
            arrays[write.target] = jax.device_put(np.asarray(value).astype(struct.dtype), struct.sharding)
    return tuple(arrays[path] for path in parameters)
