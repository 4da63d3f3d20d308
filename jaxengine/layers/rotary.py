"""Rotary position embeddings: frequencies on the host in float64, angles on the device in float32."""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from jaxengine.layers.step import Angles

SUBLANES = 8  # rows of a tile of a TPU


@dataclass(frozen=True, kw_only=True)
class Llama3Scaling:
    """Long wavelengths are stretched by `factor`, short ones kept, those between blended (Llama 3.1 and later)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_positions: int

    def apply(self, frequencies: NDArray[np.float64]) -> NDArray[np.float64]:
        turns = self.original_max_positions * frequencies / (2 * math.pi)
        blend = np.clip((turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor), 0, 1)
        return frequencies * ((1 - blend) / self.factor + blend)


@dataclass(frozen=True, kw_only=True)
class LinearScaling:
    """Every wavelength is stretched by `factor`."""

    factor: float

    def apply(self, frequencies: NDArray[np.float64]) -> NDArray[np.float64]:
        return frequencies / self.factor


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


Scaling = LinearScaling | Llama3Scaling | YarnScaling


@dataclass(frozen=True, kw_only=True)
class Rope:
    """Rotary embedding of heads of `head_dim` channels. `magnitude` scales sines and cosines (YaRN)."""

    theta: float
    head_dim: int
    scaling: Scaling | None = None
    magnitude: float = 1.0

    def frequencies(self) -> NDArray[np.float32]:
        """Radians per position of each pair of channels, `[H / 2]`."""
        exponents = np.arange(0, self.head_dim, 2, dtype=np.float64) / self.head_dim
        frequencies = 1.0 / self.theta**exponents
        if self.scaling is not None:
            frequencies = self.scaling.apply(frequencies)
        return frequencies.astype(np.float32)

    def angles(self, positions: jax.Array) -> Angles:
        """`positions [N]` -> cosines and sines, float32 `[N, 1, H / 2]`: computed once a step, used by every layer."""
        angles = positions.astype(jnp.float32)[:, None, None] * self.frequencies()[None, None]
        return jnp.cos(angles) * self.magnitude, jnp.sin(angles) * self.magnitude


def rotate(x: jax.Array, angles: Angles, *, platform: str) -> jax.Array:
    """Turn `x [N, heads, H]`: channel `i` is paired with channel `i + H / 2`."""
    if platform == "tpu":
        return _rotate_on_tpu(x, angles)
    cos, sin = angles
    left, right = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([left * cos - right * sin, right * cos + left * sin], axis=-1).astype(x.dtype)


def _rotate_on_tpu(x: jax.Array, angles: Angles) -> jax.Array:
    """The same with each channel's partner fetched by a matrix product, which is exact: one factor is 1 or -1, all others 0.

    A TPU has vectors of 128 lanes. Halves of a head are copied apart and together again, and tokens to where heads were for
    it; a product keeps both in place.
    """
    tokens, heads, size = x.shape
    cos, sin = (jnp.concatenate([half, half], axis=-1)[:, 0] for half in angles)
    partner = jnp.asarray(np.kron([[0, 1], [-1, 0]], np.eye(size // 2)), x.dtype)
    rows = SUBLANES if tokens % SUBLANES == 0 else 1
    by_head = x.reshape(-1, rows, heads, size).transpose(2, 0, 1, 3).reshape(heads, tokens, size)  # whole tiles move
    partners = jnp.einsum(
        "hnc,cd->hnd", by_head, partner, precision=jax.lax.Precision.HIGHEST, preferred_element_type=jnp.float32
    )
    return (by_head * cos + partners * sin).astype(x.dtype).swapaxes(0, 1)
