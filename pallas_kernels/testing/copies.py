"""The cases of `copy_pages`."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np


@dataclass(frozen=True, kw_only=True)
class CopyCase:
    """One call of `copy_pages` on a cache of 8 pages."""

    name: str
    reason: str
    sources: tuple[int, ...]
    destinations: tuple[int, ...]
    dtype: str = "float32"

    def __str__(self) -> str:
        return self.name

    def inputs(self) -> tuple[jax.Array, jax.Array, jax.Array]:
        """`kv_pages`, `sources` and `destinations`, the same at every call."""
        values = np.random.default_rng(0).integers(0, 2**15, size=(8, 4, 6, 16))
        return (
            jnp.asarray(values).astype(self.dtype),
            jnp.asarray(self.sources, jnp.int32),
            jnp.asarray(self.destinations, jnp.int32),
        )


COPY_CASES = (
    CopyCase(name="one", reason="a sequence forks", sources=(3,), destinations=(5,)),
    CopyCase(name="fan-out", reason="one page becomes many (n > 1)", sources=(2, 2, 2), destinations=(4, 5, 6)),
    CopyCase(name="padding", reason="(0, 0) pairs do nothing", sources=(1, 0, 0), destinations=(7, 0, 0)),
    CopyCase(name="chain", reason="a page is read before it is written", sources=(1, 2, 3), destinations=(2, 3, 4)),
    CopyCase(name="swap", reason="all reads come before all writes", sources=(1, 2), destinations=(2, 1)),
    CopyCase(name="bits", reason="pages are moved as they are", sources=(3,), destinations=(5,), dtype="uint16"),
    CopyCase(name="bfloat16", reason="pages are moved as they are", sources=(3,), destinations=(5,), dtype="bfloat16"),
)
