"""Pixtral and Mistral 3: any size up to a longest side, and a token at the end of each row (arXiv 2410.07073)."""

from __future__ import annotations

import math

from jaxengine.contract.media import Modality
from jaxengine.errors import ConfigError
from jaxengine.media.items import Picture
from jaxengine.media.processors.pixels import BICUBIC, CLIP_MEAN, CLIP_STD, Colours, resized
from jaxengine.media.processors.processor import Made, Most, Processor, Settings, taking


class PixtralProcessor(Processor):
    """Of Mistral 3 blocks of `spatial_merge_size` by as many patches become an embedding."""

    knobs = Processor.knobs | {"longest_edge"}

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        said, vision = settings.of[Modality.IMAGE], settings.config.get("vision_config", {})
        self.token = settings.token("image_token_index", "image_token_id")
        self.marks, self.shown = {Modality.IMAGE: self.token}, {Modality.IMAGE: "[IMG]"}
        self.patch = int(vision.get("patch_size", 16))
        self.merge = int(settings.config.get("spatial_merge_size") or 1)
        if not said.get("do_resize", True):
            raise ConfigError("the tower takes whole patches: do_resize of the processor must be true")
        size = said.get("size") or {}
        self.longest = int(said.get("longest_edge") or size.get("longest_edge") or vision.get("image_size", 1024))
        if settings.max_patches is not None:
            block = self.patch * self.merge
            self.longest = min(self.longest, math.isqrt(settings.max_patches) * self.patch // block * block)
        self.resample = int(said.get("resample", BICUBIC))
        self.colours = Colours.read(said, mean=CLIP_MEAN, std=CLIP_STD)

    def most(self, modality: Modality) -> Most:
        blocks = math.ceil(self.longest / (self.patch * self.merge)) ** 2
        return Most(patches=blocks * self.merge**2, embeddings=blocks, resizable=True)

    def image(self, picture: Picture) -> Made:
        block = self.patch * self.merge
        height, width = picture.pixels.shape[:2]
        factor = max(height / self.longest, width / self.longest)
        if factor > 1:
            height, width = math.floor(height / factor), math.floor(width / factor)
        rows, columns = max(-(-height // block), 1), max(-(-width // block), 1)
        pixels = resized(picture.pixels, rows * block, columns * block, self.resample)
        [row_ends], [ends] = self.ids("[IMG_BREAK]"), self.ids("[IMG_END]")
        ids = [*[*[self.token] * columns, row_ends] * rows]
        ids[-1] = ends
        tokens, embeds = taking(ids, self.token)
        patches = self.colours.patches(pixels[None], self.patch)
        return Made(patches=patches, grid=(1, rows * self.merge, columns * self.merge), tokens=tokens, embeds=embeds)
