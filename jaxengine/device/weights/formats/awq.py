"""AWQ as AutoAWQ's `gemm` version stores it: eight outputs of 4 bits a word, not in their order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from jaxengine.device.weights.formats import Format, Numbers, Part, expect, groups, two_axes
from jaxengine.device.weights.formats.words import as_kept, counted_from_the_middle, unpacked
from jaxengine.device.weights.mapped_file import StoredTensor
from jaxengine.device.weights.rules import Array

BITS, PER_WORD = 4, 8
PLACES = [0, 4, 1, 5, 2, 6, 3, 7]
"""Which four bits of a word, the lowest first, are each of its eight outputs."""


@dataclass(frozen=True)
class Awq(Format):
    """A `Format`: `qweight [in, out / 8]`, `qzeros [Q, out / 8]` and `scales [Q, out]`."""

    group: int | None
    main = "qweight"
    others = ("qzeros", "scales")
    unread = ()

    @property
    def numbers(self) -> Numbers:
        return Numbers(dtype="int4", group=self.group, zeros=True)

    def shape(self, tensors: Mapping[str, StoredTensor]) -> tuple[int, int]:
        inputs, words = two_axes(tensors, "qweight")
        outputs = PER_WORD * words
        expect(tensors, "qweight", (inputs, words), "I32")
        expect(tensors, "qzeros", (groups(inputs, self.group), words), "I32")
        expect(tensors, "scales", (groups(inputs, self.group), outputs), "F16", "BF16", "F32")
        return outputs, inputs

    @property
    def parts(self) -> Mapping[str, Part]:
        return {"weight": self._weight, "scale": self._scale, "zero": self._zero}

    def _weight(self, tensors: Mapping[str, Array]) -> Array:
        return as_kept(_outputs(tensors["qweight"]), BITS).T

    def _scale(self, tensors: Mapping[str, Array]) -> Array:
        return tensors["scales"].T

    def _zero(self, tensors: Mapping[str, Array]) -> Array:
        return counted_from_the_middle(_outputs(tensors["qzeros"]), BITS).T


def _outputs(words: Array) -> Array:
    numbers = unpacked(words, BITS).reshape(*words.shape, PER_WORD)
    return numbers[..., PLACES].reshape(words.shape[0], -1)
