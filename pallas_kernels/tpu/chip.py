"""What the TPU kernels have to know of the chip they are compiled for, and how they run without one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pallas_kernels.storage import LANES, SUBLANES, few_channels

if TYPE_CHECKING:
    from jax.experimental.pallas import tpu as pltpu

MIB = 1 << 20
NO_TPU = (
    "the program is not traced for a TPU: without one at hand, trace and lower it under jax.set_mesh() of a mesh of its "
    "compile-only devices, or run it under pallas_kernels.tpu.chip.simulated_tpu()"
)


@dataclass(frozen=True, slots=True)
class Chip:
    """`name` as in "v6e"; `cores` work on one device's program side by side; the rest is per core."""

    name: str
    cores: int
    vmem_bytes: int
    smem_bytes: int
    matrix_columns: int
    """Of a matrix unit: a product of fewer outputs takes as long."""


SIMULATED = "simulated"
_simulated: ContextVar[Chip | None] = ContextVar("simulated", default=None)


@contextmanager
def simulated_tpu(parameters: pltpu.InterpretParams) -> Iterator[None]:
    """Run TPU kernels in Pallas' TPU interpret mode, on any platform; for tests, as it is slow."""
    from jax.experimental.pallas import tpu as pltpu

    chip = Chip(SIMULATED, parameters.num_cores_or_threads, vmem_bytes=16 * MIB, smem_bytes=MIB, matrix_columns=256)
    token = _simulated.set(chip)
    try:
        with pltpu.force_tpu_interpret_mode(parameters):
            yield
    finally:
        _simulated.reset(token)


def target_chip() -> Chip | None:
    """The chip of the mesh in context (of the target, when compiling for another machine), else of this process, else None."""
    if _simulated.get() is not None:
        return _simulated.get()
    from jax.experimental.pallas import tpu as pltpu  # a tenth of a second, which only a TPU's programs are worth

    if not pltpu.is_tpu_device():
        return None
    info = pltpu.get_tpu_info()
    return Chip(
        str(info.chip_version),
        info.num_cores,
        info.vmem_capacity_bytes,
        info.smem_capacity_bytes,
        info.mxu_column_size,
    )


def tiles_refused(kv_pages: Any) -> str | None:
    """None when pages `[pages, T, C, L]` fill a TPU's tiles of 8 x 128, otherwise the reason why they cannot be used."""
    page, dtype = tuple(kv_pages.shape[1:]), kv_pages.dtype
    channels, lanes = page[1:]
    if lanes == LANES and (channels in few_channels(dtype) or channels % SUBLANES == 0):
        return None
    return (
        f"kv_pages of {page} in {dtype} do not fill a TPU's tiles; allocate pages of "
        f"kv_page_shape(..., platform='tpu', dtype='{dtype}')"
    )
