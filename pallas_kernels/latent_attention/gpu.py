"""Latent attention for NVIDIA GPUs from Ampere on, in Pallas through Triton: which cases there are, and how they are laid out.

Agrees on an H100; compiled for A100 and H200; how fast it is nobody has measured.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
from jax.typing import DTypeLike

from pallas_kernels.gpu.attention.pages import compute_dtype, converts, refused
from pallas_kernels.gpu.attention.rows import Kernel, attend_rows
from pallas_kernels.gpu.device import AMPERE, gpu_refused, interpreted
from pallas_kernels.latent_attention.gpu_blocks import MAX_VALUE_SIZE, choose_blocks
from pallas_kernels.latent_attention.gpu_kernel import Settings, kernel


def supports(q: Any, pages: Any, *args: Any, value_size: int, kv_dtype: DTypeLike, **options: Any) -> str | None:
    """None, or why not."""
    unreadable = refused(pages, kv_dtype)
    if unreadable is not None:
        return unreadable
    for name, size in (("values", value_size), ("keys beside them", q.shape[2] - value_size)):
        if size > MAX_VALUE_SIZE:
            return f"{name} of {size} numbers; a program holds up to {MAX_VALUE_SIZE}"
    return gpu_refused(AMPERE)


def latent_attention(
    q: jax.Array,
    pages: jax.Array,
    page_table: jax.Array,
    offsets: jax.Array,
    starts: jax.Array,
    *,
    scale: float,
    value_size: int,
    kv_dtype: DTypeLike,
) -> jax.Array:
    """See the op's contract. Products take the cache's dtype, bfloat16 for a quantised one, and add up in float32."""
    places, heads, size = q.shape
    page_tokens = pages.shape[2]
    compute = compute_dtype(kv_dtype)
    cut = choose_blocks(
        rows=starts.shape[0],
        places=places,
        heads=heads,
        sizes=(value_size, size - value_size),
        itemsize=pages.dtype.itemsize,
        most_tokens=page_table.shape[1] * page_tokens,
        interpreted=interpreted(),
    )

    def make_kernel(sizes: tuple[int, ...], block_tokens: int, shared: bool) -> Kernel:
        settings = Settings(
            sizes=sizes,
            block_tokens=block_tokens,
            group=cut.heads,
            widths=cut.widths,
            value_size=value_size,
            page_tokens=page_tokens,
            compute=compute,
            converts=converts(kv_dtype),
            scale=scale,
        )
        return functools.partial(kernel, settings=settings, shared=shared)

    return attend_rows(
        make_kernel,
        cut.rows,
        [q, pages.reshape(-1, pages.shape[3]), page_table],
        offsets,
        starts,
        result=jax.ShapeDtypeStruct((places, heads, value_size), q.dtype),
        tiles_of_heads=cut.tiles,
        window=None,
        name="latent_attention",
    )
