"""compressed-tensors' `pack-quantized`: inputs of 4 or 8 bits in words, weights only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from jaxengine.device.weights.formats import expect, groups, two_axes
from jaxengine.device.weights.formats.grouped_integers import GroupedIntegers
from jaxengine.device.weights.formats.words import as_kept, counted_from_the_middle, unpacked
from jaxengine.device.weights.mapped_file import StoredTensor
from jaxengine.device.weights.rules import Array


@dataclass(frozen=True, kw_only=True)
class Packed(GroupedIntegers):
    """A `Format`: `weight_packed [out, in * bits / 32]`, `weight_scale [out, Q]`, `weight_zero_point`.

    The last is `[out * bits / 32, Q]`: a column of zeros may end within a word, a row may not.
    """

    main = "weight_packed"
    others = ("weight_scale", "weight_zero_point", "weight_g_idx")
    unread = ("weight_shape",)

    def shape(self, tensors: Mapping[str, StoredTensor]) -> tuple[int, int]:
        outputs, words = two_axes(tensors, "weight_packed")
        per_word = 32 // self.bits
        inputs = words * per_word
        count = groups(inputs, self.group)
        expect(tensors, "weight_packed", (outputs, words), "I32")
        expect(tensors, "weight_scale", (outputs, count), "F16", "BF16", "F32")
        if not self.symmetric:
            expect(tensors, "weight_zero_point", (-(-outputs // per_word), count), "I32")
        if self.ordered:
            expect(tensors, "weight_g_idx", (inputs,), "I32", "I64")
        return outputs, inputs

    def _weight(self, tensors: Mapping[str, Array]) -> Array:
        numbers = as_kept(unpacked(tensors["weight_packed"], self.bits), self.bits)
        return numbers[:, self._order(tensors)] if self.ordered else numbers

    def _scale(self, tensors: Mapping[str, Array]) -> Array:
        return tensors["weight_scale"]

    def _zero(self, tensors: Mapping[str, Array]) -> Array:
        outputs = tensors["weight_packed"].shape[0]
        return counted_from_the_middle(unpacked(tensors["weight_zero_point"].T, self.bits), self.bits).T[:outputs]

    def _order(self, tensors: Mapping[str, Array]) -> Array:
        own = tensors["weight_g_idx"]
        if not np.array_equal(np.sort(own), np.arange(len(own)) // (self.group or len(own))):
            raise ValueError(f"weight_g_idx does not give each group {self.group} inputs")
        return np.argsort(own, kind="stable").astype(np.int32)
