"""What was decoded: arrays, with a digest of what they were made from."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxengine.contract.media import Modality


@dataclass(frozen=True, slots=True, eq=False)
class Picture:
    """`pixels uint8 [height, width, 3]`, red, green and blue."""

    pixels: NDArray[np.uint8]
    digest: bytes


@dataclass(frozen=True, slots=True, eq=False)
class Sound:
    """`samples float32 [length]` of one channel, -1 to 1, `rate` of them a second."""

    samples: NDArray[np.float32]
    rate: int
    digest: bytes

    @property
    def seconds(self) -> float:
        return len(self.samples) / self.rate


@dataclass(frozen=True, slots=True, eq=False)
class Video:
    """`frames uint8 [frames, height, width, 3]`, each shown from `times[i]` seconds on."""

    frames: NDArray[np.uint8]
    times: tuple[float, ...]
    digest: bytes


Item = Picture | Sound | Video


@dataclass(frozen=True, slots=True, eq=False)
class Shown:
    """One item of a prompt as its caller names it: `source` is a URL, a file's bytes, a picture that is open, or an array.

    A picture is made smaller until no side is longer than `largest`.
    """

    modality: Modality
    source: Any
    largest: int | None = None


def digest_of(kind: str, *parts: bytes | memoryview) -> bytes:
    """32 bytes that no two contents share: parts are hashed with their lengths, so no two lists of parts look alike."""
    hashed = blake2b(digest_size=32, person=kind.encode())
    for part in parts:
        hashed.update(memoryview(part).nbytes.to_bytes(8, "big"))
        hashed.update(part)
    return hashed.digest()
