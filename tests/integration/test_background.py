"""Serving while the rest of the grid is compiled: same tokens, no waiting, and in the end every shape."""

from __future__ import annotations

import pytest

from buckets import Bucket
from jaxengine.errors import ConfigError, EngineDeadError
from jaxengine.startup.background import BackgroundWarmup
from tests.integration.engines import greedy, run, start, token_ids, write_config

pytestmark = pytest.mark.usefixtures("quick_engines")

PROMPTS = [[1, 2, 3], list(range(3, 60)), [7]]
COVERING = Bucket(4, 1)
SHAPES = ("4x16", "4x1", "1x1")


def used(engine) -> set[Bucket]:
    """The buckets of all steps so far."""
    return set(engine.core.scheduler.stats.shapes)


@pytest.mark.slow
def test_requests_pad_up_until_their_shape_is_ready(tmp_path, monkeypatch):
    model = write_config(tmp_path)
    full = start(model, buckets=SHAPES)
    expected = [token_ids(run(full, [prompt], greedy(8))) for prompt in PROMPTS]
    full.close()

    monkeypatch.setattr(BackgroundWarmup, "start", lambda self: None)
    engine = start(model, buckets=SHAPES, warmup="background", xla_cache_path="off")
    assert engine.background is not None
    assert len(engine.background.shapes.grid) == 1
    assert [token_ids(run(engine, [prompt], greedy(8))) for prompt in PROMPTS] == expected
    assert used(engine) == {COVERING}

    monkeypatch.undo()
    engine.background.start()
    assert engine.background.wait(timeout=300)
    assert engine.background.shapes.complete
    assert [token_ids(run(engine, [prompt], greedy(8))) for prompt in PROMPTS] == expected
    assert used(engine) > {COVERING}
    assert engine.compile_counter.count == 0
    assert engine.guard.num_violations == 0
    engine.close()


@pytest.mark.slow
def test_what_is_kept_is_there_from_the_start(tmp_path):
    model = write_config(tmp_path / "model")
    start(model, xla_cache_path=str(tmp_path / "store")).close()
    engine = start(model, warmup="background", xla_cache_path=str(tmp_path / "store"))
    assert engine.background is not None
    assert engine.background.shapes.complete
    assert {record.origin for record in engine.programs} == {"store"}
    engine.close()


def test_a_program_that_does_not_compile_harms_nobody(tmp_path, monkeypatch, caplog):
    def broken(*arguments):
        raise RuntimeError("no such instruction")

    monkeypatch.setattr("jaxengine.startup.background.obtain", broken)
    with caplog.at_level("ERROR", logger="jaxengine"):
        engine = start(write_config(tmp_path), warmup="background", xla_cache_path="off")
        assert engine.background.wait(timeout=60)
    assert not engine.background.shapes.complete
    assert any("requests go on padding up" in record.message for record in caplog.records)
    assert len(token_ids(run(engine, [[1, 2]], greedy(4)))[0]) == 4
    engine.close()


def test_closing_stops_the_thread(tmp_path):
    engine = start(write_config(tmp_path), warmup="background", xla_cache_path="off")
    engine.close()
    assert engine.background.wait(timeout=0)


def test_the_guard_ends_an_engine_whose_step_compiles(tmp_path, monkeypatch):
    import jax
    import jax.numpy as jnp

    engine = start(write_config(tmp_path), compile_guard="error", buckets=("1x16", "1x1"), max_num_seqs=1)
    runner = engine.core._runner
    launch = runner.launch

    def compiling(batch):
        jax.jit(lambda x: x - 17).lower(jnp.zeros(13)).compile()
        return launch(batch)

    monkeypatch.setattr(runner, "launch", compiling)
    with pytest.raises(EngineDeadError, match=r"compiled for .* during a step"):
        run(engine, [[1, 2]], greedy(2))
    assert engine.guard.num_violations == 1
    engine.close()


def test_skip_warmup_and_another_warmup_contradict(tmp_path):
    with pytest.raises(ConfigError, match=r"skip_warmup .* warmup 'background'"):
        start(write_config(tmp_path), skip_warmup=True, warmup="background")
