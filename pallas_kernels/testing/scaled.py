"""The cases of `scaled_matmul` and `grouped_scaled_matmul`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.testing.arrays import array

FLOAT8, FLOAT4, BYTES = "float8_e4m3fn", "float4_e2m1fn", "uint8"


@dataclass(frozen=True, kw_only=True)
class ScaledCase:
    """A call of either op: `rows` of one matrix, or `sizes` of the groups of rows, with `behind` rows of none behind them."""

    name: str
    reason: str
    weight: str = "int4"
    group: int = 16
    zeros: bool = False
    rows: tuple[int, ...] = (5,)
    sizes: tuple[int, ...] = (3, 0, 18, 1)
    behind: int = 4
    inputs: int = 64
    outputs: int = 48
    compute: str = "float32"
    scale: str = "float32"
    """Of zeros, too; beside scales of uint8 they are int8, and inputs are as much smaller as these are larger."""

    def __str__(self) -> str:
        return self.name

    def options(self) -> dict[str, Any]:
        """What both ops take by name."""
        pairs = {"pairs": self.weight} if self.weight == FLOAT4 else {}
        return {"group": self.group, "compute": jnp.dtype(self.compute), **pairs}

    def arguments(self) -> tuple[jax.Array, ...]:
        """`x`, `weight`, `scales` and, if there are any, `zeros` of one matrix, the same at every call."""
        generator = np.random.default_rng(len(self.name))
        x = self._rows(generator, *self.rows)
        return array(x, jnp.float32), *self._matrices(generator, (self.outputs, self.inputs), (), paired=0)

    def grouped_arguments(self) -> tuple[jax.Array, ...]:
        """`x`, `weights`, `sizes`, `scales` and, if there are any, `zeros` of many."""
        generator = np.random.default_rng(len(self.name))
        x = self._rows(generator, sum(self.sizes) + self.behind)
        x[sum(self.sizes) :] = np.nan
        count = len(self.sizes)
        weights, *rest = self._matrices(generator, (count, self.inputs, self.outputs), (count,), paired=1)
        return array(x, jnp.float32), weights, array(self.sizes, jnp.int32), *rest

    def _rows(self, generator: np.random.Generator, *rows: int) -> Any:
        x = generator.normal(size=(*rows, self.inputs))
        return x / 2000 if self.scale == BYTES else x

    def _matrices(
        self, generator: np.random.Generator, shape: tuple[int, ...], leading: tuple[int, ...], *, paired: int
    ) -> tuple[jax.Array, ...]:
        groups = (*leading, -(-self.inputs // self.group), self.outputs)
        most = {"int4": 7, "int8": 127, FLOAT4: 7}.get(self.weight)
        numbers = generator.normal(size=shape) * 30 if most is None else generator.integers(-most - 1, most + 1, shape)
        least, most_scale = (1.0, 256.0) if self.scale == BYTES else (0.01, 0.1)
        scales = array(generator.uniform(least, most_scale, groups), self.scale)
        if self.weight not in ("int4", FLOAT4):
            kept = (array(np.asarray(numbers, np.float32), self.weight), scales)
        else:
            above = np.moveaxis(np.asarray(numbers + 8, np.uint8), paired, 0)
            kept = (array(np.moveaxis(above[::2] | above[1::2] << 4, 0, paired), jnp.uint8), scales)
        if not self.zeros:
            return kept
        limit = 8 if most is None else most + 1
        if self.scale == BYTES:
            return *kept, array(generator.integers(-128, 128, groups), jnp.int8)
        return *kept, array(generator.integers(-limit, limit + 1, groups), self.scale)


SCALED_CASES = (
    ScaledCase(name="int4", reason="symmetric groups"),
    ScaledCase(name="int4, zeros", reason="numbers that count from elsewhere", zeros=True),
    ScaledCase(name="int4, bfloat16", reason="as on an accelerator", zeros=True, compute="bfloat16", scale="bfloat16"),
    ScaledCase(name="int4, one group", reason="scales of channels are factors of the results", group=64),
    ScaledCase(name="int4, one group, zeros", reason="and zeros of the row's sum", group=64, zeros=True),
    ScaledCase(name="int4, a rest", reason="a last group of fewer inputs, no tile filled", inputs=98, outputs=34),
    ScaledCase(name="int8", reason="8 bits", weight="int8"),
    ScaledCase(name="int8, zeros", reason="zeros that int8 cannot hold", weight="int8", zeros=True),
    ScaledCase(name="float4", reason="blocks of MXFP4", weight=FLOAT4, group=32),
    ScaledCase(name="float8", reason="blocks of float8", weight=FLOAT8),
    ScaledCase(name="float8, one group", reason="channels of float8", weight=FLOAT8, group=64),
    ScaledCase(name="one row", reason="decoding one sequence", rows=(1,), sizes=(0, 1), behind=0),
    ScaledCase(name="many rows", reason="a prompt", rows=(300,), outputs=130, sizes=(140, 3, 129), compute="bfloat16"),
    ScaledCase(name="three axes", reason="rows are rows whatever their axes", rows=(2, 3)),
    ScaledCase(name="bytes", reason="scales and zeros of a byte each", zeros=True, scale=BYTES),
)
