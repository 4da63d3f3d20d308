"""The arithmetic of pictures that processors share: sizes, cuts, colours, patches. As transformers' PIL backends do it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from jaxengine.contract.arrays import Floats
from jaxengine.errors import ConfigError
from jaxengine.media.errors import needing

Pixels = NDArray[np.uint8]

CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
HALF = (0.5, 0.5, 0.5)
BILINEAR, BICUBIC, LANCZOS = 2, 3, 1
"""Pillow's numbers, which processors' files have."""


@dataclass(frozen=True, slots=True, eq=False)
class Colours:
    """Colours as numbers: `table [256, 3]` has one for each value of red, green and blue."""

    table: Floats

    @classmethod
    def read(cls, said: Mapping[str, Any], *, mean: Sequence[float] = HALF, std: Sequence[float] = HALF) -> Self:
        """What `do_rescale`, `do_normalize` and the numbers beside them come to."""
        values = np.arange(256, dtype=np.float64)[:, None].repeat(3, axis=1)
        if said.get("do_rescale", True):
            values = values * said.get("rescale_factor", 1 / 255)
        table = values.astype(np.float32)
        if said.get("do_normalize", True):
            means, stds = (
                np.broadcast_to(np.asarray(said.get(name) or default, np.float32), 3)
                for name, default in (("image_mean", mean), ("image_std", std))
            )
            table = (table - means) / stds
        return cls(table.astype(np.float32))

    @classmethod
    def read_rounded(cls, said: Mapping[str, Any]) -> Self:
        """The same where each step is rounded to bfloat16, as Llama 4's numbers were made."""
        if not (said.get("do_rescale", True) and said.get("do_normalize", True)):
            return cls.read(said)
        table = rounded(
            np.arange(256, dtype=np.float32)[:, None].repeat(3, axis=1)
            * np.float32(said.get("rescale_factor", 1 / 255))
        )
        means, stds = (
            rounded(np.broadcast_to(np.asarray(said.get(name) or HALF, np.float32), 3))
            for name in ("image_mean", "image_std")
        )
        return cls(rounded(rounded(table - means) / stds))

    def patches(self, pixels: Pixels, size: int, *, merge: int = 1, frames: int = 1) -> Floats:
        """`pixels [n, height, width, 3]` -> `[n * patches, 3 * frames * size * size]`, each with its colours apart.

        Patches come row by row, or block by block of `merge` by `merge`. Each has `frames` of the pictures, which come one after
        the other.
        """
        count, height, width, _ = pixels.shape
        blocks = pixels.reshape(
            count // frames, frames, height // size // merge, merge, size, width // size // merge, merge, size, 3
        )
        ordered = blocks.transpose(0, 2, 5, 3, 6, 8, 1, 4, 7)
        found = np.empty(ordered.shape, np.float32)
        for colour in range(3):
            found[:, :, :, :, :, colour] = self.table[:, colour][ordered[:, :, :, :, :, colour]]
        return found.reshape(-1, 3 * frames * size * size)


def rounded(values: Floats) -> Floats:
    """Each to the nearest that bfloat16 has, of two the even one."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    bits = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return bits.view(np.float32)


def resized(pixels: Pixels, height: int, width: int, resample: int) -> Pixels:
    """`pixels [h, w, 3]` at another size, as Pillow's filter `resample` makes it.

    Raises:
        UnsupportedError: Pillow is not installed.
    """
    with needing("vision"):
        from PIL import Image
    if pixels.shape[:2] == (height, width):
        return pixels
    made = Image.fromarray(pixels).resize((width, height), resample=Image.Resampling(resample))
    return np.asarray(made)


def shortest_edge(height: int, width: int, edge: int) -> tuple[int, int]:
    """The size at which the shorter side is `edge`."""
    short, long = sorted((height, width))
    other = int(edge * long / short)
    return (edge, other) if height <= width else (other, edge)


def padded_to_square(pixels: Pixels, colour: Sequence[int]) -> Pixels:
    """In the middle of a square of one colour."""
    height, width = pixels.shape[:2]
    side = max(height, width)
    square = np.empty((side, side, 3), np.uint8)
    square[:] = np.asarray(colour, np.uint8)
    top, left = (side - height) // 2, (side - width) // 2
    square[top : top + height, left : left + width] = pixels
    return square


def centre(pixels: Pixels, height: int, width: int) -> Pixels:
    """The middle of a picture; what lies outside of it is black."""
    given_height, given_width = pixels.shape[:2]
    if given_height < height or given_width < width:
        room = np.zeros((max(height, given_height), max(width, given_width), 3), np.uint8)
        top, left = (-(-(len(side) - given) // 2) for side, given in ((room, given_height), (room[0], given_width)))
        room[top : top + given_height, left : left + given_width] = pixels
        pixels, (given_height, given_width) = room, room.shape[:2]
    top, left = (given_height - height) // 2, (given_width - width) // 2
    return pixels[top : top + height, left : left + width]


def square_side(said: Mapping[str, Any], key: str, default: int) -> int:
    """The side of a square size: a number, or a height and a width that are equal.

    Raises:
        ConfigError: they are not.
    """
    size = said.get(key) or default
    if isinstance(size, int):
        return size
    height, width = size.get("height"), size.get("width")
    if not isinstance(height, int) or height != width:
        raise ConfigError(f"the processor's {key} must be a square's, got {size}")
    return height
