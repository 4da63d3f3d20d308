"""Files of video become frames."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxengine.errors import RequestError
from jaxengine.media.containers import open_container
from jaxengine.media.errors import MediaError
from jaxengine.media.items import Video, digest_of
from jaxengine.media.pictures import MAX_PIXELS, check_size

NUM_FRAMES = 32
"""vLLM's: as many as are taken of a video unless `--media-io-kwargs` says otherwise."""
MAX_DECODED = 100_000
"""Frames that are looked at before a file is given up."""


def decode_video(content: bytes, *, num_frames: int = NUM_FRAMES, fps: float = -1.0) -> Video:
    """At most `num_frames` frames of the first track, equally far from each other, and at most `fps` of them a second.

    A `num_frames` of -1 takes all that `fps` leaves, an `fps` of -1 sets no limit.

    Raises:
        MediaError: there is no track of video, it is damaged, too long, or its frames are too many pixels.
        UnsupportedError: PyAV is not installed.
    """
    try:
        total, rate = _count(content)
        wanted = chosen_frames(total, rate, num_frames=num_frames, fps=fps)
        frames = []
        with open_container(content, extra="vision") as container:
            track = container.streams.video[0]
            track.codec_context.options = {"max_pixels": str(MAX_PIXELS)}  # whatever the container says of it
            check_size(track.width, track.height)
            if track.width * track.height * len(wanted) > 4 * MAX_PIXELS:
                raise MediaError(
                    f"{len(wanted)} frames of {track.width} x {track.height} are more pixels than are decoded of a video; "
                    "ask for fewer (media_io_kwargs: num_frames)"
                )
            chosen = set(wanted)
            for number, frame in enumerate(container.decode(track)):
                if number in chosen:
                    frames.append(frame.to_ndarray(format="rgb24"))
                if number >= wanted[-1]:
                    break
    except RequestError:
        raise
    except Exception as error:  # a damaged file leads decoders to raise whatever they like
        raise MediaError(f"a video cannot be decoded: {type(error).__name__}: {str(error)[:200]}") from error
    if len({frame.shape for frame in frames}) != 1:
        raise MediaError("a video changes the size of its frames")
    pixels = np.stack(frames).astype(np.uint8, copy=False)
    pixels.setflags(write=False)
    times = tuple(number / rate for number in wanted[: len(frames)])
    return Video(pixels, times, digest_of("video", content, f"{num_frames} {fps}".encode()))


def video_of_frames(frames: Any, times: tuple[float, ...]) -> Video:
    """Frames as they are, `[frames, height, width, 3]` of uint8 or a list of such pictures, each shown from its time on.

    Raises:
        MediaError: they have another shape or type, or too many pixels.
    """
    if len({np.shape(frame) for frame in frames}) != 1:
        raise MediaError("a video has frames, all of one size")
    array = np.asarray(frames)
    if array.dtype != np.uint8 or array.ndim != 4 or array.shape[3] != 3:
        raise MediaError(
            f"a video as an array has frames, height, width and 3 colours of uint8, got {array.dtype} {list(array.shape)}"
        )
    check_size(array.shape[2], array.shape[1])
    if array.size > 12 * MAX_PIXELS:
        raise MediaError(f"a video has more than {4 * MAX_PIXELS:,} pixels, which is the most that is shown")
    array = np.ascontiguousarray(array)
    array.setflags(write=False)
    return Video(array, times, digest_of("frames", repr((array.shape, times)).encode(), array.data))


def chosen_frames(total: int, rate: float, *, num_frames: int, fps: float) -> list[int]:
    """Numbers of the frames to take of `total` at `rate` a second, in order, from the first to the last."""
    count = total if num_frames < 0 else min(num_frames, total)
    if fps > 0:
        count = min(count, max(1, int(total / rate * fps)))
    return [int(number) for number in np.linspace(0, total - 1, max(count, 1), dtype=int)]


def _count(content: bytes) -> tuple[int, float]:
    """How many frames there are, and how many a second: what headers say of it is not to be trusted."""
    with open_container(content, extra="vision") as container:
        if not container.streams.video:
            raise MediaError("a video has no track of video")
        track = container.streams.video[0]
        rate = float(track.average_rate or track.guessed_rate or 0) or 24.0
        total = 0
        for packet in container.demux(track):
            total += packet.size > 0
            if total > MAX_DECODED:
                raise MediaError(f"a video has more than {MAX_DECODED:,} frames, which is the most that is looked at")
    if not total:
        raise MediaError("a video has no frames")
    return total, rate
