"""Qwen2.5-VL and Qwen3-VL: any size, patches block by block, videos as pairs of frames, positions in three axes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from jaxengine.contract.arrays import Int32s
from jaxengine.contract.media import Modality
from jaxengine.errors import ConfigError
from jaxengine.media.embeddings import Embeddings
from jaxengine.media.errors import MediaError
from jaxengine.media.items import Picture, Video
from jaxengine.media.processors.axes import three_axes
from jaxengine.media.processors.pixels import BICUBIC, CLIP_MEAN, CLIP_STD, HALF, Colours, Pixels, resized
from jaxengine.media.processors.processor import Made, Most, Processor, Settings, given, repeated, taking
from jaxengine.media.video import NUM_FRAMES

MOST_ELONGATED = 200


class QwenProcessor(Processor):
    """What both have (arXiv 2502.13923, 2511.21631)."""

    modalities = (Modality.IMAGE, Modality.VIDEO)
    knobs = Processor.knobs | {"min_pixels", "max_pixels"}
    patch: ClassVar[int]
    colours: ClassVar[tuple[Sequence[float], Sequence[float]]]
    limits: ClassVar[Mapping[Modality, tuple[int, int]]]
    """The least and the most pixels, unless the files say others."""
    limits_frames: ClassVar[bool]
    """Whether those of a video are of each frame, and not of all together."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.image_token, self.video_token = settings.token("image_token_id"), settings.token("video_token_id")
        self.start, self.end = settings.token("vision_start_token_id"), settings.token("vision_end_token_id")
        self.marks = {Modality.IMAGE: self.image_token, Modality.VIDEO: self.video_token}
        around = "<|vision_start|><|{}_pad|><|vision_end|>"
        self.shown = {modality: around.format(modality) for modality in self.modalities}
        vision = settings.config.get("vision_config", {})
        self.size = int(self._said(Modality.IMAGE, "patch_size", vision.get("patch_size", self.patch)))
        self.merge = int(self._said(Modality.IMAGE, "merge_size", vision.get("spatial_merge_size", 2)))
        self.frames = int(self._said(Modality.IMAGE, "temporal_patch_size", vision.get("temporal_patch_size", 2)))
        mean, std = self.colours
        self._colours = {of: Colours.read(settings.of[of], mean=mean, std=std) for of in self.modalities}

    def most(self, modality: Modality) -> Most:
        _, pixels = self._limits(modality)
        frames = 1 if modality is Modality.IMAGE else -(-NUM_FRAMES // self.frames)
        patches = pixels // self.size**2 * (frames if self.limits_frames else 1)
        return Most(patches=patches, embeddings=patches // self.merge**2, rows=frames, resizable=True)

    def image(self, picture: Picture) -> Made:
        height, width = picture.pixels.shape[:2]
        least, most = self._limits(Modality.IMAGE)
        size = self._taken(*fitted(height, width, self.size * self.merge, least=least, most=most))
        pixels = self._resized(picture.pixels, *size, Modality.IMAGE)
        frame = np.broadcast_to(pixels, (self.frames, *pixels.shape))
        return self._made(frame, Modality.IMAGE, self.image_token)

    def embedded(self, embeddings: Embeddings) -> Made:
        grid, count = embeddings.grid, len(embeddings.values)
        if (
            grid is None
            or grid[0] != 1
            or math.prod(grid) != count * self.merge**2
            or any(n % self.merge for n in grid[1:])
        ):
            raise MediaError(
                f"{count} embeddings need image_grid_thw, [1, rows, columns] of their picture's patches in whole blocks of "
                f"{self.merge} x {self.merge}, {self.merge**2} times as many; got {None if grid is None else list(grid)}"
            )
        return given(embeddings, [self.image_token] * count, self.image_token, grid=grid)

    def axes(self, length: int, shown: Sequence[tuple[Made, Int32s]]) -> tuple[Int32s, int]:
        return three_axes(length, shown, merge=self.merge)

    def _made(self, frames: Pixels, modality: Modality, token: int) -> Made:
        """Of pictures of one size, `[n, height, width, 3]`."""
        patches = self._colours[modality].patches(frames, self.size, merge=self.merge, frames=self.frames)
        grid = (len(frames) // self.frames, frames.shape[1] // self.size, frames.shape[2] // self.size)
        tokens, embeds = repeated(token, len(patches) // self.merge**2)
        return Made(patches=patches, grid=grid, tokens=tokens, embeds=embeds)

    def _resized(self, pixels: Pixels, height: int, width: int, modality: Modality) -> Pixels:
        if not self._said(modality, "do_resize", True):
            block = self.size * self.merge
            if pixels.shape[0] % block or pixels.shape[1] % block:
                raise MediaError(f"without do_resize the sides of a picture must be multiples of {block}")
            return pixels
        return resized(pixels, height, width, int(self._said(modality, "resample", BICUBIC)))

    def _whole(self, video: Video) -> Pixels:
        """As many frames as make whole patches: the last is shown longer."""
        lacking = -len(video.frames) % self.frames
        return np.concatenate([video.frames, np.repeat(video.frames[-1:], lacking, axis=0)])

    def _limits(self, modality: Modality, *, pairs: int = 1) -> tuple[int, int]:
        """The least and the most pixels of an item, or of each frame where it has several `pairs` that are limited alone."""
        size = self._said(modality, "size", None) or {}
        least, most = self.limits[modality]
        found = tuple(
            int(self._said(modality, name, None) or size.get(edge) or size.get(name) or default)
            for name, edge, default in (("min_pixels", "shortest_edge", least), ("max_pixels", "longest_edge", most))
        )
        if not 0 < found[0] <= found[1]:
            raise ConfigError(
                f"the processor's pixels are at least {found[0]} and at most {found[1]}, which nothing is"
            )
        if self.settings.max_patches is None:
            return found[0], found[1]
        taken = self.settings.max_patches // pairs * self.size**2
        return min(found[0], taken), min(found[1], taken)

    def _taken(self, height: int, width: int, *, pairs: int = 1) -> tuple[int, int]:
        """The same size, or a shorter longest side where the encoder takes less: whole blocks may have made it larger."""
        if self.settings.max_patches is None:
            return height, width
        block = self.size * self.merge
        short, long = sorted((height, width))
        most = max(1, self.settings.max_patches // pairs // self.merge**2 // (short // block)) * block
        return (short, min(long, most)) if height <= width else (min(long, most), short)

    def _said(self, modality: Modality, key: str, default: Any) -> Any:
        value = self.settings.of[modality].get(key)
        return default if value is None else value


class Qwen2_5Processor(QwenProcessor):  # noqa: N801 - the model's name
    """Frames of a video have positions as far apart as they are in time."""

    patch = 14
    colours = (CLIP_MEAN, CLIP_STD)
    limits: ClassVar[Mapping[Modality, tuple[int, int]]] = {
        Modality.IMAGE: (56 * 56, 28 * 28 * 1280),
        Modality.VIDEO: (128 * 28 * 28, 768 * 28 * 28),
    }
    limits_frames = True

    def video(self, video: Video) -> Made:
        height, width = video.frames.shape[1:3]
        least, most = self._limits(Modality.VIDEO, pairs=-(-len(video.frames) // self.frames))
        high, wide = fitted(height, width, self.size * self.merge, least=least, most=most)
        high, wide = self._taken(high, wide, pairs=-(-len(video.frames) // self.frames))
        frames = np.stack([self._resized(frame, high, wide, Modality.VIDEO) for frame in self._whole(video)])
        made = self._made(frames, Modality.VIDEO, self.video_token)
        second = self.settings.config.get("vision_config", {}).get("tokens_per_second", 4)
        interval = second * self.frames / rate_of(video.times)
        return Made(patches=made.patches, grid=made.grid, tokens=made.tokens, embeds=made.embeds, interval=interval)


class Qwen3Processor(QwenProcessor):
    """Each pair of frames is a picture of its own in the prompt, behind the second at which it is shown."""

    patch = 16
    limits_frames = False
    colours = (HALF, HALF)
    limits: ClassVar[Mapping[Modality, tuple[int, int]]] = {
        Modality.IMAGE: (65536, 16777216),
        Modality.VIDEO: (128 * 32 * 32, 32 * 32 * 768),
    }

    def video(self, video: Video) -> Made:
        frames = self._whole(video)
        height, width = frames.shape[1:3]
        least, most = self._limits(Modality.VIDEO)
        high, wide = self._fitting_video(len(video.frames), height, width, least, most)
        high, wide = self._taken(high, wide, pairs=len(frames) // self.frames)
        made = self._made(
            np.stack([self._resized(frame, high, wide, Modality.VIDEO) for frame in frames]),
            Modality.VIDEO,
            self.video_token,
        )
        each = made.num_embeddings // made.grid[0]
        times = [*video.times, *video.times[-1:] * (len(frames) - len(video.times))]
        ids: list[int] = []
        for first in range(0, len(frames), self.frames):
            shown_at = (times[first] + times[first + self.frames - 1]) / 2
            ids += [*self.ids(f"<{shown_at:.1f} seconds>"), self.start, *[self.video_token] * each, self.end]
        tokens, embeds = taking(ids, self.video_token)
        return Made(patches=made.patches, grid=made.grid, tokens=tokens, embeds=embeds)

    def _fitting_video(self, frames: int, height: int, width: int, least: int, most: int) -> tuple[int, int]:
        """The nearest size at which all frames together have so many pixels, counted in whole patches of them."""
        block = self.size * self.merge
        if height < block or width < block:
            larger = max(block / height, block / width)
            height, width = int(height * larger), int(width * larger)
        counted = max(round(frames / self.frames), 1) * self.frames
        return fitted(height, width, block, frames=frames, counted=counted, least=least, most=most)


def fitted(
    height: int, width: int, block: int, *, least: int, most: int, frames: int = 1, counted: int = 1
) -> tuple[int, int]:
    """The nearest size of whole blocks at which `frames` pictures, of which `counted` are counted, have so many pixels.

    Raises:
        MediaError: one side is many times the other.
    """
    if max(height, width) > MOST_ELONGATED * min(height, width):
        raise MediaError(f"a side of a picture is at most {MOST_ELONGATED} times the other, got {width} x {height}")
    high, wide = round(height / block) * block, round(width / block) * block
    if counted * high * wide > most:
        factor = math.sqrt(frames * height * width / most)
        return max(block, math.floor(height / factor / block) * block), max(
            block, math.floor(width / factor / block) * block
        )
    if counted * high * wide < least:
        factor = math.sqrt(least / (frames * height * width))
        return math.ceil(height * factor / block) * block, math.ceil(width * factor / block) * block
    return high, wide


def rate_of(times: Sequence[float]) -> float:
    """Frames a second, of frames shown from these times on; 2 where one alone does not tell."""
    span = times[-1] - times[0]
    return (len(times) - 1) / span if span > 0 else 2.0
