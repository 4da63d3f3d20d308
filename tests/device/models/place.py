"""A checkpoint in memory becomes the arrays of a model, by its weight table."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxengine.device.layers.schemes.by_path import Schemes
from jaxengine.device.weights.dummy import DTYPE_NAMES
from jaxengine.device.weights.loader import load
from jaxengine.device.weights.mapped_file import StoredTensor


def place(
    model_class: Any,
    config: Any,
    tensors: Mapping[str, np.ndarray],
    parameters: Mapping[str, jax.ShapeDtypeStruct],
    schemes: Schemes,
) -> tuple[jax.Array, ...]:
    """Arrays in the order of `parameters`; every tensor and every parameter must have its place."""
    rules = schemes.table(model_class.WEIGHTS)
    return tuple(load(InMemory(tensors), rules, parameters, config).values())


class InMemory:
    """A `TensorCheckpoint` of arrays."""

    path = Path("memory")

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        self._arrays = arrays
        self.tensors = {
            name: StoredTensor(DTYPE_NAMES[array.dtype], array.shape, 0, array.nbytes) for name, array in arrays.items()
        }

    def view(self, name: str) -> np.ndarray:
        return self._arrays[name]

    def release(self, name: str) -> None: ...
