"""Media that somebody sends to do harm, or by mistake: each is refused as one request's error."""

from __future__ import annotations

import io
import struct
import wave
import zlib

import av
import numpy as np
from PIL import Image


def png_of(width: int, height: int) -> bytes:
    """A picture that was drawn."""
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return saved(Image.fromarray(pixels), "PNG")


def saved(image: Image.Image, form: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def wav_of(seconds: float, *, rate: int = 16000, channels: int = 1) -> bytes:
    """A tone of 440 Hz."""
    at = np.arange(int(seconds * rate)) / rate
    tone = (np.sin(2 * np.pi * 440 * at) * 20000).astype("<i2")
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(channels)
        sound.setsampwidth(2)
        sound.setframerate(rate)
        sound.writeframes(np.repeat(tone, channels).tobytes())
    return file.getvalue()


def mp4_of(frames: int, *, width: int = 64, height: int = 48, rate: int = 10) -> bytes:
    """Frames that grow brighter."""
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        track = container.add_stream("mpeg4", rate=rate)
        track.width, track.height, track.pix_fmt = width, height, "yuv420p"
        for number in range(frames):
            shade = np.full((height, width, 3), 255 * number // max(frames - 1, 1), np.uint8)
            container.mux(track.encode(av.VideoFrame.from_ndarray(shade, format="rgb24")))
        container.mux(track.encode())
    return file.getvalue()


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def bomb(width: int, height: int) -> bytes:
    """A small file that says it has so many pixels."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = zlib.compress(bytes(1 << 20), 9)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", rows) + _chunk(b"IEND", b"")


def hostile_pictures() -> dict[str, bytes]:
    good, jpeg = png_of(40, 30), saved(Image.new("RGB", (64, 64), "red"), "JPEG")
    gif, webp = saved(Image.new("P", (8, 8)), "GIF"), saved(Image.new("RGB", (8, 8)), "WEBP")
    return {
        "nothing": b"",
        "one byte": b"\x89",
        "a text": b"this is no picture",
        "HTML": b"<html><body>404</body></html>",
        "a script in SVG": b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>',
        "PostScript": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 99999 99999\n(/etc/passwd) (r) file\n",
        "PDF": b"%PDF-1.7\n1 0 obj\n<<>>\nendobj\n",
        "a cut PNG": good[: len(good) // 2],
        "a PNG without its end": good[:-30],
        "only a PNG's header": good[:33],
        "a PNG with a flipped byte": good[:60] + bytes([good[60] ^ 0xFF]) + good[61:],
        "a cut JPEG": jpeg[: len(jpeg) // 2],
        "a JPEG of markers": b"\xff\xd8" + b"\xff\xe0\x00\x10" * 100,
        "a cut GIF": gif[:20],
        "a cut WebP": webp[:20],
        "a bomb of 100,000 x 100,000": bomb(100_000, 100_000),
        "a bomb of 2^31 - 1 rows": bomb(1, (1 << 31) - 1),
        "a bomb just above the limit": bomb(8193, 8193),
        "no rows": bomb(16, 0),
        "rows that are missing": bomb(4000, 4000),
        "an ICO": b"\x00\x00\x01\x00\x01\x00\x00\x00\x00\x00\x01\x00 \x00\xff\xff\xff\x7f\x16\x00\x00\x00",
        "a PSD": b"8BPS\x00\x01" + bytes(40),
        "a TIFF that points to itself": b"II*\x00" + struct.pack("<IHHHIII", 8, 1, 256, 3, 1, 8, 8),
    }


def hostile_sounds() -> dict[str, bytes]:
    good = wav_of(0.5)
    return {
        "nothing": b"",
        "a text": b"this is no sound",
        "a WAV's header": good[:44],
        "a WAV that says 4 GiB": good[:4] + b"\xff\xff\xff\xff" + good[8:40] + b"\xff\xff\xff\xff",
        "a WAV of no channels": good[:22] + b"\x00\x00" + good[24:],
        "a WAV of rate 0": good[:24] + bytes(8) + good[32:],
        "a picture": png_of(4, 4),
        "a playlist of a file": b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n#EXT-X-ENDLIST\n",
        "a playlist of a host": b"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nhttp://127.0.0.1:9/a.ts\n#EXT-X-ENDLIST\n",
        "a list of files": b"ffconcat version 1.0\nfile /etc/passwd\n",
        "a description": b"v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nm=audio 9 RTP/AVP 0\n",
        "DASH": b'<?xml version="1.0"?><MPD><Period><BaseURL>http://127.0.0.1:9/</BaseURL></Period></MPD>',
        "a video without sound": mp4_of(3),
    }


def hostile_videos() -> dict[str, bytes]:
    good = mp4_of(6)
    return {
        "nothing": b"",
        "a text": b"this is no video",
        "sound": wav_of(0.1),
        "half of an MP4": good[: len(good) // 2],
        "an MP4 of zeros": good[:40] + bytes(len(good) - 40),
        "a playlist": b"#EXTM3U\n#EXTINF:1,\nfile:///etc/hostname\n",
    }
