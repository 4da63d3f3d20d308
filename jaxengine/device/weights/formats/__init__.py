"""How checkpoints of others store quantised matrices: one file for each way, which says what a matrix is then kept as.

A matrix is a module of the checkpoint with several tensors (`q_proj.qweight`, `q_proj.scales`, ...). All formats are read as
the same five parts: `weight [out, in]`, numbers of 4 or 8 bits, `scale` and `zero [out, Q]` for `Q` groups of inputs,
`tensor_scale [1]` and `order [in]`, which input each column is. What they stand for is `(weight - zero) * scale * tensor_scale`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from jaxengine.device.weights.mapped_file import StoredTensor
from jaxengine.device.weights.rules import Array


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """What a matrix is in the device's memory.

    `dtype` is that of its numbers (int4, int8, float4_e2m1fn, float8_e4m3fn), `group` the inputs that have a scale in
    common (None: all of a row). `zeros`: groups have a number that stands for zero; `ordered`: columns are not in the order of
    inputs; `tensor_scale`: all scales of groups have a factor in common; `byte_scales`: those of an output have, and are bytes
    beside it, as zeros are (`pallas_kernels.scaled_matmul`). That is for numbers with zeros, whose scales are never negative.
    `round_rows`: activations are rounded, each row over a scale of its own; to int8, and multiplied as integers, or to float8, on
    devices to which that is of use.
    """

    dtype: str
    group: int | None = None
    zeros: bool = False
    ordered: bool = False
    tensor_scale: bool = False
    byte_scales: bool = False
    round_rows: bool = False


Part = Callable[[Mapping[str, Array]], Array]
"""`weight [out, in]` in the type in which it is kept, of 4 bits as uint8: integers from 0 for -8 on, or the bits of
a float; `scale` or `zero [out, Q]` or `tensor_scale [1]` of floating point; or `order [in]` in int32."""


class Format(Protocol):
    """A value. Tensors are given by the last part of their names; those that a matrix may have or not may be missing."""

    @property
    def numbers(self) -> Numbers: ...

    @property
    def main(self) -> str:
        """The tensor with the numbers: where it is, there is a matrix of this format."""
        ...

    @property
    def joint(self) -> str:
        """What stands between the module's name and the last part of a tensor's."""
        return "."

    @property
    def plain(self) -> str:
        """What a plain tensor's name has behind the module's."""
        return ".weight"

    @property
    def others(self) -> tuple[str, ...]:
        """What else of a matrix is read, if it is there."""
        ...

    @property
    def unread(self) -> tuple[str, ...]:
        """What else a matrix may have."""
        ...

    def shape(self, tensors: Mapping[str, StoredTensor]) -> tuple[int, ...]:
        """`out, in`; of all experts together, whose matrices are then the transposes, `experts, out, in`.

        Raises:
            ValueError: a tensor is missing, or of another type or shape than the others ask for; it is named.
        """
        ...

    @property
    def parts(self) -> Mapping[str, Part]:
        """What makes `weight`, `scale` and, where they are kept, `zero`, `tensor_scale` and `order` of the tensors.

        Of some there is `dense`, too, what they stand for. They raise ValueError where tensors say otherwise than the
        configuration.
        """
        ...


def expect(tensors: Mapping[str, StoredTensor], name: str, shape: tuple[int, ...], *dtypes: str) -> None:
    """Refuse a tensor that is missing or not of this shape and one of these types.

    Raises:
        ValueError: naming it.
    """
    if name not in tensors:
        raise ValueError(f"has no {name}")
    stored = tensors[name]
    if stored.dtype_name not in dtypes:
        raise ValueError(f"{name} is of {stored.dtype_name}, and should be {' or '.join(dtypes)}")
    if stored.shape != shape:
        raise ValueError(f"{name} is {list(stored.shape)}, and should be {list(shape)}")


def two_axes(tensors: Mapping[str, StoredTensor], name: str) -> tuple[int, int]:
    """The shape of a tensor that is a matrix.

    Raises:
        ValueError: it is none.
    """
    shape = tensors[name].shape
    if len(shape) != 2:
        raise ValueError(f"{name} is {list(shape)}, and should have two axes")
    rows, columns = shape
    return rows, columns


def groups(inputs: int, group: int | None) -> int:
    """How many groups so many inputs make.

    Raises:
        ValueError: they do not divide.
    """
    if group is not None and inputs % group:
        raise ValueError(f"has {inputs} inputs, which are no multiple of group_size {group}")
    return 1 if group is None else inputs // group
