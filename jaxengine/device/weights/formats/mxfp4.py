"""Matrices of experts in MXFP4: floats of 4 bits, with a power of two for each 32 inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from jaxengine.device.weights.formats import Kept, Part
from jaxengine.device.weights.safetensors_file import StoredTensor


@dataclass(frozen=True)
class Mxfp4:
    """A `Format` of all experts together, whose tensors `weights.mxfp4.StoredCheckpoint` presents."""

    main = ""
    others = unread = ()

    @property
    def kept(self) -> Kept:
        return Kept(weight="float4_e2m1fn", group=32)

    def shape(self, tensors: Mapping[str, StoredTensor]) -> tuple[int, int]:
        raise ValueError("matrices in MXFP4 are those of all experts together")

    @property
    def parts(self) -> Mapping[str, Part]:
        return {}
