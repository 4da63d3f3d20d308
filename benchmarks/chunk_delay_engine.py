"""The process of an engine whose device computes nothing, for `benchmarks/chunk_delay.py`."""

from __future__ import annotations

from benchmarks.chunk_delay import main_of_engine as main

__all__ = ["main"]
