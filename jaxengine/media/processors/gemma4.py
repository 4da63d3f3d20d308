"""Gemma 4: a picture becomes the largest of its shape that so many embeddings hold."""

from __future__ import annotations

import math

from jaxengine.contract.media import Modality
from jaxengine.errors import ConfigError
from jaxengine.media.errors import MediaError
from jaxengine.media.items import Picture
from jaxengine.media.processors.pixels import BICUBIC, Colours, resized
from jaxengine.media.processors.processor import Made, Most, Processor, Settings, taking

EMBEDDINGS = (70, 140, 280, 560, 1120)
"""What `max_soft_tokens` may be."""


class Gemma4Processor(Processor):
    """A picture stands between a token that begins and one that ends it."""

    knobs = Processor.knobs - {"size"} | {"max_soft_tokens"}

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        said, vision = settings.of[Modality.IMAGE], settings.config.get("vision_config") or {}
        self.begin, self.end = settings.token("boi_token_id"), settings.token("eoi_token_id")
        self.token = settings.token("image_token_id")
        self.marks, self.shown = {Modality.IMAGE: self.token}, {Modality.IMAGE: "<|image|>"}
        self.patch, self.block = int(vision.get("patch_size", 16)), int(vision.get("pooling_kernel_size", 3))
        if not said.get("do_resize", True):
            raise ConfigError("the tower takes whole blocks of patches: do_resize of the processor must be true")
        self.count = int(said.get("max_soft_tokens") or 280)
        if self.count not in EMBEDDINGS:
            raise ConfigError(f"max_soft_tokens must be one of {', '.join(map(str, EMBEDDINGS))}, got {self.count}")
        if settings.max_patches is not None:
            self.count = max(1, min(self.count, settings.max_patches // self.block**2))
        self.resample = int(said.get("resample", BICUBIC))
        self.colours = Colours.read({"do_normalize": False, **said}, mean=(0, 0, 0), std=(1, 1, 1))

    def most(self, modality: Modality) -> Most:
        return Most(patches=self.count * self.block**2, embeddings=self.count, resizable=True)

    def image(self, picture: Picture) -> Made:
        rows, columns = self._blocks(*picture.pixels.shape[:2])
        side = self.patch * self.block
        pixels = resized(picture.pixels, rows * side, columns * side, self.resample)
        tokens, embeds = taking([self.begin, *[self.token] * (rows * columns), self.end], self.token)
        patches = self.colours.patches(pixels[None], self.patch)
        return Made(patches=patches, grid=(1, rows * self.block, columns * self.block), tokens=tokens, embeds=embeds)

    def _blocks(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of blocks, each an embedding.

        Raises:
            MediaError: one side is too many times the other.
        """
        side = self.patch * self.block
        most = self.count * self.block**2 * self.patch**2
        factor = math.sqrt(most / (height * width))
        rows, columns = math.floor(factor * height / side), math.floor(factor * width / side)
        if rows == 0:
            rows, columns = 1, min(math.floor(width / height), self.count)
        elif columns == 0:
            rows, columns = min(math.floor(height / width), self.count), 1
        if not 0 < rows * columns <= self.count:
            raise MediaError(
                f"a picture of {width} x {height} has no size at which it is at most {self.count} embeddings"
            )
        return rows, columns
