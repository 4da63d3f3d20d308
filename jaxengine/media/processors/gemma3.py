"""Gemma 3: every picture becomes one square, of as many embeddings (arXiv 2503.19786)."""

from __future__ import annotations

from typing import ClassVar

from jaxengine.contract.media import Modality
from jaxengine.errors import ConfigError
from jaxengine.media.embeddings import Embeddings
from jaxengine.media.errors import MediaError
from jaxengine.media.items import Picture
from jaxengine.media.processors.pixels import BILINEAR, Colours, resized, square_side
from jaxengine.media.processors.processor import Made, Most, Processor, Settings, given, taking


class Gemma3Processor(Processor):
    """A picture stands between a token that begins and one that ends it, with empty lines around."""

    surround: ClassVar[str] = "\n\n"

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        said, vision = settings.of[Modality.IMAGE], settings.config.get("vision_config", {})
        self.begin, self.end = settings.token("boi_token_index"), settings.token("eoi_token_index")
        self.token = settings.token("image_token_index", "image_token_id")
        self.marks, self.shown = {Modality.IMAGE: self.begin}, {Modality.IMAGE: "<start_of_image>"}
        if said.get("do_pan_and_scan"):
            raise ConfigError("do_pan_and_scan (crops of long pictures) is not built; leave it out")
        self.patch, self.side = int(vision.get("patch_size", 14)), int(vision.get("image_size", 896))
        if square_side(said, "size", self.side) != self.side or not said.get("do_resize", True):
            raise ConfigError(f"the tower takes squares of {self.side} pixels, which the processor's size has to be")
        self.count = int(settings.config.get("mm_tokens_per_image", 256))
        self.resample, self.colours = int(said.get("resample", BILINEAR)), Colours.read(said)

    def most(self, modality: Modality) -> Most:
        return Most(patches=(self.side // self.patch) ** 2, embeddings=self.count)

    def embedded(self, embeddings: Embeddings) -> Made:
        if len(embeddings.values) != self.count:
            raise MediaError(f"a picture of this model has {self.count} embeddings, got {len(embeddings.values)}")
        return given(embeddings, [self.begin, *[self.token] * self.count, self.end], self.token)

    def image(self, picture: Picture) -> Made:
        square = resized(picture.pixels, self.side, self.side, self.resample)
        tokens, embeds = taking([self.begin, *[self.token] * self.count, self.end], self.token)
        side = self.side // self.patch
        patches = self.colours.patches(square[None], self.patch)
        return Made(patches=patches, grid=(1, side, side), tokens=tokens, embeds=embeds)
