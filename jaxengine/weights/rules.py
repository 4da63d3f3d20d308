"""The weight table: one row per family of tensors, checked in both directions by the loader.

A model family lists `Rule`s. `*` stands for a layer number and means the same number on both sides; `[...]` in a source is
a part that some checkpoints leave out (`[transformer.]h.*.ln_1.weight`). Every checkpoint tensor must match the source of a
rule or an `Ignore`, and every parameter of the model must be written exactly once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Transform = Callable[[Array, Any], Array]
"""`(checkpoint tensor, model config) -> parameter`, by views wherever possible; never changes the dtype."""


@dataclass(frozen=True, slots=True)
class Rule:
    """`source` in the checkpoint becomes `target` (a dotted path into the model), through `transform`.

    `absent_if` names a boolean attribute of the model config that is true when neither the tensor nor the parameter exists
    (tied embeddings); a checkpoint that stores the tensor all the same is accepted and the tensor is left unread.
    Several rules may share a `source` (a fused tensor is cut into several parameters).
    """

    source: str
    target: str
    transform: Transform | None = None
    absent_if: str | None = None


@dataclass(frozen=True, slots=True)
class Ignore:
    """Checkpoint tensors that the model has no use for, with the reason."""

    source: str
    reason: str


def transpose(tensor: Array, config: Any) -> Array:
    """`[in, out]` of a GPT-2 Conv1D becomes `[out, in]`."""
    return tensor.T


def part(index: int, parts: int, *, axis: int = 0) -> Transform:
    """Piece `index` of a tensor fused of `parts` equal pieces along `axis`."""

    def cut(tensor: Array, config: Any) -> Array:
        return np.split(tensor, parts, axis=axis)[index]

    return cut


def chain(*transforms: Transform) -> Transform:
    """Apply several transforms, left to right."""

    def apply(tensor: Array, config: Any) -> Array:
        for transform in transforms:
            tensor = transform(tensor, config)
        return tensor

    return apply


def repeat_kv_heads(tensor: Array, config: Any) -> Array:
    """Repeat each KV head `config.kv_repeats` times along axis 0 (`[K*H, ...]`), for meshes with more chips than KV heads."""
    if config.kv_repeats == 1:
        return tensor
    heads = tensor.reshape(config.num_kv_heads, config.head_dim, *tensor.shape[1:])
    return np.repeat(heads, config.kv_repeats, axis=0).reshape(-1, *tensor.shape[1:])
