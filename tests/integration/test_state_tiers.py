"""Prefixes of models with recurrent layers come back from the host, and after a restart from disk, with states behind them."""

from __future__ import annotations

import json
import random
from contextlib import closing
from pathlib import Path

import pytest
from safetensors.numpy import save_file

from jaxengine.device.tiers.disk.directory import BlockDirectory
from jaxengine.host.scheduler import arrivals, fetches
from jaxengine.startup.build import Engine
from tests.device.models.cases import VOCAB, Fixture
from tests.device.tiers.disk.stores import wait_for
from tests.integration.engines import greedy, run, start, token_ids

pytestmark = pytest.mark.usefixtures("quick_engines")

BLOCK = 8
LENGTHS = (29, 42, 21)
FOUND = [length // BLOCK * BLOCK for length in LENGTHS]
OUTPUT = 10


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is slow here is the machine and not a tier."""
    for name in ("ANSWER_S", "PATIENCE_S"):
        monkeypatch.setattr(fetches, name, 300.0)
    monkeypatch.setattr(arrivals, "PATIENCE_S", 300.0)


def prompts() -> list[list[int]]:
    draw = random.Random(4)
    return [[draw.randrange(3, VOCAB) for _ in range(length)] for length in LENGTHS]


def begin(model: Path, pages: Path, devices: int) -> Engine:
    """One that has room for a single copy of states on the device."""
    engine = start(
        model,
        load_format="auto",
        dtype="float32",
        mamba_block_size=BLOCK,
        num_snapshots=1,
        kv_offloading_size=0.002,
        kv_offloading_directory=str(pages),
        tensor_parallel_size=devices,
    )
    assert engine.ledger.tier is not None
    engine.ledger.tier.block_s = ()  # what was measured here: to compute so little may be faster
    return engine


def cached(engine: Engine, expected: list[tuple[int, ...]]) -> list[int | None]:
    """How many tokens of each prompt were found, one prompt after the other; they are answered as expected."""
    outputs = [run(engine, [prompt], greedy(OUTPUT))[0] for prompt in prompts()]
    assert token_ids(outputs) == expected
    engine.core.check_idle()
    assert engine.compile_counter.count == 0
    return [output.num_cached_tokens for output in outputs]


@pytest.mark.parametrize(
    ("name", "devices"),
    [
        pytest.param("lfm2", 1, marks=pytest.mark.slow),
        pytest.param("mamba2", 1, marks=pytest.mark.rare),
        pytest.param("qwen3-next", 2, marks=pytest.mark.slow),
    ],
)
def test_a_prefix_is_found_on_the_host_and_after_a_restart(name: str, devices: int, tmp_path: Path) -> None:
    model, pages = tmp_path / "model", tmp_path / "pages"
    model.mkdir()
    fixture = Fixture.load(name)
    (model / "config.json").write_text(json.dumps(fixture.config))
    save_file(fixture.tensors, model / "model.safetensors")
    with closing(begin(model, pages, devices)) as engine:
        outputs = [run(engine, [prompt], greedy(OUTPUT))[0] for prompt in prompts()]
        expected = token_ids(outputs)
        assert [output.num_cached_tokens for output in outputs] == [0, 0, 0]
        assert cached(engine, expected) == FOUND
        assert engine.host.statistics.scheduler.external_prefix_cache_hits == sum(FOUND)
        groups = sum(len(pool.windows) for pool in engine.space.cache.pools)
        blocks = len(FOUND) + groups * sum(FOUND) // engine.space.page_size
        wait_for(lambda: len(list(BlockDirectory.open(pages).files())) >= blocks)
    with closing(begin(model, pages, devices)) as engine:
        assert cached(engine, expected) == FOUND
        assert engine.host.statistics.tiers.traffic["disk to host"].bytes > 0
