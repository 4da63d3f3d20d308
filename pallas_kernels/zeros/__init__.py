"""An array of zeros: the contract and its backends."""

from __future__ import annotations

import jax
from jax.typing import DTypeLike

from pallas_kernels.dispatch import AUTO, Op

OP = Op(
    "zeros",
    backends={name: f"{__name__}.{name}" for name in ("reference", "native")},
    preferred={"cpu": ("native", "reference")},
    portable="reference",
)


def zeros(shape: tuple[int, ...], dtype: DTypeLike, *, backend: str = AUTO, platform: str | None = None) -> jax.Array:
    """Zeros, of which a backend may leave it to the system to write them when they are first asked for.

    Args:
        shape: of the array.
        dtype: of its numbers.
        backend: `auto`, or a name from the table; a named backend runs or raises.
        platform: of the compile target, for `auto`.

    Raises:
        ValueError: an unknown backend.
        KernelUnsupported: the named backend cannot do this case.
    """
    made: jax.Array = OP.run(backend, platform, shape, dtype)
    return made
