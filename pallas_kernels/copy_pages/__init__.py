"""Copying whole pages (a sequence that forks takes its own copy of the page it will write): the contract and its backends."""

from __future__ import annotations

import jax

from pallas_kernels.checks import check_equal, check_int32, check_rank
from pallas_kernels.dispatch import AUTO, Op

OP = Op(
    "copy_pages",
    backends={"reference": f"{__name__}.reference", "xla": f"{__name__}.xla"},
    preferred={},
    portable="xla",
)


def copy_pages(
    kv_pages: jax.Array,
    sources: jax.Array,
    destinations: jax.Array,
    *,
    backend: str = AUTO,
    platform: str | None = None,
) -> jax.Array:
    """Copy page `sources[m]` over page `destinations[m]`, in place where `kv_pages` is donated.

    All sources are read before any destination is written.

    Args:
        kv_pages: `[pages, T, C, L]`, of any type.
        sources: int32 `[M]`.
        destinations: int32 `[M]`; no page but the sink occurs twice. `(0, 0)` pairs are padding.
        backend: `auto`, or a name from the table; a named backend runs or raises.
        platform: of the compile target, for `auto`.

    Returns:
        The pages.

    Raises:
        ValueError: arguments that do not fit together, naming the axis, or an unknown backend.
        KernelUnsupported: the named backend cannot do this case.
    """
    check_rank(kv_pages=(kv_pages, "pages T C L"), sources=(sources, "M"), destinations=(destinations, "M"))
    check_int32(sources=sources, destinations=destinations)
    check_equal("M (copies)", sources=sources.shape[0], destinations=destinations.shape[0])
    result: jax.Array = OP.run(backend, platform, kv_pages, sources, destinations)
    return result
