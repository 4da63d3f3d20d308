"""Gemma 3: every picture becomes one square, of as many embeddings, and long ones parts of it beside (arXiv 2503.19786)."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from jaxengine.contract.media import Modality
from jaxengine.errors import ConfigError
from jaxengine.media.embeddings import Embeddings
from jaxengine.media.errors import MediaError
from jaxengine.media.items import Picture
from jaxengine.media.processors.pixels import BILINEAR, Colours, Pixels, resized, square_side
from jaxengine.media.processors.processor import Made, Most, Processor, Settings, given, taking


class Gemma3Processor(Processor):
    """A picture stands between a token that begins and one that ends it, with empty lines around.

    With `do_pan_and_scan` one that is long is shown again in up to `most_crops` parts of at least `least_crop` pixels a side.
    """

    knobs = Processor.knobs | {
        "do_pan_and_scan",
        "pan_and_scan_min_crop_size",
        "pan_and_scan_max_num_crops",
        "pan_and_scan_min_ratio_to_activate",
    }
    surround: ClassVar[str] = "\n\n"

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        said, vision = settings.of[Modality.IMAGE], settings.config.get("vision_config", {})
        self.begin, self.end = settings.token("boi_token_index"), settings.token("eoi_token_index")
        self.token = settings.token("image_token_index", "image_token_id")
        self.marks, self.shown = {Modality.IMAGE: self.begin}, {Modality.IMAGE: "<start_of_image>"}
        self.most_crops = int(said.get("pan_and_scan_max_num_crops") or 4) if said.get("do_pan_and_scan") else 0
        self.least_crop = int(said.get("pan_and_scan_min_crop_size") or 256)
        self.least_ratio = float(said.get("pan_and_scan_min_ratio_to_activate") or 1.2)
        if self.most_crops < 0 or self.least_crop < 1:
            raise ConfigError("pan_and_scan_max_num_crops and pan_and_scan_min_crop_size of the processor are above 0")
        self.patch, self.side = int(vision.get("patch_size", 14)), int(vision.get("image_size", 896))
        if square_side(said, "size", self.side) != self.side or not said.get("do_resize", True):
            raise ConfigError(f"the tower takes squares of {self.side} pixels, which the processor's size has to be")
        self.count = int(settings.config.get("mm_tokens_per_image", 256))
        self.resample, self.colours = int(said.get("resample", BILINEAR)), Colours.read(said)

    def most(self, modality: Modality) -> Most:
        rows = 1 + self.most_crops
        return Most(patches=rows * (self.side // self.patch) ** 2, embeddings=rows * self.count, rows=rows)

    def embedded(self, embeddings: Embeddings) -> Made:
        if len(embeddings.values) != self.count:
            raise MediaError(f"a picture of this model has {self.count} embeddings, got {len(embeddings.values)}")
        return given(embeddings, [self.begin, *[self.token] * self.count, self.end], self.token)

    def image(self, picture: Picture) -> Made:
        shown = [picture.pixels, *self._crops(picture.pixels)]
        squares = np.stack([resized(pixels, self.side, self.side, self.resample) for pixels in shown])
        one = [self.begin, *[self.token] * self.count, self.end]
        ids, lead = one, None
        if len(shown) > 1:
            lead = "Here is the original image " + self.surround
            between = self.ids(self.surround + " " + self.surround)
            ids = [
                *one,
                *self.ids(f"{self.surround} and here are some crops to help you see better {self.surround}"),
                *one,
            ]
            ids += [*between, *one] * (len(shown) - 2)
        tokens, embeds = taking(ids, self.token)
        side = self.side // self.patch
        patches = self.colours.patches(squares, self.patch)
        return Made(patches=patches, grid=(len(shown), side, side), tokens=tokens, embeds=embeds, lead=lead)

    def _crops(self, pixels: Pixels) -> list[Pixels]:
        """Parts along the longer side, as many as make them about square."""
        height, width = pixels.shape[:2]
        short, long = sorted((height, width))
        if not self.most_crops or long / short < self.least_ratio:
            return []
        count = min(self.most_crops, max(2, min(long // self.least_crop, math.floor(long / short + 0.5))))
        size = math.ceil(long / count)
        if min(size, short) < self.least_crop:
            return []
        along = 1 if width >= height else 0
        return np.split(pixels, range(size, long, size), axis=along)
