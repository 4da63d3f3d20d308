"""A product in int8 of which each device has a part: what devices send each other, so that all have the bits of one device.

Every device has some of the outputs, with all inputs: sums of integers are never cut. Rows are rounded where they are, over the
scale of the whole row, and then sent, a byte for each number: of N rows of I inputs and O outputs on D devices each sends
(D - 1) / D of N I bytes, and of 2 N O / D where results in bfloat16 go to the devices of their rows.

With inputs cut, sums of integers would be added as int32, all-reduced: TPUs' compiler has no reduce-scatter of integers (libtpu
0.0.42.1). In bfloat16 sums depend on how many devices there are and in which order they add, against the contract. On four
devices, MB that each sends for 2,048 rows of a layer of Llama-3.1-8B:

                          q, k, v      o    gate, up   down
    this                      6.3    9.4         6.3   25.2
    int8 as XLA cuts it      12.6   50.3        12.6   50.3
    bfloat16                 12.6   12.6        12.6   12.6
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax


@dataclass(frozen=True, slots=True)
class Parts:
    """By which axes of a mesh `x` is cut inside `shard_map`, by rows or by inputs; a device multiplies all of it."""

    rows: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.rows and self.inputs:
            raise ValueError(f"x may be cut by rows or by inputs, got {self}")

    @property
    def row_count(self) -> int:
        """Of parts of rows."""
        return jax.lax.axis_size(self.rows) if self.rows else 1

    @property
    def input_count(self) -> int:
        """Of parts of inputs."""
        return jax.lax.axis_size(self.inputs) if self.inputs else 1

    def largest(self, magnitudes: jax.Array) -> jax.Array:
        """Of whole rows, `[N, ..., 1]`, from those of this device's inputs."""
        return _narrowly(lambda own: jax.lax.pmax(own, self.inputs), magnitudes) if self.inputs else magnitudes

    def gather(self, values: jax.Array, row_scales: jax.Array) -> tuple[jax.Array, jax.Array]:
        """int8 `values [N, ..., I]` of all rows and inputs, and the scales of all rows, `[N, ..., 1]`."""
        if self.inputs:
            values = jax.lax.all_gather(values, self.inputs, axis=values.ndim - 1, tiled=True)
        if self.rows:
            values = jax.lax.all_gather(values, self.rows, tiled=True)
            row_scales = _narrowly(lambda own: jax.lax.all_gather(own, self.rows, tiled=True), row_scales)
        return values, row_scales


def _narrowly(send: Callable[[jax.Array], jax.Array], column: jax.Array) -> jax.Array:
    """Send `column [N, ..., 1]` without its last axis, which a TPU pads to 128: its compiler is kept from putting it back."""
    barrier = jax.lax.optimization_barrier
    sent: jax.Array = barrier(send(barrier(column[..., 0])))
    return sent[..., None]


WHOLE = Parts()
"""x is whole on each device."""
