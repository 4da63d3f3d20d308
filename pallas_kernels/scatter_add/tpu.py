"""A scatter into an array of a million elements or more, as many as are wanted cut out of it.

Into fewer XLA scatters in another way, which takes more memory and time (`benchmarks/sampler.py`).
"""

from __future__ import annotations

from typing import Any

import jax

from pallas_kernels.scatter_add import reference

LEAST_ELEMENTS = 1 << 20


def supports(*args: Any, **options: Any) -> str | None:
    """None: every scatter can have more room."""
    return None


def scatter_add(places: jax.Array, values: jax.Array, *, width: int) -> jax.Array:
    """See the op's contract."""
    roomy = max(width, -(-LEAST_ELEMENTS // values.shape[0]))
    return reference.scatter_add(places, values, width=roomy)[:, :width]
