"""`jaxengine doctor`: what this machine has, what is missing and how to get it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

PACKAGES = ("jax", "jaxlib", "flax", "libtpu", "numpy", "safetensors", "tokenizers", "transformers", "huggingface_hub")
EXTRAS = {
    "libtpu": "pip install 'jaxengine[tpu]'   (compiles for TPUs, with or without one)",
    "jax-cuda13-plugin": "pip install 'jaxengine[cuda]'   (runs on NVIDIA GPUs)",
}


def report() -> Iterator[str]:
    """The lines of the report. Loads JAX, to ask it for devices."""
    yield f"python      {platform.python_version()} ({sys.executable})"
    yield f"machine     {platform.machine()}, {os.cpu_count()} cores"
    for package in PACKAGES:
        yield f"{package:<11} {package_version(package) or 'not installed'}"
    yield from _devices()
    yield from _storage()
    yield from _programs()
    yield _compiler()
    for package, command in EXTRAS.items():
        if package_version(package) is None:
            yield f"missing     {package}: {command}"
    from huggingface_hub import get_token

    yield f"hf token    {'set' if get_token() else 'not set (only gated models need it)'}"


def _devices() -> Iterator[str]:
    try:
        import jax

        from jaxengine.device.runtime.target import device_memory_bytes, host_memory_bytes

        devices = jax.devices()
    except Exception as error:  # a broken plugin raises whatever it likes; the report must still be printed
        yield f"devices     JAX found none: {error}"
        return
    yield f"devices     {len(devices)} x {devices[0].device_kind} ({devices[0].platform})"
    device, host = device_memory_bytes(devices) / 2**30, host_memory_bytes() / 2**30
    yield f"memory      {device:.1f} GiB per device, host {host:.1f} GiB free"


def _storage() -> Iterator[str]:
    home = Path(os.environ.get("HF_HOME", Path.home() / ".cache" / "huggingface"))
    existing = next(path for path in (home, *home.parents) if path.exists())
    free = shutil.disk_usage(existing).free / 2**30
    writable = "writable" if os.access(existing, os.W_OK) else "NOT writable: set HF_HOME to a directory that is"
    yield f"cache dir   {home} ({free:.0f} GiB free, {writable})"


def _programs() -> Iterator[str]:
    from xla_cache import CacheError, Store, default_directory

    path = default_directory()
    try:
        packed = {record.file: record.packed for record in Store.open(path).records()}
    except CacheError as error:
        yield f"programs    none are kept: {error}"
        return
    yield f"programs    {path} ({len(packed)} compiled programs, {sum(packed.values()) / 1e6:.0f} MB)"


def _compiler() -> str:
    from xla_cache.library import NoCompilerError, find_compiler

    try:
        return f"c++         {find_compiler().version}"
    except NoCompilerError as error:
        return f"missing     {error}   (matrix products on a CPU are slower without)"


def package_version(package: str) -> str | None:
    """Which version is installed; None where none is."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
