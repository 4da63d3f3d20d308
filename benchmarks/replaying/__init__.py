"""The parts of `benchmarks/replay.py`."""
