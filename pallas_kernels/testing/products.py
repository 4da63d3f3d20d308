"""The cases of `matmul`."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.testing.arrays import array


@dataclass(frozen=True, kw_only=True)
class ProductCase:
    """One call of `matmul`. `rows` are all axes of `x` but the last; `weight` is the matrix's type, int8 with scales."""

    name: str
    reason: str
    rows: tuple[int, ...] = (5,)
    inputs: int = 64
    outputs: int = 48
    weight: str
    x: str = "float32"
    spread: float = 1.0
    outliers: bool = False
    zeros: bool = False
    extreme: bool = False

    def __str__(self) -> str:
        return self.name

    def arguments(self) -> tuple[jax.Array, jax.Array, jax.Array | None]:
        """`x`, `weight` and `scales`, the same at every call."""
        generator = np.random.default_rng(len(self.name))
        x = generator.normal(size=(*self.rows, self.inputs)) * self.spread
        if self.outliers:
            x[..., 3] *= 1000
        if self.zeros:
            x[::2] = 0
        if self.extreme:
            x[:] = 1.0
        given = array(x, self.x)
        if self.weight != "int8":
            return given, array(generator.normal(size=(self.outputs, self.inputs)), self.weight), None
        low = 127 if self.extreme else -127
        integers = generator.integers(low, 128, size=(self.outputs, self.inputs))
        scales = generator.uniform(0.001, 0.1, size=self.outputs)
        scales[0] = 0.0
        return given, array(integers, jnp.int8), array(scales, jnp.float32)


PRODUCT_CASES = (
    ProductCase(name="float32", reason="as loaded", weight="float32"),
    ProductCase(name="bfloat16", reason="x is rounded to the weight's type", weight="bfloat16"),
    ProductCase(
        name="bfloat16, odd extents", reason="no tile is filled", weight="bfloat16", rows=(7,), inputs=99, outputs=33
    ),
    ProductCase(
        name="bfloat16, long", reason="blocks of inputs, and a rest", weight="bfloat16", rows=(13,), inputs=1_100
    ),
    ProductCase(
        name="float32, odd extents", reason="no tile is filled", weight="float32", rows=(7,), inputs=99, outputs=33
    ),
    ProductCase(name="float16", reason="a GPU's other type", weight="float16", x="float16"),
    ProductCase(name="one row", reason="decoding one sequence", weight="float32", rows=(1,)),
    ProductCase(name="one row of bfloat16", reason="decoding one sequence", weight="bfloat16", rows=(1,)),
    ProductCase(name="many rows", reason="a prompt", weight="bfloat16", rows=(600,), outputs=130),
    ProductCase(name="rows of heads", reason="norms of queries are means of heads", weight="float32", rows=(1, 3)),
    ProductCase(name="int8", reason="activations and weights as integers", weight="int8"),
    ProductCase(name="int8, bfloat16 activations", reason="as on an accelerator", weight="int8", x="bfloat16"),
    ProductCase(name="int8, one row", reason="decoding one sequence", weight="int8", rows=(1,)),
    ProductCase(name="int8, many rows", reason="a prompt", weight="int8", rows=(300,), outputs=130),
    ProductCase(name="int8, three axes", reason="rows are rows whatever their axes", weight="int8", rows=(2, 3)),
    ProductCase(name="int8, odd extents", reason="no tile is filled", weight="int8", rows=(7,), inputs=99, outputs=33),
    ProductCase(name="int8, rows of zeros", reason="padding has no magnitude to divide by", weight="int8", zeros=True),
    ProductCase(name="int8, outliers", reason="one channel takes the whole scale", weight="int8", outliers=True),
    ProductCase(name="int8, tiny activations", reason="scales near float32's least", weight="int8", spread=1e-30),
    ProductCase(
        name="int8, largest sums", reason="14,336 products of 127 x 127", weight="int8", inputs=14_336, extreme=True
    ),
)
