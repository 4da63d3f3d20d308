"""A checkpoint with quantised matrices, seen as one that has each matrix's parts under the plain matrix's name.

    q_proj.weight          numbers `[out, in]`: int8, float8, or uint8, which are 4 bits: from -8 on, or of a float
    q_proj.weight.scale    `[out, Q]`
    q_proj.weight.zero     `[out, Q]`, where there are zeros
    q_proj.weight.tensor_scale  `[1]`, where scales have a factor in common
    q_proj.weight.order    `[in]`, where columns are not in the order of inputs

So the weight tables of the families hold for it: they cut rows, which all of these but the order have in common. What is no
matrix of a layer (a router, the head) is `q_proj.weight` in float32 and nothing else.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from jaxengine.device.weights.checkpoint import TensorCheckpoint
from jaxengine.device.weights.formats import Format
from jaxengine.device.weights.formats.words import FLOAT4
from jaxengine.device.weights.mapped_file import StoredTensor
from jaxengine.device.weights.problems import Problems
from jaxengine.device.weights.rules import Array
from jaxengine.errors import CheckpointError

TYPES = {"int4": "U8", "float4_e2m1fn": "U8", "int8": "I8", "float8_e4m3fn": "F8_E4M3"}
FLOATS = ("F16", "BF16", "F32", "F64")
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
        """`format_of` a module's name is how it should be stored; `dense` a plain tensor's: whether it is asked for as that."""
        self.path: Path = checkpoint.path
        self._checkpoint = checkpoint
        self._formats: dict[str, Format] = {}
        self._parts: dict[str, _Part] = {}
        problems = Problems()
        tensors = dict(checkpoint.tensors)
        for module, found in _modules(checkpoint.tensors, format_of):
            names = (found.main, *found.others, *found.unread)
            own = {part: tensors.pop(f"{module}{found.joint}{part}", None) for part in names}
            stored = {part: tensor for part, tensor in own.items() if tensor is not None}
            try:
                shape = found.shape(stored)
            except ValueError as error:
                problems.add("quantised matrices that are not as quantization_config says", module, str(error))
                continue
            self._formats[module] = found
            plain = f"{module}{found.plain}"
            for part, tensor in _parts(found, shape, dense=dense(plain)).items():
                made = plain if part in ("weight", "dense") else f"{plain}.{part}"
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
        views = {last: self._checkpoint.view(name) for last, name in self._stored(part.module).items()}
        try:
            return own.parts.get(part.name, functools.partial(_dense, own))(views)
        except ValueError as error:
            raise CheckpointError(f"{self.path}: {part.module}: {error}") from None

    def release(self, name: str) -> None:
        """Give up the host memory of a tensor that has been consumed."""
        part = self._parts.get(name)
        for stored in [name] if part is None else self._stored(part.module).values():
            self._checkpoint.release(stored)

    def _stored(self, module: str) -> dict[str, str]:
        """Names of a module's tensors by their last parts."""
        own = self._formats[module]
        names = {last: f"{module}{own.joint}{last}" for last in (own.main, *own.others)}
        return {last: name for last, name in names.items() if name in self._checkpoint.tensors}


def _modules(
    tensors: Mapping[str, StoredTensor], format_of: Callable[[str], Format | None]
) -> Iterator[tuple[str, Format]]:
    """Those with quantised matrices. A tensor of floating point is no matrix's numbers: it may be a norm's."""
    for name, stored in tensors.items():
        for joint in ".", "_":
            module, _, last = name.rpartition(joint)
            found = format_of(module)
            if found is not None and (found.joint, found.main) == (joint, last) and stored.dtype_name not in FLOATS:
                yield module, found


def _parts(own: Format, shape: tuple[int, ...], *, dense: bool) -> dict[str, StoredTensor]:
    *experts, outputs, inputs = shape

    def of_columns(columns: int) -> tuple[int, ...]:
        return (*experts, columns, outputs) if experts else (outputs, columns)

    if dense:
        return {"dense": _stored("F32", of_columns(inputs))}
    numbers = own.numbers
    of_groups = of_columns(1 if numbers.group is None else -(-inputs // numbers.group))
    shapes = {"weight": of_columns(inputs), "tensor_scale": (1,), "order": (inputs,)}
    types = {"weight": TYPES[numbers.dtype], "order": "I32"}
    return {part: _stored(types.get(part, "F32"), shapes.get(part, of_groups)) for part in own.parts if part != "dense"}


def _stored(dtype_name: str, shape: tuple[int, ...]) -> StoredTensor:
    stored = StoredTensor(dtype_name, shape, 0, 0)
    assert stored.dtype is not None
    return StoredTensor(dtype_name, shape, 0, math.prod(shape) * stored.dtype.itemsize)


def _dense(own: Format, views: Mapping[str, Array]) -> Array:
    """What stands for the matrix, its columns in the order of inputs."""
    parts = {name: part(views) for name, part in own.parts.items()}
    if own.numbers.dtype == "float4_e2m1fn":
        matrix = FLOAT4[parts["weight"]]
    else:
        matrix = parts["weight"].astype(np.float32) - (8 if own.numbers.dtype == "int4" else 0)
    inputs = matrix.shape[1]

    def of_inputs(of_groups: Array) -> Array:
        return np.repeat(of_groups.astype(np.float32), own.numbers.group or inputs, axis=1)[:, :inputs]

    if "zero" in parts:
        matrix -= of_inputs(parts["zero"])
    matrix *= of_inputs(parts["scale"])
    if "tensor_scale" in parts:
        matrix *= parts["tensor_scale"]
    return matrix[:, np.argsort(parts["order"])] if "order" in parts else matrix
