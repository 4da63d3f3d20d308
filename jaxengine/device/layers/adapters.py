"""Low-rank adapters beside a matrix: the numbers of several lie in slots, and each token goes through its sequence's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxengine.device.layers.context import ModelContext
from jaxengine.device.layers.sharding import Layout
from pallas_kernels import AdapterRows, adapter_product

RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""Of slots: as vLLM's, but for 1, as a row of fewer numbers is none to vectors."""
WIDE = 256
"""So many numbers are what a TPU's matrix unit works on at once: while all adapters' ranks are no more they are one product."""


def slot_rank(most: int) -> int:
    """The least rank of slots that hold adapters of ranks up to `most`.

    Raises:
        ValueError: there is none so large.
    """
    for rank in RANKS:
        if rank >= most:
            return rank
    raise ValueError(f"adapters may have a rank of {RANKS[-1]} at most, got {most}")


@dataclass(frozen=True, kw_only=True)
class AdapterSpec:
    """`slots` of adapters of a rank up to `rank`, their numbers in `dtype`, None being the model's. A value."""

    slots: int
    rank: int
    dtype: Any = None

    def by_rank(self, layout: Layout) -> bool:
        """Whether the first matrices of all slots lie beside each other, to be multiplied at once (`adapter_product`).

        Of several devices they do whatever they are: XLA cuts no grouped product.
        """
        return layout.parallel or self.slots * self.rank <= WIDE

    def dtype_of(self, context: ModelContext) -> Any:
        """Of the numbers."""
        return jnp.dtype(context.dtype if self.dtype is None else self.dtype)


class AdapterNumbers(nnx.Variable[jax.Array]):
    """What slots hold. No checkpoint has it, and steps without adapters are not given it."""


class AdapterSlots(nnx.Module):
    """The adapters of a matrix `[out, in]`: `inward` and `outward` as `adapter_product` has them."""

    def __init__(self, shape: tuple[int, int], axes: tuple[str, str], spec: AdapterSpec, context: ModelContext) -> None:
        """`axes` are the logical names of (out, in)."""
        outputs, inputs = shape
        self.context = context
        self.by_rank = spec.by_rank(context.layout)
        dtype = spec.dtype_of(context)
        first: tuple[tuple[int, ...], tuple[str, ...]] = (inputs, spec.rank), (axes[1], "ranks")
        if self.by_rank:
            first = first[0][::-1], first[1][::-1]
        self.inward = _numbers((spec.slots, *first[0]), ("adapters", *first[1]), dtype)
        self.outward = _numbers((spec.slots, spec.rank, outputs), ("adapters", "ranks", axes[0]), dtype)

    @property
    def beside(self) -> jax.Array | None:
        """The first matrices of all, `[S * R, in]`, where they lie beside each other."""
        return self.inward[...].reshape(-1, self.inward[...].shape[-1]) if self.by_rank else None

    def add(self, base: jax.Array, x: jax.Array, rows: AdapterRows, *, low: jax.Array | None = None) -> jax.Array:
        """Products `base [N, out]` of the matrix and `x [N, in]`, and those of the rows' adapters.

        `low [N, S * R]` are those of `x` and `beside`, where it has been multiplied with them.
        """
        context = self.context
        return adapter_product(
            base,
            x,
            self.inward[...],
            self.outward[...],
            rows,
            by_rank=self.by_rank,
            low=low,
            precision=context.precision,
            backend=_backend(context),
            platform=context.platform,
        )


class TokenAdapterSlots(nnx.Module):
    """The same of a table `[V, E]` in which tokens are looked up: `inward [S, V, R]` has a row for each token of an adapter."""

    def __init__(self, shape: tuple[int, int], axes: tuple[str, str], spec: AdapterSpec, context: ModelContext) -> None:
        """`shape` and `axes` are those of (V, E)."""
        vocabulary, width = shape
        self.context = context
        self.by_rank = spec.by_rank(context.layout)
        dtype = spec.dtype_of(context)
        self.inward = _numbers((spec.slots, vocabulary, spec.rank), ("adapters", axes[0], "ranks"), dtype)
        self.outward = _numbers((spec.slots, spec.rank, width), ("adapters", "ranks", axes[1]), dtype)

    def add(self, base: jax.Array, found: jax.Array, rows: AdapterRows) -> jax.Array:
        """Rows `base [N, E]` of the table, and what the rows' adapters have for their tokens, of `found [N, R]` of `inward`."""
        slots, rank, _ = self.outward[...].shape
        context = self.context
        return adapter_product(
            base,
            found,
            jnp.broadcast_to(jnp.eye(rank, dtype=found.dtype), (slots, rank, rank)),
            self.outward[...],
            rows,
            by_rank=self.by_rank,
            low=jnp.tile(found, (1, slots)) if self.by_rank else None,
            precision=context.precision,
            backend=_backend(context),
            platform=context.platform,
        )


class ExpertAdapterSlots(nnx.Module):
    """The same of a matrix `[in, out]` of each of `count` experts: `inward [S, count, in, R]`, `outward [S, count, R, out]`.

    Each row is multiplied by its own, by expert and adapter: an expert of an adapter is a group of `adapter_product`.
    """

    def __init__(
        self, shape: tuple[int, int, int], axes: tuple[str, str, str], spec: AdapterSpec, context: ModelContext
    ) -> None:
        """`shape` and `axes` are those of (count, in, out)."""
        count, inputs, outputs = shape
        self.context = context
        dtype = spec.dtype_of(context)
        of_inputs, of_outputs = ("adapters", *axes[:2], "ranks"), ("adapters", axes[0], "ranks", axes[2])
        self.inward = _numbers((spec.slots, count, inputs, spec.rank), of_inputs, dtype)
        self.outward = _numbers((spec.slots, count, spec.rank, outputs), of_outputs, dtype)

    @property
    def axes(self) -> tuple[tuple[str, ...], ...]:
        """Of its arrays."""
        return tuple(array.get_metadata()["axes"] for array in (self.inward, self.outward))

    def arrays(self) -> tuple[jax.Array, jax.Array]:
        """Both."""
        return self.inward[...], self.outward[...]

    def add(self, base: jax.Array, x: jax.Array, rows: AdapterRows, arrays: tuple[jax.Array, jax.Array]) -> jax.Array:
        """Products `base [M, out]` of `x [M, in]`, and those of the rows' adapters; `arrays` are what a device has of them."""
        inward, outward = (array.reshape(-1, *array.shape[2:]) for array in arrays)
        context = self.context
        return adapter_product(
            base, x, inward, outward, rows, by_rank=False, precision=context.precision, platform=context.platform
        )


def rows_by_group(group: jax.Array, count: int) -> AdapterRows:
    """What `adapter_product` is told of rows that go through these of `count` groups, `group int32 [M]`; `count` is none."""
    order = jnp.argsort(group, stable=True).astype(jnp.int32)
    bounds = jnp.searchsorted(group[order], jnp.arange(count + 1, dtype=jnp.int32)).astype(jnp.int32)
    return AdapterRows(order, jnp.argsort(order).astype(jnp.int32), jnp.diff(bounds))


def _backend(context: ModelContext) -> str:
    return "wide" if context.layout.parallel and context.platform == "cpu" else "auto"


def _numbers(shape: tuple[int, ...], axes: tuple[str, ...], dtype: Any) -> AdapterNumbers:
    return AdapterNumbers(jnp.zeros(shape, dtype), axes=axes)
