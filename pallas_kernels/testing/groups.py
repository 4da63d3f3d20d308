"""The cases of `grouped_matmul`."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.testing.arrays import array


@dataclass(frozen=True, kw_only=True)
class GroupCase:
    """One call of `grouped_matmul`. `behind` rows belong to no group, and are not numbers."""

    name: str
    reason: str
    sizes: tuple[int, ...]
    behind: int = 0
    inputs: int = 64
    outputs: int = 48
    weights: str = "float32"
    x: str = "float32"

    def __str__(self) -> str:
        return self.name

    def arguments(self) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array | None]:
        """`x`, `weights`, `sizes` and `scales`, the same at every call."""
        generator = np.random.default_rng(len(self.name))
        x = generator.normal(size=(sum(self.sizes) + self.behind, self.inputs))
        x[sum(self.sizes) :] = np.nan
        shape = (len(self.sizes), self.inputs, self.outputs)
        given, sizes = array(x, self.x), array(self.sizes, jnp.int32)
        if self.weights != "int8":
            return given, array(generator.normal(size=shape), self.weights), sizes, None
        integers, scales = generator.integers(-127, 128, size=shape), generator.uniform(0.001, 0.1, size=shape[::2])
        return given, array(integers, jnp.int8), sizes, array(scales, jnp.float32)


GROUP_CASES = (
    GroupCase(name="a row each", reason="decoding: few rows, many experts", sizes=(1, 1, 1, 1)),
    GroupCase(name="one row of many groups", reason="one token of one sequence", sizes=(0, 0, 1, 0, 0, 0)),
    GroupCase(
        name="empty groups", reason="experts that no token chose, first, last and in between", sizes=(0, 5, 0, 0, 7, 0)
    ),
    GroupCase(name="padding behind", reason="rows of padding lie behind the last group", sizes=(3, 0, 9), behind=20),
    GroupCase(name="nothing but padding", reason="a device none of whose experts was chosen", sizes=(0, 0), behind=6),
    GroupCase(name="whole blocks", reason="16 and 32 rows fill blocks of the CPU's", sizes=(16, 32, 16)),
    GroupCase(name="a row more than a block", reason="the next block is nearly empty", sizes=(17, 1, 33), behind=1),
    GroupCase(name="one group", reason="as matmul", sizes=(40,)),
    GroupCase(name="odd extents", reason="no tile is filled", sizes=(5, 8, 2), inputs=99, outputs=33),
    GroupCase(name="bfloat16", reason="as loaded", sizes=(4, 0, 21, 2), behind=5, weights="bfloat16", x="bfloat16"),
    GroupCase(name="x is rounded", reason="to the weights' type", sizes=(4, 7), weights="bfloat16"),
    GroupCase(name="int8", reason="integers, and scales of each group", sizes=(4, 0, 21, 2), behind=5, weights="int8"),
    GroupCase(
        name="int8, odd extents", reason="no tile is filled", sizes=(3, 30), inputs=99, outputs=33, weights="int8"
    ),
)
