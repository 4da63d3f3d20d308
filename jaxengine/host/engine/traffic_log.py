"""Writes down the traffic of an engine, as a trace that `benchmarks/replay.py` can run: lengths and times, no text."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from contextlib import suppress

from jaxengine.contract.metrics import FinishedRequest, FinishedSequence, StepStats
from jaxengine.errors import ConfigError

logger = logging.getLogger("jaxengine")


class TrafficLog:
    """Appends a line of JSON for every request that ends by itself, when it ends.

    `arrival_s` counts from when the log was opened (with an engine, its start). `cached_tokens` of the `prompt_tokens` were found
    in the KV cache; `output_tokens` are those of all `n` sequences. A file that can no longer be written ends the log, not the
    engine.

    Args:
        path: what it holds already stays.
        clock: the one that requests' arrivals are read from.

    Raises:
        ConfigError: the file cannot be written.
    """

    def __init__(self, path: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._opened = clock()
        self._broken = False
        try:
            self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115  open for as long as the engine is
        except OSError as error:
            raise ConfigError(f"record_traffic: cannot write {path}: {error.strerror}") from error

    def close(self) -> None:
        """Close the file. Closing twice is fine."""
        with suppress(OSError):  # what could not be written before cannot be now
            self._file.close()

    def on_step(self, stats: StepStats) -> None:
        """Steps are no part of the trace."""

    def on_finished(self, sequence: FinishedSequence, request: FinishedRequest | None) -> None:
        """Write a request that is whole."""
        if request is not None and not self._broken:
            try:
                self._file.write(f"{json.dumps(self._line(request))}\n")
                self._file.flush()
            except OSError as error:
                self._broken = True
                logger.warning("record_traffic: %s is not written any more: %s", self._path, error.strerror)

    def on_lost(self, finish_reason: str, num_sequences: int) -> None:
        """Requests that were given up are no part of the trace."""

    def _line(self, request: FinishedRequest) -> dict[str, float]:
        return {
            "arrival_s": round(request.arrival - self._opened, 6),
            "prompt_tokens": request.num_prompt_tokens,
            "cached_tokens": request.num_cached_tokens,
            "output_tokens": request.num_generated_tokens,
        }
