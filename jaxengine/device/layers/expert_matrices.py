"""A matrix of each expert, and the products of sorted rows with them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from jaxengine.device.layers.adapters import AdapterSpec, ExpertAdapterSlots
from jaxengine.device.layers.context import ModelContext
from jaxengine.device.layers.schemes import WEIGHT, Scheme
from pallas_kernels import take_rows


class ExpertMatrices(nnx.Module):
    """A matrix `[in, out]` of each expert, kept and multiplied as a scheme says; a bias."""

    adapters: ExpertAdapterSlots | None = None

    def __init__(
        self, count: int, in_size: int, out_size: int, *, axes: tuple[str, str], bias: bool, context: ModelContext
    ) -> None:
        """`axes` are the logical names of (in, out)."""
        self.context = context
        self.shape, self.matrix_axes = (count, in_size, out_size), ("experts", *axes)
        self.biased = bias
        self.input_axis = axes[0]
        if context.scheme is not None:
            self.keep_by(context.scheme)

    def keep_by(self, scheme: Scheme) -> None:
        """Make what `scheme` keeps of them: once, and where the context leaves open which it is."""
        self.scheme = scheme
        parameters = dict(scheme.group_parameters(self.shape, self.matrix_axes, self.context))
        if self.biased:
            count, _, out_size = self.shape
            parameters["bias"] = self.context.parameter((count, out_size), ("experts", self.matrix_axes[2]))
        self.names = tuple(parameters)
        self.axes = tuple(parameter.get_metadata()["axes"] for parameter in parameters.values())
        for name, parameter in parameters.items():
            setattr(self, name, parameter)

    def adapt_by(self, spec: AdapterSpec) -> None:
        """Have slots of adapters beside them."""
        self.adapters = ExpertAdapterSlots(self.shape, self.matrix_axes, spec, self.context)

    @property
    def plain(self) -> bool:
        """Whether all that is kept is the matrices themselves."""
        return self.names == (WEIGHT,)

    def arrays(self) -> tuple[jax.Array, ...]:
        """All that is kept, as `multiply` takes it."""
        return tuple(getattr(self, name)[...] for name in self.names)

    def multiply(
        self,
        x: jax.Array,
        sizes: jax.Array,
        experts: jax.Array,
        arrays: tuple[jax.Array, ...],
        *,
        rows: jax.Array | None = None,
    ) -> jax.Array:
        """Sorted rows of `x [N, in]`, `sizes[e]` of them for each expert of this device -> `[M, out]` in the activation dtype.

        `rows [M]` says which they are; None: all, as they are. `experts [M]` are the experts of these rows.
        """
        parameters = dict(zip(self.names, arrays, strict=True))
        bias = parameters.pop("bias", None)
        across = self.context.layout.across(self.input_axis)
        y = self.scheme.multiply_groups(x, parameters, sizes, self.context, rows=rows, across=across)
        if bias is None:
            return y
        for axis in across:  # devices that have a part of a product each add their sums
            bias = jnp.where(jax.lax.axis_index(axis) == 0, bias, jnp.zeros((), bias.dtype))
        biases = take_rows(bias, experts, sizes.sum(), finite=True, platform=self.context.platform)
        return y + biases.astype(y.dtype)
