"""What the GPU kernels have to know of the device they are compiled for, and how they run without one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jax

NO_GPU = (
    "the program is not traced for a GPU: without one at hand, trace and lower it under jax.set_mesh() of a mesh of its "
    "compile-only devices, or run it under pallas_kernels.gpu.device.interpreted_gpu()"
)
AMPERE, ADA = 8.0, 8.9
"""Compute capabilities: the first that multiplies bfloat16, and the first that converts float8_e4m3fn."""
ABSENT = {"NVIDIA A100": 8.0, "NVIDIA H100": 9.0, "NVIDIA H200": 9.0}
"""Compute capabilities of devices that are compiled for without having one, by the start of their kind."""
_interpreted: ContextVar[bool] = ContextVar("interpreted", default=False)


@contextmanager
def interpreted_gpu() -> Iterator[None]:
    """Run GPU kernels in Pallas' interpret mode, on any platform; for tests, as it is slow."""
    token = _interpreted.set(True)
    try:
        yield
    finally:
        _interpreted.reset(token)


def interpreted() -> bool:
    return _interpreted.get()


def gpu_refused(least: float) -> str | None:
    """None when kernels are traced for an NVIDIA GPU of compute capability `least` or more, or interpreted; else the reason.

    The device is that of the mesh in context (the target, when compiling for another machine), else this process's.
    """
    if interpreted():
        return None
    local = jax.local_devices()[0]
    device: Any = jax.sharding.get_abstract_mesh().abstract_device or local
    if device.platform not in ("gpu", "cuda", "rocm"):
        return NO_GPU
    kind = device.device_kind
    if kind == local.device_kind:
        capability = local.compute_capability
    else:
        capability = next((found for name, found in ABSENT.items() if kind.startswith(name)), None)
    try:
        enough = float(capability) >= least
    except (TypeError, ValueError):  # an unknown target, or an AMD GPU, whose capability is a name
        enough = False
    return (
        None if enough else f"a {kind} has compute capability {capability}; this needs an NVIDIA GPU of {least} or more"
    )
