"""Files of sound and video are opened by FFmpeg, which is told to read nothing but what it is given."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from jaxengine.media.errors import needing

if TYPE_CHECKING:
    from av.container import InputContainer

FORMATS = (
    "aac",
    "aiff",
    "avi",
    "flac",
    "flv",
    "gif",
    "matroska",
    "webm",
    "mov",
    "mp3",
    "mp4",
    "mpegts",
    "ogg",
    "wav",
    "w64",
)
"""FFmpeg's names. Playlists (hls, concat and others) are not among them: they make it open other files and hosts."""


def open_container(content: bytes, *, extra: str) -> InputContainer:
    """A file that is in memory; whoever opens it closes it.

    Raises:
        UnsupportedError: PyAV, which the `extra` brings, is not installed.
        av.error.FFmpegError: it is of no such format, or damaged.
    """
    with needing(extra):
        import av
    only = {"format_whitelist": ",".join(FORMATS), "protocol_whitelist": "none"}
    return av.open(io.BytesIO(content), "r", options=only)
