"""The cases of `write_kv`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.testing.arrays import array
from pallas_kernels.testing.caches import scales, stored


@dataclass(frozen=True, kw_only=True)
class WriteCase:
    """One call of `write_kv`: tokens go to `slots` of a cache of 6 pages."""

    name: str
    reason: str
    slots: tuple[int, ...]
    kv_heads: int = 2
    head_size: int = 16
    page_tokens: int = 8
    dtype: str = "float32"
    kv_dtype: str = "float32"
    bits: bool = False

    def __str__(self) -> str:
        return self.name

    @property
    def options(self) -> dict[str, Any]:
        """The keyword arguments of `write_kv`, its backend excepted."""
        return {"kv_scales": scales(self), "kv_dtype": jnp.dtype(self.kv_dtype)}

    def inputs(self, platform: str = "cpu") -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
        """`kv_pages`, `k`, `v` and `slots`, the same at every call; pages have the shape that they have on `platform`."""
        rng = np.random.default_rng(0)
        pages = rng.normal(size=(6, self.page_tokens, 2 * self.kv_heads, self.head_size))
        kv_pages = stored(pages, self, platform)
        k, v = (array(rng.normal(size=(len(self.slots), self.kv_heads, self.head_size)), self.dtype) for _ in range(2))
        return kv_pages, k, v, array(self.slots, jnp.int32)


WRITE_CASES = (
    WriteCase(name="one-token", reason="a decode step of one row", slots=(13,)),
    WriteCase(name="scattered", reason="every row of a decode step writes to a page of its own", slots=(9, 40, 16, 31)),
    WriteCase(name="run-over-pages", reason="a prefill row that crosses page edges", slots=tuple(range(12, 35))),
    WriteCase(name="padding", reason="padding shares a slot of the sink", slots=(0, 17, 0, 0, 18)),
    WriteCase(name="last-slot", reason="the pool's last place", slots=(47,)),
    WriteCase(
        name="runs-and-padding",
        reason="a prompt's tokens follow each other, with a page's edge and the bucket's padding among them",
        slots=(*range(9, 45), *(0,) * 10),
    ),
    WriteCase(name="head-size-64", reason="keys and values share a TPU's vector", slots=(20, 9), head_size=64),
    WriteCase(name="head-size-80", reason="no multiple of a vector", slots=(20, 21), head_size=80),
    *(
        WriteCase(
            name=f"{dtype}-{kv_dtype}{'-bits' if bits else ''}",
            reason="values are rounded to the cache's type",
            slots=(8, 30, 0),
            dtype=dtype,
            kv_dtype=kv_dtype,
            bits=bits,
        )
        for dtype, kv_dtype, bits in (
            ("bfloat16", "bfloat16", False),
            ("bfloat16", "bfloat16", True),
            ("float32", "bfloat16", True),
            ("float16", "float16", True),
            ("float32", "float16", True),
            ("bfloat16", "int8", False),
            ("float32", "float8_e4m3fn", False),
            ("bfloat16", "float8_e4m3fn", True),
            ("float32", "float8_e5m2", False),
            ("float16", "float8_e5m2", True),
        )
    ),
    WriteCase(
        name="int8-runs",
        reason="scales of three heads, in whole runs",
        slots=tuple(range(8, 44)),
        kv_heads=3,
        kv_dtype="int8",
    ),
)
