"""Families that cut a large picture in squares and show it as a whole beside: SmolVLM, InternVL and Llama 4.

A tile is a row of the encoder, as a frame of a video is.
"""

from __future__ import annotations

import math

import numpy as np

from jaxengine.contract.media import Modality
from jaxengine.errors import ConfigError
from jaxengine.media.embeddings import Embeddings
from jaxengine.media.items import Picture
from jaxengine.media.processors.pixels import BICUBIC, BILINEAR, CLIP_MEAN, CLIP_STD, LANCZOS, Colours, Pixels, resized
from jaxengine.media.processors.processor import Made, Most, Processor, Settings, given, taking

MOST_SIDE = 4096
"""Of a picture of SmolVLM, in pixels."""


class TiledProcessor(Processor):
    """A tile has `side` by `side` pixels and `each` embeddings; a picture has at most `most_tiles`, the whole beside them."""

    side: int
    patch: int
    each: int
    most_tiles: int
    colours: Colours

    def most(self, modality: Modality) -> Most:
        rows = self.most_tiles
        patches = (self.side // self.patch) ** 2
        return Most(patches=rows * patches, embeddings=rows * self.each, rows=rows, resizable=True)

    def within_limit(self, tiles: int) -> int:
        """As many tiles as the encoder takes, of those that the files allow."""
        limit = self.settings.max_patches
        return tiles if limit is None else max(1, min(tiles, limit // (self.side // self.patch) ** 2))

    def made(self, tiles: Pixels, ids: list[int], token: int) -> Made:
        """Of `tiles [n, side, side, 3]`, and the ids that stand for them."""
        tokens, embeds = taking(ids, token)
        across = self.side // self.patch
        patches = self.colours.patches(tiles, self.patch)
        return Made(patches=patches, grid=(len(tiles), across, across), tokens=tokens, embeds=embeds)


class SmolVlmProcessor(TiledProcessor):
    """The longest side becomes so many tiles, the other as many as it has (arXiv 2504.05299)."""

    knobs = Processor.knobs | {"max_image_size", "do_image_splitting"}

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        said, vision = settings.of[Modality.IMAGE], settings.config.get("vision_config", {})
        self.token = settings.token("image_token_id")
        self.marks, self.shown = {Modality.IMAGE: self.token}, {Modality.IMAGE: "<image>"}
        self.patch = int(vision.get("patch_size", 16))
        self.side = int((said.get("max_image_size") or {}).get("longest_edge") or vision.get("image_size", 512))
        self.each = (self.side // self.patch // int(settings.config.get("scale_factor", 2))) ** 2
        self.splits = bool(said.get("do_image_splitting", True))
        if not said.get("do_resize", True):
            raise ConfigError("the tower takes squares: do_resize of the processor must be true")
        longest = int((said.get("size") or {}).get("longest_edge") or 4 * self.side)
        across = -(-min(longest, MOST_SIDE) // self.side)
        fits = self.within_limit(across**2 + 1)
        if fits < across**2 + 1:
            across = max(1, math.isqrt(fits - 1))
            longest = across * self.side
        self.longest, self.most_tiles = longest, across**2 + 1 if self.splits and across > 1 else 1
        self.resample = int(said.get("resample", LANCZOS))
        self.colours = Colours.read(said)

    def image(self, picture: Picture) -> Made:
        height, width = self._first_size(*picture.pixels.shape[:2])
        whole = resized(picture.pixels, height, width, self.resample)
        if not self.splits:
            return self._one(resized(whole, self.side, self.side, self.resample))
        rows, columns = self._tiles(height, width)
        whole = resized(whole, rows * self.side, columns * self.side, self.resample)
        if rows * columns == 1:
            return self._one(whole)
        cut = whole.reshape(rows, self.side, columns, self.side, 3).swapaxes(1, 2)
        small = resized(whole, self.side, self.side, self.resample)
        tiles = np.concatenate([cut.reshape(-1, self.side, self.side, 3), small[None]])
        around, one = "<fake_token_around_image>", "<image>" * self.each
        text = "".join(
            "".join(f"{around}<row_{row + 1}_col_{column + 1}>{one}" for column in range(columns)) + "\n"
            for row in range(rows)
        )
        return self.made(tiles, self.ids(f"{text}\n{around}<global-img>{one}{around}"), self.token)

    def _one(self, pixels: Pixels) -> Made:
        around = "<fake_token_around_image>"
        return self.made(pixels[None], self.ids(f"{around}<global-img>{'<image>' * self.each}{around}"), self.token)

    def _first_size(self, height: int, width: int) -> tuple[int, int]:
        """The size at which the longest side is as the files say; the other is made even."""
        ratio = width / height
        if width >= height:
            width = self.longest
            height = int(width / ratio)
            height += height % 2
        else:
            height = self.longest
            width = int(height * ratio)
            width += width % 2
        height, width, ratio = max(height, 1), max(width, 1), max(width, 1) / max(height, 1)
        if width >= height and width > MOST_SIDE:
            height, width = int(MOST_SIDE / ratio), MOST_SIDE
        elif height > width and height > MOST_SIDE:
            height, width = MOST_SIDE, int(MOST_SIDE * ratio)
        return max(height, 1), max(width, 1)

    def _tiles(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of tiles that a picture of this size fills."""
        ratio = width / height
        if width >= height:
            columns = math.ceil(width / self.side)
            return math.ceil(int(columns * self.side / ratio) / self.side), columns
        rows = math.ceil(height / self.side)
        return rows, math.ceil(int(rows * self.side * ratio) / self.side)


class InternVlProcessor(TiledProcessor):
    """As many tiles as have the picture's shape best (arXiv 2404.16821)."""

    knobs = Processor.knobs | {"crop_to_patches", "min_patches", "max_patches"}

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        said, vision = settings.of[Modality.IMAGE], settings.config.get("vision_config", {})
        self.token = settings.token("image_token_id")
        self.marks, self.shown = {Modality.IMAGE: self.token}, {Modality.IMAGE: "<IMG_CONTEXT>"}
        [self.patch], [self.side] = (
            {size} if isinstance(size, int) else set(size)
            for size in (vision.get("patch_size", 14), vision.get("image_size", 448))
        )
        size = said.get("size") or {}
        if {size.get("height", self.side), size.get("width", self.side)} != {self.side} or not said.get(
            "do_resize", True
        ):
            raise ConfigError(f"the tower takes squares of {self.side} pixels, which the processor's size has to be")
        self.each = int((self.side // self.patch * settings.config.get("downsample_ratio", 0.5)) ** 2)
        crops = said.get("crop_to_patches") is not False
        self.least = int(said.get("min_patches") or 1)
        most = int(said.get("max_patches") or 12) if crops else 1
        self.most_cut = most if self.within_limit(most + 1) > most else max(1, self.within_limit(most + 1) - 1)
        self.most_tiles = self.most_cut + 1 if self.most_cut > 1 else 1
        self.resample = int(said.get("resample", BICUBIC))
        self.colours = Colours.read(said, mean=CLIP_MEAN, std=CLIP_STD)

    def embedded(self, embeddings: Embeddings) -> Made:
        ids = [*self.ids("<img>"), *[self.token] * len(embeddings.values), *self.ids("</img>")]
        return given(embeddings, ids, self.token)

    def image(self, picture: Picture) -> Made:
        side = self.side
        columns, rows = self._canvas(*picture.pixels.shape[:2])
        whole = resized(picture.pixels, rows * side, columns * side, self.resample)
        tiles = whole.reshape(rows, side, columns, side, 3).swapaxes(1, 2).reshape(-1, side, side, 3)
        if len(tiles) > 1:
            tiles = np.concatenate([tiles, resized(picture.pixels, side, side, self.resample)[None]])
        ids = [*self.ids("<img>"), *[self.token] * (self.each * len(tiles)), *self.ids("</img>")]
        return self.made(tiles, ids, self.token)

    def _canvas(self, height: int, width: int) -> tuple[int, int]:
        """Columns and rows of tiles; of two that have the shape as well the larger, while the picture fills half of it."""
        most, ratio = self.most_cut, width / height
        canvases = sorted(
            (
                (columns, rows)
                for columns in range(1, most + 1)
                for rows in range(1, most + 1)
                if self.least <= columns * rows <= most
            ),
            key=lambda canvas: canvas[0] * canvas[1],
        )
        best, least = (1, 1), math.inf
        for columns, rows in canvases:
            apart = abs(ratio - columns / rows)
            if apart < least or (apart == least and width * height > 0.5 * self.side**2 * columns * rows):
                best, least = (columns, rows), apart
        return best


class Llama4Processor(TiledProcessor):
    """A canvas of tiles in which the picture stands at the upper left, as large as it is if that fits."""

    knobs = Processor.knobs | {"max_patches", "resize_to_max_canvas"}

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        said, vision = settings.of[Modality.IMAGE], settings.config.get("vision_config", {})
        self.token = settings.token("image_token_index", "image_token_id")
        self.marks = {Modality.IMAGE: self.ids("<|image|>")[0] if settings.encode is not None else -1}
        self.shown = {Modality.IMAGE: "<|image|>"}
        self.patch, self.side = int(vision.get("patch_size", 14)), int(vision.get("image_size", 336))
        size = said.get("size") or {}
        if {size.get("height", self.side), size.get("width", self.side)} != {self.side} or not said.get(
            "do_resize", True
        ):
            raise ConfigError(f"the tower takes squares of {self.side} pixels, which the processor's size has to be")
        self.each = int((self.side // self.patch * vision.get("pixel_shuffle_ratio", 0.5)) ** 2)
        most = int(said.get("max_patches") or 16)
        self.most_cut = most if self.within_limit(most + 1) > most else max(1, self.within_limit(most + 1) - 1)
        self.most_tiles = self.most_cut + 1 if self.most_cut > 1 else 1
        self.largest = bool(said.get("resize_to_max_canvas", False))
        self.resample = int(said.get("resample", BILINEAR))
        self.colours = Colours.read_rounded(said)

    def image(self, picture: Picture) -> Made:
        side, pixels = self.side, picture.pixels
        height, width = pixels.shape[:2]
        rows, columns = self._canvas(height, width)
        high, wide = rows * side, columns * side
        if not self.largest:
            high, wide = min(max(height, side), high), min(max(width, side), wide)
        by_height, by_width = high / height, wide / width
        if by_width < by_height:
            size = (max(min(math.floor(height * by_width), high), 1), wide)
        else:
            size = (high, max(min(math.floor(width * by_height), wide), 1))
        canvas = np.zeros((rows * side, columns * side, 3), np.uint8)
        canvas[: size[0], : size[1]] = resized(pixels, *size, self.resample)
        tiles = canvas.reshape(rows, side, columns, side, 3).swapaxes(1, 2).reshape(-1, side, side, 3)
        one, text = "<|patch|>" * self.each, "<|image_start|>"
        if len(tiles) > 1:
            tiles = np.concatenate([tiles, resized(pixels, side, side, self.resample)[None]])
            text += ("<|tile_x_separator|>".join([one] * columns) + "<|tile_y_separator|>") * rows
        return self.made(tiles, self.ids(f"{text}<|image|>{one}<|image_end|>"), self.token)

    def _canvas(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of the canvas that enlarges the picture least, or makes it least small; the smallest of those."""
        canvases = [
            (rows, count // rows)
            for count in range(self.most_cut, 0, -1)
            for rows in range(1, count + 1)
            if count % rows == 0
        ]
        # As transformers orders them: all of one shape together, in the order in which shapes are first met.
        shapes = dict.fromkeys(rows / columns for rows, columns in canvases)
        canvases = [canvas for shape in shapes for canvas in canvases if canvas[0] / canvas[1] == shape]
        factors = np.asarray(
            [
                min(np.float32(rows * self.side / height), np.float32(columns * self.side / width))
                for rows, columns in canvases
            ],
            np.float32,
        )
        enlarging = factors[factors >= 1]
        chosen = enlarging.min() if len(enlarging) and not self.largest else factors.max()
        fitting = [canvas for canvas, factor in zip(canvases, factors, strict=True) if factor == chosen]
        return min(fitting, key=lambda canvas: canvas[0] * canvas[1])
