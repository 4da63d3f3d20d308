"""What a prompt shows is read, however its caller names it: a URL, the bytes of a file, a picture that is open, an array."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxengine.contract.media import Modality
from jaxengine.media.embeddings import Embeddings, Given, embeddings_of
from jaxengine.media.errors import MediaError
from jaxengine.media.fetch import Fetcher
from jaxengine.media.items import Item, Picture, Shown, Sound, Video, digest_of
from jaxengine.media.pictures import WHITE, decode_picture, picture_of, picture_of_array
from jaxengine.media.processors.pixels import BICUBIC, resized
from jaxengine.media.sound import decode_sound, sound_of_array
from jaxengine.media.video import NUM_FRAMES, decode_video, video_of_frames

DECODERS = 4


class Reader:
    """Makes pictures, videos and sounds of what is shown. Blocks while it fetches and decodes; threads may share it.

    Args:
        fetcher: asked for what is named by a URL.
        io: `media_io_kwargs`.
        given_width: numbers of each embedding that a prompt may give; 0: it may not.
    """

    def __init__(self, fetcher: Fetcher, io: Mapping[str, Mapping[str, Any]], *, given_width: int = 0) -> None:
        self._fetcher = fetcher
        self._given_width = given_width
        self._decoding = threading.Semaphore(DECODERS)
        self._background = tuple(io.get("image", {}).get("rgba_background_color", WHITE))
        video = io.get("video", {})
        self._num_frames, self._fps = int(video.get("num_frames", NUM_FRAMES)), float(video.get("fps", -1))

    def read(self, shown: Shown, *, rate: int | None = None) -> Item | Embeddings:
        """The item; of a sound `rate` samples a second. At most `DECODERS` are decoded at once, for the memory they take.

        Raises:
            MediaError: it cannot be had, or is none.
            UnsupportedError: what reads it is not installed.
        """
        source = shown.source
        if isinstance(source, str):
            source = self._fetcher.fetch(source)
        if isinstance(source, Given) and not self._given_width:
            raise MediaError("You must set `--enable-mm-embeds` to input `image_embeds`")
        with self._decoding:
            if isinstance(source, Given):
                return embeddings_of(source, self._given_width)
            if shown.modality is Modality.IMAGE:
                picture = self._picture(source)
                return picture if shown.largest is None else within(picture, shown.largest)
            if shown.modality is Modality.VIDEO:
                return self._video(source)
            assert rate is not None
            return _sound(source, rate)

    def _picture(self, source: Any) -> Picture:
        if isinstance(source, (bytes, bytearray)):
            return decode_picture(bytes(source), background=self._background)
        if hasattr(source, "getexif"):
            return picture_of(source, background=self._background)
        if _is_array(source):
            return picture_of_array(source)
        raise _no_item(
            "a picture", source, "a PIL picture, an array [height, width, 3] of uint8, a URL, or a file's bytes"
        )

    def _video(self, source: Any) -> Video:
        if isinstance(source, (bytes, bytearray)):
            return decode_video(bytes(source), num_frames=self._num_frames, fps=self._fps)
        metadata: Mapping[str, Any] = {}
        if isinstance(source, tuple) and len(source) == 2 and isinstance(source[1], Mapping):
            source, metadata = source
        if isinstance(source, Sequence) and source and not isinstance(source, str):
            frames: Any = [self._picture(frame).pixels for frame in source]
            return video_of_frames(frames, times_of(metadata, len(frames)))
        if _is_array(source):
            return video_of_frames(source, times_of(metadata, len(source)))
        raise _no_item(
            "a video",
            source,
            "an array [frames, height, width, 3] of uint8, a list of pictures, a URL, or a file's bytes",
        )


def within(picture: Picture, side: int) -> Picture:
    """A picture of which no side is longer than this."""
    height, width = picture.pixels.shape[:2]
    longest = max(height, width)
    if longest <= side:
        return picture
    small = resized(picture.pixels, max(1, height * side // longest), max(1, width * side // longest), BICUBIC)
    return Picture(small, digest_of("within", picture.digest, side.to_bytes(4, "big")))


def times_of(metadata: Mapping[str, Any], count: int) -> tuple[float, ...]:
    """When each frame is shown, going by `fps` (24 where it is not given) and perhaps `frames_indices`, which are vLLM's names.

    Raises:
        MediaError: they do not fit.
    """
    rate, numbers = metadata.get("fps") or 24.0, metadata.get("frames_indices")
    if not isinstance(rate, (int, float)) or rate <= 0:
        raise MediaError(f"the fps of a video must be a number above 0, got {rate!r}")
    numbers = range(count) if numbers is None else [int(number) for number in numbers]
    if len(numbers) != count:
        raise MediaError(f"frames_indices names {len(numbers)} frames, and the video has {count}")
    return tuple(number / rate for number in numbers)


def _sound(source: Any, rate: int) -> Sound:
    if isinstance(source, (bytes, bytearray)):
        return decode_sound(bytes(source), rate=rate)
    given = rate
    if isinstance(source, tuple) and len(source) == 2 and not _is_array(source[1]):
        source, given = source
    numbers = isinstance(source, list) and all(type(one) in (int, float) for one in source)
    if (_is_array(source) or numbers) and isinstance(given, (int, float)):
        return sound_of_array(source, given_rate=int(given), rate=rate)
    raise _no_item("a sound", source, "an array of samples, (samples, rate), a URL, or a file's bytes")


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray) or (hasattr(value, "__array__") and hasattr(value, "shape"))


def _no_item(what: str, source: Any, allowed: str) -> MediaError:
    return MediaError(f"{what} must be {allowed}, got {type(source).__name__}")
