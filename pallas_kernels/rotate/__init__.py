"""Rotary position embeddings, applied: the contract and its backends."""

from __future__ import annotations

import jax

from pallas_kernels.checks import check_equal, check_rank
from pallas_kernels.dispatch import AUTO, Op

OP = Op(
    "rotate",
    backends={name: f"{__name__}.{name}" for name in ("reference", "native", "tpu")},
    preferred={"cpu": ("native", "reference"), "tpu": ("tpu",)},
    portable="reference",
)


def rotate(
    x: jax.Array,
    cos: jax.Array,
    sin: jax.Array,
    *,
    projected: bool = False,
    backend: str = AUTO,
    platform: str | None = None,
) -> jax.Array:
    """Turn every head of every token: channel `i` is paired with channel `i + H / 2` (RoFormer, arXiv:2104.09864).

    Args:
        x: `[N, heads, H]`, H even.
        cos: cosines of the angles, float32 `[N, 1, H / 2]`, of all heads alike.
        sin: sines.
        projected: whether `x` is what a matrix product gave, and nothing was computed of it since; where devices share heads,
            each turns its own (`jax.shard_map`). Tells a compiler how it lies in memory, and changes no number.
        backend: `auto`, or a name from the table; a named backend runs or raises.
        platform: of the compile target, for `auto`.

    Returns:
        `[N, heads, H]` in the type of `x`; computed in float32.

    Raises:
        ValueError: arguments that do not fit together, naming the axis, or an unknown backend.
        KernelUnsupported: the named backend cannot do this case.
    """
    check_rank(x=(x, "N heads H"), cos=(cos, "N 1 H/2"), sin=(sin, "N 1 H/2"))
    check_equal("N (tokens)", x=x.shape[0], cos=cos.shape[0], sin=sin.shape[0])
    check_equal("H (head size)", x=x.shape[2], cos=2 * cos.shape[2], sin=2 * sin.shape[2])
    result: jax.Array = OP.run(backend, platform, x, cos, sin, projected=projected)
    return result
