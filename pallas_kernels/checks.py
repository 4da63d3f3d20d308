"""Argument checks of the ops: a message names the axis at fault, in the letters of the contract."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp


def check_rank(**arrays: tuple[Any, str]) -> None:
    """Each array must have as many axes as its letters say: `check_rank(q=(q, "N heads H"))`."""
    for name, (array, letters) in arrays.items():
        if len(array.shape) != len(letters.split()):
            raise ValueError(f"{name} must have axes [{', '.join(letters.split())}], got shape {list(array.shape)}")


def check_equal(axis: str, **extents: int) -> None:
    """The same axis of several arguments must have one extent: `check_equal("H (head size)", q=64, kv_pages=128)`."""
    if len(set(extents.values())) > 1:
        found = ", ".join(f"{size} in {name}" for name, size in extents.items())
        raise ValueError(f"axis {axis} differs: {found}")


def check_int32(**arrays: Any) -> None:
    """Positions, places, ids and slots are int32: a wider type would double what kernels prefetch."""
    for name, array in arrays.items():
        if jnp.dtype(array.dtype) != jnp.int32:
            raise ValueError(f"{name} must be int32, got {array.dtype}")


def check_latent_rows(q: Any, pages: Any, page_table: Any, offsets: Any, starts: Any, *, value_size: int) -> None:
    """Rows of queries over pages of latent vectors, as `latent_attention` takes them.

    Raises:
        ValueError: they do not fit together, naming the axis.
    """
    check_rank(q=(q, "N heads D"), pages=(pages, "pages 1 T L"))
    check_rank(page_table=(page_table, "B P"), offsets=(offsets, "B+1"), starts=(starts, "B"))
    check_int32(page_table=page_table, offsets=offsets, starts=starts)
    check_equal("B (rows)", page_table=page_table.shape[0], starts=starts.shape[0])
    check_equal("B+1 (rows and one)", page_table=page_table.shape[0] + 1, offsets=offsets.shape[0])
    check_equal("1 (vectors of a token)", pages=pages.shape[1], contract=1)
    if q.shape[2] > pages.shape[3]:
        raise ValueError(f"axis L of pages is {pages.shape[3]}: vectors of {q.shape[2]} numbers do not fit")
    if not 0 < value_size <= q.shape[2]:
        raise ValueError(f"value_size is {value_size}; it must be from 1 to D, {q.shape[2]}")
