"""When the tokens of a text are said: it is computed once more, whole and alone, for what some heads attend to in the sound.

For each length M that there are programs for:

    begin  (parameters, buffer)                              -> x
    layer  (parameters, x, crossed, buffer, place)           -> (x, weights [heads, M, S])
    end    (weights of the layers with such heads, buffer)   -> [M, S]

As of an encoder one `layer` serves all that are alike, on every platform, up to the last one that has such heads. The kernels of
a step make no weights that could be had, so this is apart from it. What layers read of the sound is where the encoder wrote it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxengine.contract.arrays import Int32s
from jaxengine.contract.rows import Align
from jaxengine.device.layers.alignment import Alignment, aligned
from jaxengine.device.models.parameters import merge_some
from jaxengine.device.runtime.program_kinds import ProgramKind
from jaxengine.device.runtime.space import ProgramSpace
from jaxengine.device.runtime.transfer import put
from xla_cache import Program

Call = Callable[..., Any]
LEAST = 128
"""The least length: half a minute is some hundred tokens, and each length is three programs more to compile."""


def lengths(space: ProgramSpace) -> tuple[int, ...]:
    """The numbers of tokens that there are programs for; none where the model has no such heads."""
    if _alignment(space) is None:
        return ()
    found = [min(LEAST, space.max_model_len)]
    while found[-1] < space.max_model_len:
        found.append(min(2 * found[-1], space.max_model_len))
    return tuple(found)


@dataclass(frozen=True)
class Buffer:
    """The integers of a launch: `tokens [M]`, the pages `[C]` of the sound, and the numbers `first`, `end` and `frames`."""

    tokens: int
    pages: int

    @property
    def size(self) -> int:
        """Of all of them."""
        return self.tokens + self.pages + 3

    def made(self, tokens: Sequence[int], pages: Int32s, first: int, frames: int) -> Int32s:
        """Its words."""
        words = np.zeros(self.size, np.int32)
        words[: len(tokens)] = tokens
        words[self.tokens : self.tokens + len(pages)] = pages
        words[-3:] = first, len(tokens), frames
        return words

    def table(self, words: jax.Array) -> jax.Array:
        """The pages."""
        return words[self.tokens : self.tokens + self.pages]


def alignment_programs(space: ProgramSpace) -> list[Program]:
    """Those of all lengths; none of a model without such heads."""
    return [program for length in lengths(space) for program in programs_of(space, length)]


def programs_of(space: ProgramSpace, length: int) -> list[Program]:
    """Those of one length."""
    alignment, buffer = _needed(space), _buffer(space, length)
    words = space.replicated_struct((buffer.size,), jnp.int32)
    begin, outer = _begin(space, buffer), space.structs(space.outer)
    with nullcontext() if space.device_layout.mesh is None else jax.set_mesh(space.device_layout.mesh):
        x = jax.eval_shape(begin, outer, words)
    x = space.replicated_struct(x.shape, x.dtype)
    place = space.replicated_struct((1 + alignment.most_heads,), jnp.int32)
    weights = space.replicated_struct((alignment.most_heads, length, _places(space)), jnp.float32)

    def program(part: str, function: Callable[..., Any], arguments: tuple[Any, ...], **options: Any) -> Program:
        name = _name(length, part)
        return space.program(name, function, arguments, kind=ProgramKind.ALIGN, facts={}, weight=length, **options)

    return [
        program("begin", begin, (outer, words)),
        *(
            program(
                f"layer {layer}",
                _layer(space, buffer, layer),
                (space.structs(space.parts.layers[layer]), x, space.crossed, words, place),
                donate=(1,),
            )
            for layer in dict.fromkeys(_layers(space))
        ),
        program("end", _end(space, alignment), ((weights,) * len(alignment.layers), words)),
    ]


def alignment_names(space: ProgramSpace) -> list[str]:
    """The names of `alignment_programs`."""
    parts = ["begin", *dict.fromkeys(f"layer {layer}" for layer in _layers(space)), "end"]
    return [_name(length, part) for length in lengths(space) for part in parts]


def alignment_bytes(space: ProgramSpace) -> int:
    """What a launch of the greatest length has on a device between its programs."""
    return max((len(_needed(space).layers) * _weights_bytes(space, length) for length in lengths(space)), default=0)


class Aligner:
    """Runs these programs with a model's parameters, in the order of `space.parameters`."""

    def __init__(self, space: ProgramSpace, parameters: Sequence[jax.Array]) -> None:
        self._space, self._lengths = space, lengths(space)
        alignment = _alignment(space)
        self._outer = tuple(parameters[number] for number in space.outer)
        self._layers: list[tuple[str, tuple[jax.Array, ...], jax.Array]] = []
        for layer, first in enumerate(_layers(space)):
            assert alignment is not None
            heads = alignment.of_layer(layer)
            place = np.zeros(1 + alignment.most_heads, np.int32)
            place[: 1 + len(heads)] = layer, *heads
            own = tuple(parameters[number] for number in space.parts.layers[layer])
            self._layers.append((f"layer {first}", own, put(place, space.replicated)))

    def align(self, want: Align, tokens: Sequence[int], pages: Int32s, crossed: jax.Array, call: Call) -> jax.Array:
        """Launch what is wanted of `tokens`, a text and what goes before it, of the sound in these pages; return without waiting.

        Returns:
            `[M, S]`, of which the part that is wanted means something.

        Raises:
            RuntimeError: the model has no heads for it.
            ValueError: the text is longer than any that there are programs for.
        """
        if not self._lengths:
            raise RuntimeError("the model has no heads that align a text with its sound")
        length = next((length for length in self._lengths if length >= len(tokens)), None)
        if length is None:
            raise ValueError(f"a text of {len(tokens)} tokens was to be aligned, of at most {self._lengths[-1]}")
        words = _buffer(self._space, length).made(tokens, pages, want.first, want.frames)
        return self._run(length, words, crossed, call)

    def run_once(self, crossed: jax.Array | None, call: Call) -> None:
        """Call each program, on nothing."""
        for length in self._lengths:
            assert crossed is not None
            self._run(length, _buffer(self._space, length).made((), np.zeros(0, np.int32), 0, 0), crossed, call)

    def _run(self, length: int, words: Int32s, crossed: jax.Array, call: Call) -> jax.Array:
        given, layers = put(words, self._space.replicated), _needed(self._space).layers
        x, found = call(_name(length, "begin"), self._outer, given), []
        for layer, (name, parameters, place) in enumerate(self._layers):
            x, weights = call(_name(length, name), parameters, x, crossed, given, place)
            if layer in layers:
                found.append(weights)
        result: jax.Array = call(_name(length, "end"), tuple(found), given)
        return result


