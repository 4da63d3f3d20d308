"""LLaVA-OneVision: the canvas of tiles that has a picture's shape best, and the whole beside it (arXiv 2408.03326)."""

from __future__ import annotations

import math

import numpy as np

from jaxengine.contract.media import Modality, Mosaic
from jaxengine.errors import ConfigError
from jaxengine.media.items import Picture
from jaxengine.media.processors.pixels import BICUBIC, CLIP_MEAN, CLIP_STD, Colours, resized, square_side
from jaxengine.media.processors.processor import Made, Most, Processor, Settings, repeated

ACROSS = 6
"""Tiles of the largest canvas on each side, where files do not list them."""
REDUCED = 1.1
"""How many times longer than allowed the sides of a picture are, in patches, before it is made smaller."""


class OneVisionProcessor(Processor):
    """Each picture of a prompt is cut in tiles, however many there are."""

    knobs = Processor.knobs | {"image_grid_pinpoints"}

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        said, config = settings.of[Modality.IMAGE], settings.config
        vision = config.get("vision_config", {})
        self.token = settings.token("image_token_index", "image_token_id")
        self.marks, self.shown = {Modality.IMAGE: self.token}, {Modality.IMAGE: "<image>"}
        self.patch, self.side = int(vision.get("patch_size", 14)), int(vision.get("image_size", 384))
        if square_side(said, "size", self.side) != self.side or not said.get("do_resize", True):
            raise ConfigError(f"the tower takes squares of {self.side} pixels, which the processor's size has to be")
        self.across = self.side // self.patch
        named = str(config.get("vision_aspect_ratio") or "anyres_max_9")
        if not (most := named.removeprefix("anyres_max_")).isdigit():
            raise ConfigError(f"vision_aspect_ratio={named!r} is not built: anyres_max_9 or another number is")
        self.most_cells = int(most) * self.across**2
        self.canvases = self._fitting(said.get("image_grid_pinpoints") or config.get("image_grid_pinpoints"))
        self.resample = int(said.get("resample", BICUBIC))
        self.colours = Colours.read(said, mean=CLIP_MEAN, std=CLIP_STD)

    def most(self, modality: Modality) -> Most:
        rows = 1 + max(down * across for down, across in self.canvases)
        of_tile = self.across**2
        cells = min((rows - 1) * of_tile, math.ceil(REDUCED**2 * self.most_cells))
        lines = max(down for down, _ in self.canvases) * self.across
        return Most(patches=rows * of_tile, embeddings=of_tile + cells + lines, rows=rows, resizable=True)

    def image(self, picture: Picture) -> Made:
        side, pixels = self.side, picture.pixels
        height, width = pixels.shape[:2]
        down, across = self._canvas(height, width)
        high, wide = down * side, across * side
        if (by_width := wide / width) < (by_height := high / height):
            size = min(math.ceil(height * by_width), high), wide
        else:
            size = high, min(math.ceil(width * by_height), wide)
        canvas = np.zeros((high, wide, 3), np.uint8)
        top, left = (high - size[0]) // 2, (wide - size[1]) // 2
        canvas[top : top + size[0], left : left + size[1]] = resized(pixels, *size, self.resample)
        tiles = canvas.reshape(down, side, across, side, 3).swapaxes(1, 2).reshape(-1, side, side, 3)
        tiles = np.concatenate([resized(pixels, side, side, self.resample)[None], tiles])
        mosaic = self._mosaic(height, width, down, across)
        tokens, embeds = repeated(self.token, self.across**2 + mosaic.num_embeddings)
        return Made(
            patches=self.colours.patches(tiles, self.patch),
            grid=(len(tiles), self.across, self.across),
            tokens=tokens,
            embeds=embeds,
            mosaic=mosaic,
        )

    def _mosaic(self, height: int, width: int, down: int, across: int) -> Mosaic:
        """What of the canvas, in patches, shows the picture, and of how many embeddings it is."""
        rows, columns = down * self.across, across * self.across
        if width / height > columns / rows:
            rows -= (rows - int(round(height * (columns / width), 7))) // 2 * 2
        else:
            columns -= (columns - int(round(width * (rows / height), 7))) // 2 * 2
        ratio = math.sqrt(rows * columns / self.most_cells)
        out = (int(rows // ratio), int(columns // ratio)) if ratio > REDUCED else (rows, columns)
        return Mosaic(down, rows, columns, *out)

    def _canvas(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of tiles: those that lose least of the picture, and of these those with the least beside it."""
        best, most, least = self.canvases[0], 0, math.inf
        for down, across in self.canvases:
            high, wide = down * self.side, across * self.side
            scale = min(wide / width, high / height)
            shown = min(int(width * scale) * int(height * scale), width * height)
            wasted = high * wide - shown
            if shown > most or (shown == most and wasted < least):
                best, most, least = (down, across), shown, wasted
        return best

    def _fitting(self, sizes: list[list[int]] | None) -> list[tuple[int, int]]:
        """Canvases in rows and columns of tiles, of those `sizes` in pixels that the encoder takes."""
        if sizes is None:
            listed = [(down, across) for down in range(1, ACROSS + 1) for across in range(1, ACROSS + 1)]
        else:
            if any(edge % self.side or edge < self.side for size in sizes for edge in size):
                raise ConfigError(f"image_grid_pinpoints must be multiples of {self.side} pixels, got {sizes}")
            listed = [(height // self.side, width // self.side) for height, width in sizes]
        limit = self.settings.max_patches
        if limit is None:
            return listed
        most = max(2, limit // self.across**2) - 1
        return [canvas for canvas in listed if canvas[0] * canvas[1] <= most] or [(1, 1)]
