"""GPTQ as AutoGPTQ and GPTQModel store it: inputs of 4 or 8 bits in words, groups in the order of inputs or as `g_idx` says."""

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
class Gptq(GroupedIntegers):
    """A `Format`: `qweight [in * bits / 32, out]`, `qzeros [Q, out * bits / 32]`, `scales [Q, out]` and `g_idx [in]`.

    `zero_offset` is what is added to the zeros as stored: 1 in the first version of the format.
    """

    zero_offset: int
    main = "qweight"
    others = ("qzeros", "scales", "g_idx")
    unread = ()

    def shape(self, tensors: Mapping[str, StoredTensor]) -> tuple[int, int]:
        words, outputs = two_axes(tensors, "qweight")
        per_word = 32 // self.bits
        inputs = words * per_word
        if outputs % per_word:
            raise ValueError(f"qweight has {outputs} outputs, whose zeros fill no whole words")
        expect(tensors, "qweight", (words, outputs), "I32")
        expect(tensors, "qzeros", (groups(inputs, self.group), outputs // per_word), "I32")
        expect(tensors, "scales", (groups(inputs, self.group), outputs), "F16", "BF16", "F32")
        if "g_idx" in tensors or self.ordered:
            expect(tensors, "g_idx", (inputs,), "I32", "I64")
        return outputs, inputs

    def _weight(self, tensors: Mapping[str, Array]) -> Array:
        numbers = as_kept(unpacked(tensors["qweight"].T, self.bits), self.bits)
        self._check_groups(tensors, numbers.shape[1])
        return numbers[:, self._order(tensors)] if self.ordered else numbers

    def _scale(self, tensors: Mapping[str, Array]) -> Array:
        if self.symmetric and not self._in_the_middle(tensors):
            raise ValueError(
                "qzeros are not all in the middle, though quantization_config says sym; correct it with hf_overrides"
            )
        return tensors["scales"].T

    def _zero(self, tensors: Mapping[str, Array]) -> Array:
        return self._zeros(tensors).T

    def _order(self, tensors: Mapping[str, Array]) -> Array:
        return np.argsort(tensors["g_idx"], kind="stable").astype(np.int32)

    def _in_the_middle(self, tensors: Mapping[str, Array]) -> bool:
        """Of either version: Optimum says one and writes the other."""
        stored = counted_from_the_middle(unpacked(tensors["qzeros"], self.bits), self.bits)
        return bool((stored == 0).all() or (stored == -1).all())

    def _zeros(self, tensors: Mapping[str, Array]) -> Array:
        return counted_from_the_middle(unpacked(tensors["qzeros"], self.bits), self.bits) + np.float32(self.zero_offset)

    def _check_groups(self, tensors: Mapping[str, Array], inputs: int) -> None:
        if "g_idx" not in tensors or self.group is None:
            return
        own = np.sort(tensors["g_idx"]) if self.act_order else tensors["g_idx"]
        if not np.array_equal(own, np.arange(inputs) // self.group):
            raise ValueError(
                f"g_idx does not give each group {self.group} inputs"
                if self.act_order
                else "g_idx is not in the order of inputs, though quantization_config says desc_act=false"
            )
