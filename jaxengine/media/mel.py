"""Mel spectrograms as Whisper hears them (arXiv 2212.04356), in NumPy: what transformers' WhisperFeatureExtractor computes."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from jaxengine.contract.arrays import Floats

RATE = 16_000
"""Samples a second."""
WINDOW = 400
"""Samples that a frame is of."""
HOP = 160
"""Samples from one frame to the next."""
SPREAD = 8.0
"""Nothing is quieter than the loudest by more than so many powers of ten."""
FLOOR = 1e-10
FRAMES = 5
"""As many as an encoder's place comes of: it has two convolutions of three, and the second takes every second place."""


def mel_features(samples: Floats, mels: int) -> Floats:
    """Of samples `[length]` at `RATE` the loudness of each band over time, `[mels, length / HOP]`.

    A frame is of the samples around a multiple of `HOP`; before the first and behind the last one the sound is mirrored. In
    float64 within, as transformers does it without torch; with torch, in float32, it differs by up to 2e-5.
    """
    around = np.pad(samples.astype(np.float64), WINDOW // 2, mode="reflect")
    frames = np.lib.stride_tricks.sliding_window_view(around, WINDOW)[::HOP][: len(samples) // HOP]
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(WINDOW) / WINDOW)
    spectrum = np.fft.rfft(frames * window)
    power = spectrum.real**2 + spectrum.imag**2
    loudness = np.log10(np.maximum(mel_filters(mels) @ power.T, FLOOR))
    loudness = np.maximum(loudness, loudness.max() - SPREAD)
    return np.asarray((loudness + 4.0) / 4.0, np.float32)


def frames_of_places(features: Floats) -> Floats:
    """Mel features `[mels, frames]` -> what each place comes of, `[frames / 2, FRAMES * mels]`, frame by frame."""
    around = np.pad(features.T, ((FRAMES // 2, FRAMES // 2), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(around, FRAMES, axis=0)[::2]
    places = features.shape[1] // 2
    return np.ascontiguousarray(windows[:places].swapaxes(1, 2)).reshape(places, -1)


@lru_cache(maxsize=4)
def mel_filters(mels: int) -> NDArray[np.float64]:
    """How much of each frequency every band takes, `[mels, WINDOW / 2 + 1]`: triangles of one area on Slaney's mel scale."""
    edges = _hertz(np.linspace(_mel(0.0), _mel(RATE / 2), mels + 2))
    frequencies = np.linspace(0, RATE // 2, WINDOW // 2 + 1)
    slopes = edges[:, None] - frequencies[None]
    widths = np.diff(edges)[:, None]
    triangles = np.maximum(0.0, np.minimum(-slopes[:-2] / widths[:-1], slopes[2:] / widths[1:]))
    return np.asarray(triangles * (2.0 / (edges[2:] - edges[:-2]))[:, None])


LINEAR_HERTZ, LINEAR_MELS = 1000.0, 15.0
"""Up to here the scale is linear."""
STEP = 27.0 / np.log(6.4)
"""From there on mels go with so many times the logarithm."""


def _mel(hertz: float) -> float:
    if hertz < LINEAR_HERTZ:
        return hertz * LINEAR_MELS / LINEAR_HERTZ
    return float(LINEAR_MELS + np.log(hertz / LINEAR_HERTZ) * STEP)


def _hertz(mels: NDArray[np.float64]) -> NDArray[np.float64]:
    linear = mels * LINEAR_HERTZ / LINEAR_MELS
    return np.where(mels < LINEAR_MELS, linear, LINEAR_HERTZ * np.exp((mels - LINEAR_MELS) / STEP))
