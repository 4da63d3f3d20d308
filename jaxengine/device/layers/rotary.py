"""Rotary position embeddings: frequencies on the host in float64, angles on the device in float32."""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from jaxengine.device.layers.step import Angles


@dataclass(frozen=True, kw_only=True)
class Llama3Scaling:
    """Long wavelengths are stretched by `factor`, short ones kept, those between blended (Llama 3.1 and later).

    In Llama 4 there are none between.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_positions: int

    def apply(self, frequencies: NDArray[np.float64]) -> NDArray[np.float64]:
        turns = self.original_max_positions * frequencies / (2 * math.pi)
        between = self.high_freq_factor - self.low_freq_factor
        blend = np.clip((turns - self.low_freq_factor) / between, 0, 1) if between else turns >= self.low_freq_factor
        return frequencies * ((1 - blend) / self.factor + blend)


@dataclass(frozen=True, kw_only=True)
class LinearScaling:
    """Every wavelength is stretched by `factor`."""

    factor: float

    def apply(self, frequencies: NDArray[np.float64]) -> NDArray[np.float64]:
        return frequencies / self.factor


@dataclass(frozen=True, kw_only=True)
class DynamicScaling:
    """NTK scaling for contexts of `served_positions`: the longest wavelength is stretched most, the shortest stays as it is.

    Within `original_max_positions` nothing is stretched.
    """

    factor: float
    original_max_positions: int
    served_positions: int

    def apply(self, frequencies: NDArray[np.float64]) -> NDArray[np.float64]:
        if self.served_positions <= self.original_max_positions or len(frequencies) < 2:
            return frequencies
        stretch = self.factor * self.served_positions / self.original_max_positions - (self.factor - 1)
        return frequencies * stretch ** (-np.arange(len(frequencies)) / (len(frequencies) - 1))


@dataclass(frozen=True, kw_only=True)
class YarnScaling:
    """Wavelengths that turn fewer than `beta_slow` times in the original context are stretched, those above `beta_fast` kept.

    `truncate` rounds the two bounds outwards to whole channels.
    """

    factor: float
    beta_fast: float
    beta_slow: float
    original_max_positions: int
    theta: float
    truncate: bool

    def apply(self, frequencies: NDArray[np.float64]) -> NDArray[np.float64]:
        half = len(frequencies)
        low, high = self._channel(self.beta_fast, half), self._channel(self.beta_slow, half)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, 2 * half - 1)
        width = (high - low) or 0.001
        stretched = np.clip((np.arange(half) - low) / width, 0, 1)
        return frequencies * (stretched / self.factor + (1 - stretched))

    def _channel(self, turns: float, half: int) -> float:
        """The channel whose wavelength turns that many times within the original context."""
        return half * math.log(self.original_max_positions / (turns * 2 * math.pi)) / math.log(self.theta)


@dataclass(frozen=True, kw_only=True)
class LongScaling:
    """Each wavelength is stretched by a factor of its own (LongRoPE)."""

    factors: tuple[float, ...]

    def apply(self, frequencies: NDArray[np.float64]) -> NDArray[np.float64]:
        return frequencies / np.asarray(self.factors)


Scaling = DynamicScaling | LinearScaling | Llama3Scaling | LongScaling | YarnScaling


@dataclass(frozen=True, kw_only=True)
class Rope:
    """Rotary embedding of heads of `head_dim` channels. `magnitude` scales sines and cosines (YaRN).

    Of a head the first `rotary_dim` channels turn, None being all. A checkpoint's channel turns with the one half of those away,
    or where `interleaved` is set with the one beside it; `order` brings both to what `rotate` expects. With `proportional` those
    that turn are the first of each half, with the frequencies that they have where all turn (Gemma 4). Where positions have
    several axes, `axes` says for each pair of channels that turns by which.
    """

    theta: float
    head_dim: int
    scaling: Scaling | None = None
    magnitude: float = 1.0
    rotary_dim: int | None = None
    interleaved: bool = False
    proportional: bool = False
    axes: tuple[int, ...] | None = None

    def frequencies(self) -> NDArray[np.float32]:
        """Radians per position of each pair of channels, `[H / 2]`; 0 of those that do not turn."""
        rotary_dim = self.rotary_dim or self.head_dim
        exponents = np.arange(0, rotary_dim, 2, dtype=np.float64) / (self.head_dim if self.proportional else rotary_dim)
        frequencies = 1.0 / self.theta**exponents
        if self.scaling is not None:
            frequencies = self.scaling.apply(frequencies)
        return np.pad(frequencies, (0, (self.head_dim - rotary_dim) // 2)).astype(np.float32)

    def order(self) -> NDArray[np.intp]:
        """Of each channel of a head, where `i` turns with `i + H / 2`: which channel of the checkpoint's heads it is, `[H]`."""
        rotary_dim = self.head_dim if self.proportional else self.rotary_dim or self.head_dim
        channels = np.arange(self.head_dim)
        turning, still = channels[:rotary_dim], channels[rotary_dim:].reshape(2, -1)
        pairs = turning.reshape(-1, 2).T if self.interleaved else turning.reshape(2, -1)
        return np.concatenate([pairs, still], axis=1).ravel()

    def angles(self, positions: jax.Array) -> Angles:
        """`positions [N]`, or of each axis `[A, N]` -> cosines and sines, float32 `[N, 1, H / 2]`: computed once a step, used by
        every layer."""
        at = positions.astype(jnp.float32)
        if at.ndim == 1:
            at = at[:, None, None]
        else:
            assert self.axes is not None
            at = at[np.pad(self.axes, (0, self.head_dim // 2 - len(self.axes)))].T[:, None]
        angles = at * self.frequencies()[None, None]
        return jnp.cos(angles) * self._magnitudes(), jnp.sin(angles) * self._magnitudes()

    def _magnitudes(self) -> float | NDArray[np.float32]:
        if self.magnitude == 1.0 or self.rotary_dim is None:
            return self.magnitude
        turning = np.full(self.rotary_dim // 2, self.magnitude, np.float32)
        return np.pad(turning, (0, (self.head_dim - self.rotary_dim) // 2), constant_values=1.0)
