"""Arrays by name, of the host or of devices, as a checkpoint."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxengine.device.weights.dummy import DTYPE_NAMES
from jaxengine.device.weights.mapped_file import StoredTensor
from jaxengine.device.weights.rules import Array
from jaxengine.errors import RequestError


class NamedArrays:
    """A `TensorCheckpoint` of `arrays`, NumPy's or JAX's. An array of a device comes to the host when it is viewed.

    Raises:
        RequestError: one has a dtype that no checkpoint has.
    """

    def __init__(self, arrays: Mapping[str, Any]) -> None:
        self.path = Path("the arrays given")
        self.arrays = arrays
        self.tensors: Mapping[str, StoredTensor] = {name: _stored(name, array) for name, array in arrays.items()}

    def view(self, name: str) -> Array:
        return np.asarray(self.arrays[name])[...]

    def release(self, name: str) -> None:
        """They are the caller's."""


def _stored(name: str, array: Any) -> StoredTensor:
    dtype, shape = np.dtype(array.dtype), tuple(array.shape)
    if dtype not in DTYPE_NAMES:
        raise RequestError(
            f"the weights {name} have dtype {dtype}, and must be numbers of a checkpoint", param="weights"
        )
    return StoredTensor(DTYPE_NAMES[dtype], shape, 0, math.prod(shape) * dtype.itemsize)
