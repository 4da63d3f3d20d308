"""A checkpoint with quantised matrices, seen as one that has each matrix's parts under the plain matrix's name.

    q_proj.weight          numbers `[out, in]`: int8, float8, or uint8, which are 4 bits: from -8 on, or of a float
    q_proj.weight.scale    `[out, K]`
    q_proj.weight.zero     `[out, K]`, where there are zeros
    q_proj.weight.tensor_scale  `[1]`, where scales have a factor in common
    q_proj.weight.order    `[in]`, where columns are not in the order of inputs

So the weight tables of the families hold for it: they cut rows, which all of these but the order have in common. What is no
matrix of a layer (a router, the head) is `q_proj.weight` in float32 and nothing else.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from jaxengine.device.weights.checkpoint import TensorCheckpoint
from jaxengine.device.weights.formats import Format
from jaxengine.device.weights.mxfp4 import NUMBERS
from jaxengine.device.weights.problems import Problems
from jaxengine.device.weights.rules import Array
from jaxengine.device.weights.safetensors_file import StoredTensor
from jaxengine.errors import CheckpointError

TYPES = {"int4": "U8", "float4_e2m1fn": "U8", "int8": "I8", "float8_e4m3fn": "F8_E4M3"}
ACTIVATION_SCALES = ("input_scale", "activation_scale")

logger = logging.getLogger("jaxengine")


@dataclass(frozen=True)
class _Part:
    """A tensor that is made of a module's."""

    module: str
    name: str


class UnpackedCheckpoint:
    """A `TensorCheckpoint`.

    Raises:
        CheckpointError: tensors of quantised matrices are missing or of wrong types or shapes; all of them are listed.
    """

    def __init__(
        self,
        checkpoint: TensorCheckpoint,
        format_of: Callable[[str], Format | None],
        *,
        dense: Callable[[str], bool],
    ) -> None:
        """`format_of` a module's name is how it should be stored; `dense`: whether that matrix is asked for as it is."""
        self.path: Path = checkpoint.path
        self._checkpoint = checkpoint
        self._formats: dict[str, Format] = {}
        self._parts: dict[str, _Part] = {}
        problems = Problems()
        tensors = dict(checkpoint.tensors)
        for name in checkpoint.tensors:
            module, _, last = name.rpartition(".")
            found = format_of(module)
            if found is None or last != found.main or not _quantised(checkpoint.tensors[name]):
                continue
            own = {part: tensors.pop(f"{module}.{part}", None) for part in (last, *found.others, *found.unread)}
            stored = {part: tensor for part, tensor in own.items() if tensor is not None}
            try:
                shape = found.shape(stored)
            except ValueError as error:
                problems.add("quantised matrices that are not as quantization_config says", module, str(error))
                continue
            self._formats[module] = found
            for part, tensor in _parts(found, shape, dense=dense(module)).items():
                made = f"{module}.weight" if part in ("weight", "dense") else f"{module}.weight.{part}"
                self._parts[made] = _Part(module, part)
                tensors[made] = tensor
        problems.raise_any(f"{checkpoint.path} does not fit its config.json")
        unused = [name for name in checkpoint.tensors if name.rpartition(".")[2] in ACTIVATION_SCALES]
        if unused:
            logger.warning(
                "%d scales of the checkpoint are not used (%s, ...): activations are rounded by scales of their own or not",
                len(unused),
                unused[0],
            )
        self.tensors: Mapping[str, StoredTensor] = tensors

    def view(self, name: str) -> Array:
        """The tensor as it is, or made of those that are stored."""
        part = self._parts.get(name)
        if part is None:
            return self._checkpoint.view(name)
        own = self._formats[part.module]
        views = {last: self._checkpoint.view(f"{part.module}.{last}") for last in self._stored(part.module)}
        try:
            if part.name == "dense":
                return _dense(own, views)
            return own.parts[part.name](views)
        except ValueError as error:
            raise CheckpointError(f"{self.path}: {part.module}: {error}") from None

    def release(self, name: str) -> None:
        """Give up the host memory of a tensor that has been consumed."""
        part = self._parts.get(name)
        for stored in [name] if part is None else [f"{part.module}.{last}" for last in self._stored(part.module)]:
            self._checkpoint.release(stored)

    def _stored(self, module: str) -> list[str]:
        own = self._formats[module]
        return [last for last in (own.main, *own.others) if f"{module}.{last}" in self._checkpoint.tensors]


def _quantised(stored: StoredTensor) -> bool:
    """Whether it may be numbers of a quantised matrix, and is no norm beside them."""
    return not stored.dtype_name.startswith(("F16", "BF16", "F32", "F64"))


def _parts(own: Format, shape: tuple[int, int], *, dense: bool) -> dict[str, StoredTensor]:
    outputs, inputs = shape
    if dense:
        return {"dense": _stored("F32", shape)}
    kept = own.kept
    of_groups = (outputs, 1 if kept.group is None else -(-inputs // kept.group))
    shapes = {"weight": shape, "scale": of_groups, "zero": of_groups, "tensor_scale": (1,), "order": (inputs,)}
    types = {"weight": TYPES[kept.weight], "order": "I32"}
    return {part: _stored(types.get(part, "F32"), shapes[part]) for part in own.parts}


def _stored(dtype_name: str, shape: tuple[int, ...]) -> StoredTensor:
    stored = StoredTensor(dtype_name, shape, 0, 0)
    assert stored.dtype is not None
    return StoredTensor(dtype_name, shape, 0, math.prod(shape) * stored.dtype.itemsize)


def _dense(own: Format, views: Mapping[str, Array]) -> Array:
    """What stands for the matrix, its columns in the order of inputs."""
    parts = {name: part(views) for name, part in own.parts.items()}
    if own.kept.weight == "float4_e2m1fn":
        matrix = NUMBERS[parts["weight"]]
    else:
        matrix = parts["weight"].astype(np.float32) - (8 if own.kept.weight == "int4" else 0)
    inputs = matrix.shape[1]

    def of_inputs(of_groups: Array) -> Array:
        return np.repeat(of_groups.astype(np.float32), own.kept.group or inputs, axis=1)[:, :inputs]

    if "zero" in parts:
        matrix -= of_inputs(parts["zero"])
    matrix *= of_inputs(parts["scale"])
    if "tensor_scale" in parts:
        matrix *= parts["tensor_scale"]
    return matrix[:, np.argsort(parts["order"])] if "order" in parts else matrix
