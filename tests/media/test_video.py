"""Files of video become frames, or are refused."""

from __future__ import annotations

import numpy as np
import pytest

from jaxengine.media.errors import MediaError
from jaxengine.media.video import chosen_frames, decode_video
from tests.media.hostile import hostile_videos, mp4_of

HOSTILE = hostile_videos()


def test_frames_are_taken_from_the_first_to_the_last() -> None:
    video = decode_video(mp4_of(21), num_frames=5)
    assert video.frames.shape == (5, 48, 64, 3)
    assert video.times == (0.0, 0.5, 1.0, 1.5, 2.0)
    brightness = video.frames.mean(axis=(1, 2, 3))
    assert np.abs(brightness - [0, 64, 128, 191, 255]).max() < 8


@pytest.mark.parametrize(
    ("total", "num_frames", "fps", "chosen"),
    [
        (3, 32, -1, [0, 1, 2]),
        (100, 3, -1, [0, 49, 99]),
        (100, -1, 0.5, [0, 24, 49, 74, 99]),
        (5, -1, -1, [0, 1, 2, 3, 4]),
        (1, 8, 2, [0]),
    ],
)
def test_which_frames_are_taken(total: int, num_frames: int, fps: float, chosen: list[int]) -> None:
    assert chosen_frames(total, 10.0, num_frames=num_frames, fps=fps) == chosen


@pytest.mark.parametrize("what", HOSTILE)
def test_what_is_no_video_is_refused(what: str) -> None:
    with pytest.raises(MediaError, match="video"):
        decode_video(HOSTILE[what])
