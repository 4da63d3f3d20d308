"""The weight table: what each parameter of a model is made of, checked in both directions by the loader.

A model family lists `Rule`s. `*` stands for a layer number and means the same number on both sides; `[...]` in a source is
a part that some checkpoints leave out (`[transformer.]h.*.ln_1.weight`); `{expert}` (or any other word) in a source is a number
that the target has not: the tensors of all numbers from 0, one behind the other along a new leading axis, are one parameter
(`layers.*.experts.{expert}.up.weight`). Every parameter of the model must be made exactly once, and every tensor of the
checkpoint must be a rule's or an `Ignore`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class Made(Protocol):
    """Numbers that are not in the checkpoint and are made of it, part by part, as they are asked for."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def fill(self, out: Array, part: tuple[slice, ...]) -> None:
        """Write the numbers within `part`, which has a slice with bounds for each axis, to `out`."""
        ...


@dataclass(frozen=True, slots=True)
class Turned:
    """The transpose of a matrix that is `Made`."""

    matrix: Made

    @property
    def shape(self) -> tuple[int, ...]:
        return self.matrix.shape[::-1]

    def fill(self, out: Array, part: tuple[slice, ...]) -> None:
        """Write the numbers within `part` to `out`."""
        self.matrix.fill(out.T, part[::-1])


class KvHeads(Protocol):
    """What transforms read of a model's configuration; `absent_if` of a rule names a further attribute."""

    @property
    def num_kv_heads(self) -> int: ...

    @property
    def head_dim(self) -> int: ...


Transform = Callable[[Any, KvHeads, tuple[int, ...]], Array | Made]
"""`(checkpoint tensor, model config, the parameter's shape) -> parameter`: an `Array`, by views wherever possible and in its own
dtype, or `Made`. Of stacked tensors the shape is that of one; of a rule with several sources there is a tuple of tensors."""


@dataclass(frozen=True, slots=True)
class Rule:
    """`target` (a dotted path into the model) is made of `source` in the checkpoint, through `transform`.

    A source with `{expert}` names several tensors; each goes through `transform` by itself. Several rules may share a `source`: a
    fused tensor is cut into several parameters. `absent_if` names a boolean attribute of the model config that is true when
    neither tensor nor parameter exists (tied embeddings); a checkpoint that stores the tensor all the same is accepted and
    the tensor is left unread. With `each` the tensor's leading axis counts what `{expert}` counts elsewhere: each item goes
    through `transform` by itself, and they are one parameter again. `also` are further sources, whose `*` are those of `source`:
    `transform` is given the tensors of all of them together, in their order. `layers` names an attribute of the model config:
    only of layers with these numbers.
    """

    target: str
    source: str
    transform: Transform | None = None
    absent_if: str | None = None
    each: bool = False
    also: tuple[str, ...] = ()
    layers: str | None = None

    def __post_init__(self) -> None:
        assert not self.also or (self.transform is not None and not self.stacked), "nothing would make one of several"

    def of_part(self, target: str, name: str, transform: Transform | None) -> Rule:
        """What makes the parameter `target` of the parts `name` of quantised tensors (`weights.unpacked`)."""
        source, *also = (f"{source}.{name}" for source in (self.source, *self.also))
        return replace(self, target=target, source=source, also=tuple(also), transform=transform)

    @property
    def stacked(self) -> bool:
        """Whether several tensors, or items of one, are one parameter."""
        return self.each or "{" in self.source

    def rows(self, tensor: Any, config: KvHeads, shape: tuple[int, ...]) -> Array:
        """What this rule's transform cuts of a tensor that has the rows of its matrix, for `shape [out, ...]`."""
        rows = tensor if self.transform is None else self.transform(tensor, config, shape)
        assert isinstance(rows, np.ndarray)
        return rows

    def then(self, transform: Transform) -> Transform:
        """This rule's transform, if it has one, and `transform` of what it gives."""
        return transform if self.transform is None else chain(self.transform, transform)


