"""Files of sound become samples of one channel at the rate that a model hears."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxengine.errors import RequestError
from jaxengine.media.containers import open_container
from jaxengine.media.errors import MediaError, needing
from jaxengine.media.items import Sound, digest_of

MAX_SECONDS = 6 * 3600.0
"""Of one file."""


def decode_sound(content: bytes, *, rate: int, max_seconds: float = MAX_SECONDS) -> Sound:
    """The first track of sound in a file (of a video too), its channels averaged, `rate` samples a second.

    Raises:
        MediaError: there is none, it is damaged, or longer than `max_seconds`.
        UnsupportedError: PyAV or soxr is not installed.
    """
    pieces: list[NDArray[np.float32]] = []
    resampling: _Resampling | None = None
    try:
        with open_container(content, extra="audio") as container:
            if not container.streams.audio:
                raise MediaError("a file of sound has no track of sound")
            for frame in container.decode(container.streams.audio[0]):
                if resampling is None:
                    resampling = _Resampling(frame.sample_rate, rate)
                if frame.sample_rate != resampling.given:
                    raise MediaError("a file of sound changes its rate")
                pieces.append(resampling.take(_mixed(frame)))
                if resampling.taken > max_seconds * frame.sample_rate:
                    raise MediaError(
                        f"a file of sound is longer than {max_seconds:g} s, which is the most that is taken"
                    )
    except RequestError:
        raise
    except Exception as error:  # a damaged file leads decoders to raise whatever they like
        raise MediaError(f"a file of sound cannot be decoded: {type(error).__name__}: {str(error)[:200]}") from error
    if resampling is None:
        raise MediaError("a file of sound is empty")
    samples = np.concatenate([*pieces, resampling.rest()])
    samples.setflags(write=False)
    return Sound(samples, rate, digest_of("sound", content, str(rate).encode()))


def sound_of_array(samples: Any, *, given_rate: int, rate: int) -> Sound:
    """Samples as they are: `[length]`, or `[channels, length]`, which are averaged.

    Raises:
        MediaError: they have another shape, none, or are not finite.
    """
    array = np.asarray(samples, dtype=np.float32)
    if array.ndim == 2:
        array = array.mean(axis=0)
    if array.ndim != 1 or not len(array):
        raise MediaError(f"sound as an array is [length] or [channels, length], got {list(np.shape(samples))}")
    if given_rate < 1:
        raise MediaError(f"a rate of sound is 1 or more samples a second, got {given_rate}")
    if not np.isfinite(array).all():
        raise MediaError("sound as an array has samples that are not finite")
    array = _Resampling(given_rate, rate).take(array, last=True)
    array.setflags(write=False)
    return Sound(array, rate, digest_of("samples", str(rate).encode(), np.ascontiguousarray(array).data))


class _Resampling:
    """The same sound with another number of samples a second (soxr's high quality), piece by piece."""

    def __init__(self, given: int, wanted: int) -> None:
        self.given, self.taken = given, 0
        self._stream = None
        if given != wanted:
            with needing("audio"):
                import soxr
            self._stream = soxr.ResampleStream(given, wanted, 1, dtype="float32", quality="HQ")

    def take(self, samples: NDArray[np.float32], *, last: bool = False) -> NDArray[np.float32]:
        """What the next samples come to so far."""
        self.taken += len(samples)
        if self._stream is None:
            return samples
        resampled: NDArray[np.float32] = self._stream.resample_chunk(samples, last=last)
        return resampled

    def rest(self) -> NDArray[np.float32]:
        """What is left when nothing more comes."""
        return self.take(np.empty(0, np.float32), last=True)


def _mixed(frame: Any) -> NDArray[np.float32]:
    """One channel of a frame, `float32 [length]`."""
    array = frame.to_ndarray()
    if not frame.format.is_planar:
        array = array.reshape(-1, frame.layout.nb_channels).T
    if array.dtype.kind == "u":
        array = (array.astype(np.float32) - 128) / 128
    elif array.dtype.kind == "i":
        array = array.astype(np.float32) / -float(np.iinfo(array.dtype).min)
    mixed: NDArray[np.float32] = array.astype(np.float32).mean(axis=0)
    return mixed
