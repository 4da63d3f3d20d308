"""What benchmarks of GPU kernels have in common: they need a GPU, or are a trial of the script, and their report says which."""

from __future__ import annotations

import argparse
from typing import Any

import jax

from jaxengine.bench import machine


def gpu_or_trial(parser: argparse.ArgumentParser, *, interpret: bool) -> jax.Device:
    """The device; the command ends with what is wrong where it is no GPU and this is no trial."""
    device = jax.devices()[0]
    if device.platform != "gpu" and not interpret:
        parser.error(
            f"this measures a GPU, and JAX found a {device.device_kind}; --interpret tries the script without one"
        )
    return device


def report(benchmark: str, device: jax.Device, *, interpret: bool, copied: float, **found: Any) -> dict[str, Any]:
    """`copied`: bytes/s of a large copy."""
    return {
        "benchmark": benchmark,
        "kind": "a trial of the script: its times mean nothing" if interpret else "measurement",
        "machine": machine.describe(),
        "device": {"kind": device.device_kind, "runtime": device.client.platform_version},
        "copy_gb_per_s": round(copied / 1e9, 1),
        **found,
    }
