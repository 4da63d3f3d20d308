"""Multiplying rows with matrices of bfloat16 that are kept in 12 bits a number, without loss: the contract and its backends.

How they lie is said in `native/coding.h`. `uint16 [O, I + HEAD]` has room for any matrix, a row's head beside its numbers; of
what is usual three quarters are read.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from pallas_kernels.checks import check_equal, check_int32, check_rank
from pallas_kernels.dispatch import AUTO, Op

OP = Op(
    "coded_matmul",
    backends={name: f"{__name__}.{name}" for name in ("reference", "native")},
    preferred={"cpu": ("native",)},
    portable="reference",
)

ROWS = Op(
    "coded_rows",
    backends={name: f"{__name__}.{name}" for name in ("reference", "native")},
    preferred={"cpu": ("native",)},
    portable="reference",
)

HEAD, PIECE, MOST_INPUTS = 32, 128, 1 << 24
"""Numbers of 16 bits before a row's; inputs that lie together; and how many a row may have, fewer than that."""


def coded_shape(outputs: int, inputs: int) -> tuple[int, int] | None:
    """How a matrix `[outputs, inputs]` lies coded; None: it does not."""
    return (outputs, inputs + HEAD) if inputs % PIECE == 0 and 0 < inputs < MOST_INPUTS and outputs > 0 else None


def coded_matmul(
    x: jax.Array,
    matrices: Sequence[jax.Array],
    *,
    used: jax.Array | None = None,
    backend: str = AUTO,
    platform: str | None = None,
) -> tuple[jax.Array, ...]:
    """`x` times the transpose of each matrix, in float32: what `matmul` gives with the plain ones.

    Args:
        x: bfloat16 `[N, I]`.
        matrices: uint16 `[O_n, I + HEAD]` each, as `coding.code` makes them.
        used: int32 `[]`: rows behind so many are padding. What these get means nothing, and is finite where `x` is.
        backend: `auto`, or a name from the table; a named backend runs or raises.
        platform: of the compile target, for `auto`.

    Returns:
        float32 `[N, O_n]` of each, with `native` to the last bit what the same backend of `matmul` gives (NaN where that does).

    Raises:
        ValueError: arguments that do not fit together, or an unknown backend.
        KernelUnsupported: the named backend cannot do this case.
    """
    check_rank(x=(x, "N I"))
    for matrix in matrices:
        _check(matrix, x.shape[1])
    if x.dtype != jnp.bfloat16:
        raise ValueError(f"x must be bfloat16, got {x.dtype}")
    if used is not None:
        check_int32(used=used)
    result: tuple[jax.Array, ...] = OP.run(backend, platform, x, tuple(matrices), used=used)
    return result


def coded_rows(numbers: jax.Array, matrix: jax.Array, *, backend: str = AUTO, platform: str | None = None) -> jax.Array:
    """Rows `numbers`, int32 `[N]`, of a matrix, bfloat16 `[N, I]`; in place of one that is not there, the nearest.

    Raises:
        ValueError, KernelUnsupported: as `coded_matmul`.
    """
    check_rank(numbers=(numbers, "N"))
    check_int32(numbers=numbers)
    _check(matrix, matrix.shape[-1] - HEAD)
    result: jax.Array = ROWS.run(backend, platform, numbers, matrix)
    return result


def _check(matrix: jax.Array, inputs: int) -> None:
    check_rank(matrix=(matrix, "O I+HEAD"))
    check_equal("I (inputs)", x=inputs, matrix=matrix.shape[1] - HEAD)
    if matrix.dtype != jnp.uint16 or coded_shape(matrix.shape[0], inputs) != matrix.shape:
        raise ValueError(f"no matrix is coded as {matrix.dtype}{list(matrix.shape)}")
