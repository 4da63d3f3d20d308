"""Writing a step's keys and values into their pages: the contract and its backends."""

from __future__ import annotations

import jax
from jax.typing import DTypeLike

from pallas_kernels.checks import check_equal, check_int32, check_rank
from pallas_kernels.dispatch import AUTO, Op
from pallas_kernels.storage import check_pages_hold, check_scales, quantise, resolve_kv_dtype

OP = Op(
    "write_kv",
    # A GPU's scatter writes in place (pallas_kernels.check reads it from the compiled program): "gpu" is that.
    backends={
        name: f"{__name__}.{'xla' if name == 'gpu' else name}" for name in ("reference", "xla", "native", "tpu", "gpu")
    },
    preferred={"cpu": ("native",), "tpu": ("tpu",)},
    portable="xla",
)


def write_kv(
    kv_pages: jax.Array,
    k: jax.Array,
    v: jax.Array,
    slots: jax.Array,
    *,
    kv_scales: jax.Array | None = None,
    kv_dtype: DTypeLike | None = None,
    backend: str = AUTO,
    platform: str | None = None,
) -> jax.Array:
    """Write token `n`'s keys and values into slot `slots[n]`, in place where `kv_pages` is donated.

    Args:
        kv_pages: `[pages, T, 2K, H]`, or of a shape that `kv_page_shape` says, as in `paged_attention`.
        k: keys `[N, K, H]` of `N` tokens; rounded to the cache's type.
        v: values `[N, K, H]`.
        slots: int32 `[N]`, `page * T + offset`. Padding goes to a slot of page 0, the sink, which several tokens may share;
            any other slot occurs at most once.
        kv_scales: float32 `[2, K]`, of a cache in int8, float8_e4m3fn or float8_e5m2, and only there: keys are stored over
            `kv_scales[0]`, values over `kv_scales[1]`, rounded to the nearest; what the type cannot hold saturates.
        kv_dtype: what pages of bits hold; when left out, float8_e4m3fn in uint8 pages, and in uint16 pages float16 for float16
            keys and bfloat16 otherwise.
        backend: `auto`, or a name from the table; a named backend runs or raises.
        platform: of the compile target, for `auto`.

    Returns:
        The pages. What page 0 holds is not defined.

    Raises:
        ValueError: arguments that do not fit together, naming the axis, or an unknown backend.
        KernelUnsupported: the named backend cannot do this case.
    """
    check_rank(k=(k, "N K H"), v=(v, "N K H"), slots=(slots, "N"))
    check_int32(slots=slots)
    check_equal("N (tokens)", k=k.shape[0], v=v.shape[0], slots=slots.shape[0])
    check_equal("K (KV heads)", k=k.shape[1], v=v.shape[1])
    check_equal("H (head size)", k=k.shape[2], v=v.shape[2])
    check_pages_hold(kv_pages, kv_heads=k.shape[1], head_size=k.shape[2], operand="k")
    kv_dtype = resolve_kv_dtype(kv_pages, k, kv_dtype)
    check_scales(kv_scales, kv_dtype=kv_dtype, kv_heads=k.shape[1])
    if kv_scales is not None:
        by_head = kv_scales[:, :, None]
        k, v = quantise(k, by_head[0], kv_dtype), quantise(v, by_head[1], kv_dtype)
    result: jax.Array = OP.run(backend, platform, kv_pages, k, v, slots, kv_dtype=kv_dtype)
    return result
