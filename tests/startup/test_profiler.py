"""One trace at a time, where they were asked for."""

from __future__ import annotations

import jax
import pytest

from jaxengine.errors import RequestError
from jaxengine.startup.profiler import Profiler


@pytest.fixture
def calls(monkeypatch):
    """What JAX's profiler is asked to do."""
    calls = []
    monkeypatch.setattr(jax.profiler, "start_trace", lambda directory, **options: calls.append(directory))
    monkeypatch.setattr(jax.profiler, "stop_trace", lambda: calls.append("stop"))
    return calls


def test_a_trace_begins_and_ends(calls):
    profiler = Profiler("traces")
    for _ in range(2):
        profiler.start()
        with pytest.raises(RequestError, match="already"):
            profiler.start()
        profiler.stop()
        with pytest.raises(RequestError, match="start one first"):
            profiler.stop()
    profiler.close()
    assert calls == ["traces", "stop"] * 2


def test_a_trace_that_nobody_ended_is_written_at_the_end(calls):
    profiler = Profiler("traces")
    profiler.start()
    profiler.close()
    assert calls == ["traces", "stop"]


def test_without_a_directory_there_are_none(calls):
    profiler = Profiler(None)
    with pytest.raises(RequestError, match="--profile DIR"):
        profiler.start()
    profiler.close()
    assert calls == []


@pytest.mark.slow
def test_jax_writes_one(tmp_path):
    profiler = Profiler(str(tmp_path))
    profiler.start()
    jax.numpy.ones(8).sum().block_until_ready()
    profiler.stop()
    assert list(tmp_path.rglob("*.xplane.pb"))
    assert list(tmp_path.rglob("*perfetto_trace.json.gz"))
