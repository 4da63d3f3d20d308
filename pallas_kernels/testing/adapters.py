"""The cases of `adapter_product`."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.adapter_product import AdapterRows
from pallas_kernels.testing.arrays import array


@dataclass(frozen=True, kw_only=True)
class AdapterCase:
    """One call of `adapter_product`: the adapter of each row, from 0 on; `None` has none."""

    name: str
    reason: str
    rows: tuple[int | None, ...]
    count: int = 3
    rank: int = 8
    inputs: int = 64
    outputs: int = 48
    dtype: str = "float32"
    base: str = "float32"
    by_rank: bool = False

    def __str__(self) -> str:
        return f"{self.name}, {'by rank' if self.by_rank else 'by inputs'}"

    @property
    def options(self) -> dict[str, bool]:
        """Beside the arrays."""
        return {"by_rank": self.by_rank}

    def arguments(self) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array, AdapterRows]:
        """`base`, `x`, `inward`, `outward` and `rows`, the same at every call."""
        generator = np.random.default_rng(len(self.name))
        x = generator.normal(size=(len(self.rows), self.inputs))
        base = generator.normal(size=(len(self.rows), self.outputs))
        inward = generator.normal(size=(self.count, self.inputs, self.rank))
        if self.by_rank:
            inward = inward.swapaxes(1, 2)
        outward = generator.normal(size=(self.count, self.rank, self.outputs))
        return (
            array(base, self.base),
            array(x, self.base),
            array(inward, self.dtype),
            array(outward, self.dtype),
            adapter_rows(self.rows, self.count),
        )


def adapter_rows(adapters: tuple[int | None, ...], count: int) -> AdapterRows:
    """What the op is told of rows with these adapters."""
    numbers = np.array([count if adapter is None else adapter for adapter in adapters])
    order = np.argsort(numbers, kind="stable")
    sizes = np.bincount(numbers, minlength=count + 1)[:count]
    return AdapterRows(*(array(numbers, jnp.int32) for numbers in (order, np.argsort(order), sizes)))


_MIXED = (2, None, 0, 0, None, 2, 1, None, 0)
ADAPTER_CASES = tuple(
    AdapterCase(**case, by_rank=by_rank)  # type: ignore[arg-type]
    for by_rank in (False, True)
    for case in (
        {"name": "mixed", "reason": "rows of several adapters and of none, in any order", "rows": _MIXED},
        {"name": "one row", "reason": "one sequence decodes", "rows": (1,)},
        {"name": "nobody", "reason": "what programs that warm up are given", "rows": (None, None, None)},
        {"name": "one adapter", "reason": "a prompt", "rows": (1,) * 40},
        {"name": "many rows", "reason": "more than a block of a group", "rows": (*(0,) * 37, None, *(2,) * 21)},
        {
            "name": "bfloat16",
            "reason": "as accelerators have it",
            "rows": _MIXED,
            "dtype": "bfloat16",
            "base": "bfloat16",
        },
        {"name": "bfloat16 beside float32", "reason": "as a CPU has it", "rows": _MIXED, "dtype": "bfloat16"},
        {"name": "odd extents", "reason": "no tile is filled", "rows": _MIXED, "inputs": 99, "outputs": 33},
        {
            "name": "many adapters",
            "reason": "more than one tile of ranks",
            "rows": (0, 19, None, 7, 19, 3),
            "count": 20,
            "rank": 16,
        },
    )
)