def _begin(space: ProgramSpace, buffer: Buffer) -> Callable[..., jax.Array]:
    def run(arrays: Sequence[jax.Array], words: jax.Array) -> jax.Array:
        model = merge_some(space.graph, space.parameters, space.outer, arrays)
        x, _ = model.embed_tokens(words[: buffer.tokens], jnp.arange(buffer.tokens, dtype=jnp.int32))
        return space.everywhere(x)  # type: ignore[no-any-return]

    return run


def _layer(space: ProgramSpace, buffer: Buffer, layer: int) -> Callable[..., tuple[jax.Array, jax.Array]]:
    def run(
        arrays: Sequence[jax.Array], x: jax.Array, crossed: jax.Array, words: jax.Array, place: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        model: Any = merge_some(space.graph, space.parameters, space.parts.layers[layer], arrays)
        x, weights = model.layers[layer].heard(x, crossed, buffer.table(words), place[0])
        return space.everywhere((x, jnp.take(weights, place[1:], axis=0, mode="clip")))  # type: ignore[no-any-return]

    return run


def _end(space: ProgramSpace, alignment: Alignment) -> Callable[..., jax.Array]:
    counts = [len(alignment.of_layer(layer)) for layer in alignment.layers]

    def run(found: Sequence[jax.Array], words: jax.Array) -> jax.Array:
        weights = jnp.concatenate([of[:count] for of, count in zip(found, counts, strict=True)])
        first, end, frames = words[-3], words[-2], words[-1]
        return space.everywhere(aligned(weights, first, end, frames, width=alignment.width))  # type: ignore[no-any-return]

    return run


def _alignment(space: ProgramSpace) -> Alignment | None:
    return None if space.media is None else space.media.traits.alignment


def _needed(space: ProgramSpace) -> Alignment:
    alignment = _alignment(space)
    assert alignment is not None
    return alignment


def _layers(space: ProgramSpace) -> tuple[int, ...]:
    """Of each layer up to the last with such heads the first one that is like it."""
    alignment = _alignment(space)
    return () if alignment is None else space.parts.alike[: 1 + alignment.layers[-1]]


def _places(space: ProgramSpace) -> int:
    assert space.media is not None
    assert space.media.traits.crossed is not None
    return space.media.traits.crossed.places


def _weights_bytes(space: ProgramSpace, length: int) -> int:
    return 4 * _needed(space).most_heads * length * _places(space)


def _buffer(space: ProgramSpace, length: int) -> Buffer:
    assert space.media is not None
    return Buffer(length, space.media.of_step.crossed_pages)


def _name(length: int, part: str) -> str:
    return f"align {length} {part}"
