"""What a model is built for: dtype, scheme of its matrices, platform of its programs, layout of its arrays on devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxengine.device.layers.schemes import Scheme
from jaxengine.device.layers.schemes.dense import DENSE
from jaxengine.device.layers.sharding import ONE_DEVICE, Layout
from pallas_kernels import QUANTISED_CACHES

PLATFORMS = ("cpu", "gpu", "tpu")


@dataclass(frozen=True, kw_only=True)
class ModelContext:
    """The compile target of a model. Programs may be compiled for another machine, so nothing asks JAX where it runs.

    `dtype` is that of weights, of matrix operands and, where `kv_dtype` is None, of the KV cache, but for matrices that `scheme`
    keeps otherwise; None: each by one of its own (`keep_by`), which its path says once the model is whole.
    """

    dtype: Any
    kv_dtype: Any = None
    platform: str
    layout: Layout = ONE_DEVICE
    scheme: Scheme | None = DENSE

    def __post_init__(self) -> None:
        if self.platform not in PLATFORMS:
            raise ValueError(f"platform must be one of {', '.join(PLATFORMS)}, got {self.platform!r}")

    @property
    def activation_dtype(self) -> Any:
        """The dtype of everything between two matrix products, the residual stream included.

        The CPU has no 16-bit arithmetic but in matrix products: there, 16-bit elementwise code is slower than float32.
        Accelerators are bound by memory and keep activations as narrow as weights.
        """
        return jnp.dtype(jnp.float32) if self.platform == "cpu" else jnp.dtype(self.dtype)

    @property
    def cache_dtype(self) -> Any:
        """Of the values in the KV cache."""
        return jnp.dtype(self.dtype if self.kv_dtype is None else self.kv_dtype)

    @property
    def precision(self) -> jax.lax.Precision:
        """Of matrix products: float32 means float32, also where the hardware would rather round to bfloat16 or TF32."""
        return jax.lax.Precision.HIGHEST if jnp.dtype(self.dtype) == jnp.float32 else jax.lax.Precision.DEFAULT

    def stored_kv_heads(self, count: int) -> int:
        """How many of `count` KV heads a layer has in its pages: where devices are more than heads, each head several times."""
        return max(count, self.layout.shards("kv_heads"))

    def cache_scales(self, count: int, axis: str) -> nnx.Param[jax.Array] | None:
        """Factors `[count]` of what a quantised cache holds along an axis; None: it is not quantised."""
        if self.cache_dtype not in QUANTISED_CACHES:
            return None
        return self.parameter((count,), (axis,), dtype=jnp.float32)

    def parameter(self, shape: tuple[int, ...], axes: tuple[str, ...], *, dtype: Any = None) -> nnx.Param[jax.Array]:
        """A parameter with a logical name per axis; the layout says what the names mean."""
        if len(shape) != len(axes):
            raise ValueError(f"a parameter of shape {shape} needs {len(shape)} axis names, got {axes}")
        return nnx.Param(jnp.zeros(shape, self.dtype if dtype is None else dtype), axes=axes)
