"""Multiplying rows with matrices that lie in panels, as a CPU's vectors read them: the contract and its backends."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from pallas_kernels.checks import check_equal, check_int32, check_rank
from pallas_kernels.dispatch import AUTO, Op

OP = Op(
    "packed_matmul",
    backends={name: f"{__name__}.{name}" for name in ("reference", "native")},
    preferred={"cpu": ("native",)},
    portable="reference",
)

PANEL, MULTIPLE = 16, 64
"""Outputs that lie together, and of how many at once there must be some: the widest vectors make as many."""

ACTIVATIONS = (None, "gelu")
"""What may become of a product: nothing, or `x / 2 * (1 + erf(x / sqrt(2)))`."""


def packed_shape(outputs: int, inputs: int, dtype: str) -> tuple[int, ...] | None:
    """How a matrix `[outputs, inputs]` of `dtype` lies in panels; None: it lies in none.

    `[outputs / PANEL, inputs, PANEL]` of float32; of bfloat16 two inputs lie together, `[outputs / PANEL, inputs / 2, PANEL, 2]`.
    """
    if outputs % MULTIPLE or (dtype == "bfloat16" and inputs % 2) or dtype not in ("float32", "bfloat16"):
        return None
    panels = outputs // PANEL
    return (panels, inputs, PANEL) if dtype == "float32" else (panels, inputs // 2, PANEL, 2)


def packed_matmul(
    x: jax.Array,
    matrices: Sequence[jax.Array],
    biases: Sequence[jax.Array | None],
    *,
    activation: str | None = None,
    used: jax.Array | None = None,
    backend: str = AUTO,
    platform: str | None = None,
) -> tuple[jax.Array, ...]:
    """`x` times the transpose of each matrix, with its bias added, through an activation, in float32.

    `x` is rounded to the matrices' type, and products are summed in float32.

    Args:
        x: float32 `[N, I]`.
        matrices: as `packed_shape` says, of one type.
        biases: float32 `[O_n]` of each, or None.
        activation: one of `ACTIVATIONS`.
        used: int32 `[]`: rows behind so many are padding. What these get means nothing, and is finite where `x` is.
        backend: `auto`, or a name from the table; a named backend runs or raises.
        platform: of the compile target, for `auto`.

    Returns:
        float32 `[N, O_n]` of each. A row's numbers are the same to the last bit whatever rows and matrices there are beside it,
        with `native`.

    Raises:
        ValueError: arguments that do not fit together, naming the axis, or an unknown activation or backend.
        KernelUnsupported: the named backend cannot do this case.
    """
    check_rank(x=(x, "N I"))
    check_equal("matrices and biases", matrices=len(matrices), biases=len(biases))
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation must be one of {', '.join(map(str, ACTIVATIONS))}, got {activation!r}")
    if x.dtype != jnp.float32 or len({matrix.dtype for matrix in matrices}) != 1:
        raise ValueError(f"x must be float32, got {x.dtype}, and matrices of one type")
    for matrix, bias in zip(matrices, biases, strict=True):
        outputs = matrix.shape[0] * PANEL
        if matrix.shape != packed_shape(outputs, x.shape[1], str(matrix.dtype)):
            raise ValueError(f"a matrix {matrix.dtype}{list(matrix.shape)} has no panels of {x.shape[1]} inputs")
        if bias is not None:
            check_equal("O (outputs)", matrix=outputs, bias=bias.shape[0])
    if used is not None:
        check_int32(used=used)
    result: tuple[jax.Array, ...] = OP.run(
        backend, platform, x, tuple(matrices), tuple(biases), activation=activation, used=used
    )
    return result
