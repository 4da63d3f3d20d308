"""Engines whose pages do not hold what comes: prefixes go to the host and to disk and come back, and no token changes."""

from __future__ import annotations

import json
import random
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import save_file

from jaxengine.contract.sampling_params import SamplingParams
from jaxengine.startup.build import Engine
from tests.device.models.cases import Fixture
from tests.integration.engines import SMALL, run, start, write_config
from tests.quick import rare_but, slow_but

pytestmark = pytest.mark.usefixtures("quick_engines")

TOGETHER = 40
"""Requests that are there at once: some run, most wait."""
ROOM_FOR_8 = {"num_pages": 8 * 64 // SMALL["page_size"] + 1, "max_num_seqs": 8, "buckets": ("8x8", "8x1")}
KINDS: dict[str, dict[str, Any]] = {
    "host": {"kv_offloading_size": 0.0015},
    "host and disk": {"kv_offloading_size": 0.0005},
    "hybrid": {"kv_offloading_size": 0.002},
}


def make_model(kind: str, directory: Path) -> tuple[Path, dict[str, Any]]:
    """A tiny model, and the options that it needs."""
    if kind != "hybrid":
        return write_config(directory / "model"), {}
    fixture = Fixture.load("lfm2")
    (directory / "config.json").write_text(json.dumps(fixture.config))
    save_file(fixture.tensors, directory / "model.safetensors")
    return directory, {"load_format": "auto", "dtype": "float32", "mamba_block_size": 8, "num_snapshots": 40}


def draw_requests(count: int, *, seed: int) -> tuple[list[list[int]], list[SamplingParams]]:
    """Prompts that share their beginnings with others, and how they are sampled."""
    rng = random.Random(seed)
    stems = [[rng.randrange(3, 90) for _ in range(56)] for _ in range(24)]
    prompts, params = [], []
    for _ in range(count):
        stem = stems[min(int(rng.expovariate(0.12)), len(stems) - 1)]
        own = [rng.randrange(3, 90) for _ in range(rng.randint(1, 8))]
        prompts.append([*stem[: rng.choice([0, 8, 24, 40, 56])], *own])
        n = rng.choice([1, 1, 1, 2])
        params.append(
            SamplingParams(
                temperature=0.8 if n > 1 else rng.choice([0.0, 0.8]),
                seed=rng.randrange(1 << 30),
                max_tokens=rng.randint(1, 12),
                ignore_eos=True,
                detokenize=False,
                n=n,
            )
        )
    return prompts, params


def answers(engine: Engine, prompts: list[list[int]], params: list[SamplingParams]) -> list[list[tuple[int, ...]]]:
    """All tokens of all requests, which come in crowds."""
    done = []
    for first in range(0, len(prompts), TOGETHER):
        part = slice(first, first + TOGETHER)
        done += [
            [tuple(one.token_ids) for one in output.outputs] for output in run(engine, prompts[part], params[part])
        ]
    return done


@pytest.mark.slow
@pytest.mark.parametrize("count", rare_but([60, 10_000], {60}))
@pytest.mark.parametrize("kind", slow_but(list(KINDS), {"host and disk"}))
def test_random_requests_get_the_same_tokens(kind, count, tmp_path, tmp_path_factory):
    model, needed = make_model(kind, tmp_path_factory.mktemp("model"))
    options = {**ROOM_FOR_8, **needed}
    requests = draw_requests(count, seed=count)
    with closing(start(model, **{**options, "num_pages": 400})) as plain:
        expected = answers(plain, *requests)
    if "disk" in kind:
        options["kv_offloading_directory"] = str(tmp_path)
    with closing(start(model, **options, **KINDS[kind])) as engine:
        assert answers(engine, *requests) == expected
        stats = engine.host.statistics
        assert stats.scheduler.external_prefix_cache_hits > 0
        assert stats.tiers.traffic["host to device"].bytes > 0
        assert engine.compile_counter.count == 0
        engine.core.check_idle()
