"""Python's garbage collector, kept off what leaves no garbage."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collection() -> Iterator[None]:
    """Look for no garbage meanwhile: loading JAX, describing a model and starting an engine leave little, and looking is a sixth
    of the time of the first two."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
