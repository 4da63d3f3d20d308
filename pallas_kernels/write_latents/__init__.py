"""Writing a step's latent vectors into their pages: the contract and its backends."""

from __future__ import annotations

import jax
from jax.typing import DTypeLike

from pallas_kernels.checks import check_equal, check_int32, check_rank
from pallas_kernels.dispatch import AUTO, Op
from pallas_kernels.storage import check_latent_scales, quantise, resolve_kv_dtype

OP = Op(
    "write_latents",
    # A GPU's scatter of whole vectors writes in place (pallas_kernels.check.pool_moves reads it from the program): "gpu" is that.
    backends={name: f"{__name__}.{'xla' if name == 'gpu' else name}" for name in ("reference", "xla", "tpu", "gpu")},
    preferred={"tpu": ("tpu",)},
    portable="xla",
)


def write_latents(
    pages: jax.Array,
    latents: jax.Array,
    slots: jax.Array,
    *,
    scales: jax.Array | None = None,
    kv_dtype: DTypeLike | None = None,
    backend: str = AUTO,
    platform: str | None = None,
) -> jax.Array:
    """Write token `n`'s vector into slot `slots[n]`, in place where `pages` is donated.

    Args:
        pages: `[pages, 1, T, L]`, as in `latent_attention`.
        latents: `[N, D]`, rounded to the cache's type; up to `L` zeros follow.
        slots: int32 `[N]`, `page * T + offset`. Padding goes to a slot of page 0, the sink, which several tokens may share; any
            other slot occurs at most once.
        scales: float32 `[D]`, of pages of 8-bit values, and only there: each number is stored over its own, rounded to the
            nearest; what the type cannot hold saturates.
        kv_dtype: what pages of bits hold, as in `paged_attention`.
        backend: `auto`, or a name from the table; a named backend runs or raises.
        platform: of the compile target, for `auto`.

    Returns:
        The pages. What page 0 holds is not defined.

    Raises:
        ValueError: arguments that do not fit together, naming the axis, or an unknown backend.
        KernelUnsupported: the named backend cannot do this case.
    """
    check_rank(pages=(pages, "pages 1 T L"), latents=(latents, "N D"), slots=(slots, "N"))
    check_int32(slots=slots)
    check_equal("N (tokens)", latents=latents.shape[0], slots=slots.shape[0])
    check_equal("1 (vectors of a token)", pages=pages.shape[1], contract=1)
    if latents.shape[1] > pages.shape[3]:
        raise ValueError(f"axis L of pages is {pages.shape[3]}: vectors of {latents.shape[1]} numbers do not fit")
    kv_dtype = resolve_kv_dtype(pages, latents, kv_dtype)
    check_latent_scales(scales, kv_dtype=kv_dtype, size=latents.shape[1])
    if scales is not None:
        latents = quantise(latents, scales, kv_dtype)
    result: jax.Array = OP.run(backend, platform, pages, latents, slots, kv_dtype=kv_dtype)
    return result