@dataclass(frozen=True, slots=True)
class Ignore:
    """Checkpoint tensors that the model has no use for, with the reason. `**` at the end of `source` is any rest of a name.

    `layers` names an attribute of the model config: only of layers with these numbers, whatever other rows say of them. One of
    `others` is of tensors that no other row claims.
    """

    source: str
    reason: str
    layers: str | None = None
    others: bool = False


def renamed(rows: Sequence[Rule | Ignore], names: Mapping[str, str]) -> tuple[Rule | Ignore, ...]:
    """A table for checkpoints that call some modules otherwise: `names` are parts of sources, and what they are there."""

    def source(text: str) -> str:
        for usual, own in names.items():
            text = text.replace(usual, own)
        return text

    return tuple(replace(row, source=source(row.source)) for row in rows)


def transpose(tensor: Array, config: KvHeads, shape: tuple[int, ...]) -> Array:
    """`[in, out]` of a GPT-2 Conv1D becomes `[out, in]`."""
    return tensor.T


def flat(tensor: Array, config: KvHeads, shape: tuple[int, ...]) -> Array:
    """`[1, 1, channels]` becomes `[channels]`."""
    return tensor.reshape(shape)


def filters(tensor: Array, config: KvHeads, shape: tuple[int, ...]) -> Array:
    """`[channels, 1, taps]` of a convolution, a filter for each channel, becomes `[taps, channels]`."""
    return tensor[:, 0].T


def part(index: int, parts: int, *, axis: int = 0) -> Transform:
    """Piece `index` of a tensor fused of `parts` equal pieces along `axis`."""

    def cut(tensor: Array, config: KvHeads, shape: tuple[int, ...]) -> Array:
        return np.split(tensor, parts, axis=axis)[index]

    return cut


def piece(index: int, sizes: Callable[[Any], Sequence[int]]) -> Transform:
    """Piece `index` of a tensor fused of pieces of unequal `sizes`, which follow from the configuration, along its first axis."""

    def cut(tensor: Array, config: KvHeads, shape: tuple[int, ...]) -> Array:
        *before, size = sizes(config)[: index + 1]
        return tensor[sum(before) : sum(before) + size]

    return cut


def of_kv_groups(part: str) -> Transform:
    """Queries (`q`), keys (`k`) or values (`v`) of a tensor `[K * (group + 2) * H, ...]`.

    Of each KV head it has the queries that share it, its key and its value. Keys and values are repeated by `repeat_kv_heads`.
    """

    def cut(fused: Array, config: KvHeads, shape: tuple[int, ...]) -> Array:
        heads = fused.reshape(config.num_kv_heads, -1, config.head_dim, *fused.shape[1:])
        chosen = {"q": heads[:, :-2], "k": heads[:, -2], "v": heads[:, -1]}[part].reshape(-1, *fused.shape[1:])
        return chosen if part == "q" else repeat_kv_heads(chosen, config, shape)

    return cut


def chain(*transforms: Transform) -> Transform:
    """Apply several transforms, left to right. What is `Made` can only be the last one's."""

    def apply(tensor: Array, config: KvHeads, shape: tuple[int, ...]) -> Array | Made:
        made: Array | Made = tensor
        for transform in transforms:
            assert isinstance(made, np.ndarray)
            made = transform(made, config, shape)
        return made

    return apply


def repeat_kv_heads(tensor: Array, config: KvHeads, shape: tuple[int, ...]) -> Array:
    """Repeat each KV head along axis 0 (`[K*H, ...]`) as often as `shape` asks for: a mesh may have more chips than KV heads."""
    repeats = shape[0] // tensor.shape[0]
    if repeats <= 1:
        return tensor
    heads = tensor.reshape(config.num_kv_heads, config.head_dim, *tensor.shape[1:])
    return np.repeat(heads, repeats, axis=0).reshape(-1, *tensor.shape[1:])
