"""LLaVA-1.5: a square in the middle of a picture, CLIP's size (arXiv 2310.03744)."""

from __future__ import annotations

from typing import Any

from jaxengine.contract.media import Modality
from jaxengine.errors import ConfigError
from jaxengine.media.embeddings import Embeddings
from jaxengine.media.items import Picture
from jaxengine.media.processors.pixels import (
    BICUBIC,
    CLIP_MEAN,
    CLIP_STD,
    Colours,
    centre,
    padded_to_square,
    resized,
    shortest_edge,
    square_side,
)
from jaxengine.media.processors.processor import Made, Most, Processor, Settings, given, repeated


class LlavaProcessor(Processor):
    """A picture is resized until its shorter side fits, and cut; with `do_pad` it is made a square before."""

    knobs = Processor.knobs | {"crop_size", "do_center_crop", "do_pad"}

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        said = settings.of[Modality.IMAGE]
        self.token = settings.token("image_token_id", "image_token_index")
        self.marks, self.shown = {Modality.IMAGE: self.token}, {Modality.IMAGE: "<image>"}
        vision = settings.config.get("vision_config", {})
        self.patch = int(vision.get("patch_size", 14))
        self.side = int(vision.get("image_size", 336))
        if not said.get("do_resize", True) or not said.get("do_center_crop", True):
            raise ConfigError("the tower takes squares: do_resize and do_center_crop of the processor must be true")
        if (crop := square_side(said, "crop_size", self.side)) != self.side:
            raise ConfigError(
                f"the tower takes pictures of {self.side} pixels, and the processor's crop_size is {crop}"
            )
        size: Any = said.get("size") or self.side
        size = {"shortest_edge": size} if isinstance(size, int) else size
        self.short: int | None = size.get("shortest_edge")
        self.size: tuple[int, int] = (size.get("height", self.side), size.get("width", self.side))
        self.resample, self.pads = int(said.get("resample", BICUBIC)), bool(said.get("do_pad", False))
        self.background = [int(value * 255) for value in said.get("image_mean") or CLIP_MEAN]
        self.colours = Colours.read(said, mean=CLIP_MEAN, std=CLIP_STD)

    def most(self, modality: Modality) -> Most:
        patches = (self.side // self.patch) ** 2
        return Most(patches=patches, embeddings=patches)

    def embedded(self, embeddings: Embeddings) -> Made:
        return given(embeddings, [self.token] * len(embeddings.values), self.token)

    def image(self, picture: Picture) -> Made:
        pixels = padded_to_square(picture.pixels, self.background) if self.pads else picture.pixels
        given_height, given_width, _ = pixels.shape
        height, width = self.size if self.short is None else shortest_edge(given_height, given_width, self.short)
        cut = centre(resized(pixels, height, width, self.resample), self.side, self.side)
        patches = self.colours.patches(cut[None], self.patch)
        side = self.side // self.patch
        tokens, embeds = repeated(self.token, side**2)
        return Made(patches=patches, grid=(1, side, side), tokens=tokens, embeds=embeds)
