"""TPU kernels on the CPU: Pallas' TPU interpret mode with everything on that finds mistakes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from jax._src.pallas.mosaic.interpret import interpret_pallas_call  # the race detector's verdict has no public name
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.tpu.chip import simulated_tpu


@contextmanager
def checked_tpu(*, cores: int = 1, **options: str) -> Iterator[None]:
    """Races, reads out of bounds and uninitialised memory fail the test. Compute and fetch results inside."""
    parameters = pltpu.InterpretParams(
        detect_races=True,
        out_of_bounds_reads="raise",
        uninitialized_memory="nan",
        num_cores_or_threads=cores,
        **options,
    )
    try:
        with simulated_tpu(parameters):
            yield
        races = interpret_pallas_call.races
        assert races is not None, "no kernel has run"
        assert not races.races_found
    finally:
        pltpu.reset_tpu_interpret_mode_state()
