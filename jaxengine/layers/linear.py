"""Matrix products with weights in the checkpoint's own `[out, in]` layout."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from jaxengine.layers.context import ModelContext

MIN_CPU_ROWS = 2
ONES_COLUMNS = 8


def project(x: jax.Array, weight: jax.Array, *, context: ModelContext) -> jax.Array:
    """`x [..., in]`, `weight [out, in]` -> float32 `[..., out]`: operands in the weight's dtype, sums in float32."""
    rows = x.shape[0]
    x = x.astype(weight.dtype)
    padding = _padding_rows(rows, context)
    if padding:
        x = jnp.pad(x, ((0, padding), *((0, 0),) * (x.ndim - 1)))
    product = jax.lax.dot_general(
        x,
        weight,
        (((x.ndim - 1,), (1,)), ((), ())),
        precision=context.precision,
        preferred_element_type=jnp.float32,
    )
    return product[:rows] if padding else product


def mean_last(x: jax.Array, *, context: ModelContext) -> jax.Array:
    """The mean of float32 `x [..., E]` over its last axis, `[..., 1]`.

    XLA:CPU sums over an axis in an order that depends on the number of rows, so there the sum is a product with ones, which
    does not. The barrier keeps XLA from turning the ones round: that product does (jax 0.12, fewer than 64 columns).
    """
    if context.platform != "cpu":
        return jnp.mean(x, axis=-1, keepdims=True)
    ones = jax.lax.optimization_barrier(jnp.ones((ONES_COLUMNS, x.shape[-1]), x.dtype))
    return project(x, ones, context=context)[..., :1] / x.shape[-1]


def inverse_root(x: jax.Array, *, context: ModelContext) -> jax.Array:
    """`1 / sqrt(x)` of float32 numbers.

    XLA:CPU's rsqrt differs in the last bit with the code around it, which depends on the number of rows (jax 0.12). A root and
    a division are rounded exactly; the barrier keeps XLA from making an rsqrt of them.
    """
    if context.platform != "cpu":
        return jax.lax.rsqrt(x)
    return 1.0 / jax.lax.optimization_barrier(jnp.sqrt(x))


def _padding_rows(rows: int, context: ModelContext) -> int:
    """Rows to add so that XLA:CPU never multiplies a single row.

    From two rows on, a row's product is the same to the last bit for any number of rows beside it, which keeps results
    independent of the batch; a single row is summed in another order. For bfloat16 weights it is 8 to 38 times slower too
    (jax 0.10.2 and 0.12).
    """
    return max(0, MIN_CPU_ROWS - rows) if context.platform == "cpu" else 0


class Linear(nnx.Module):
    """`x [N, in]` -> `[N, out]` in the activation dtype."""

    def __init__(
        self, in_size: int, out_size: int, *, axes: tuple[str, str], bias: bool, context: ModelContext
    ) -> None:
        """`axes` are the logical names of (out, in)."""
        self.context = context
        self.weight = context.parameter((out_size, in_size), axes)
        self.bias = context.parameter((out_size,), axes[:1]) if bias else None

    def __call__(self, x: jax.Array) -> jax.Array:
        y = project(x, self.weight[...], context=self.context)
        if self.bias is not None:
            y = y + self.bias[...].astype(y.dtype)
        return y.astype(self.context.activation_dtype)
