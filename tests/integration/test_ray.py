"""Hosts and replicas that Ray starts, on a cluster of this machine."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jaxengine.errors import ConfigError
from jaxengine.options.config import EngineConfig
from jaxengine.startup.group.placed import placed
from tests.integration.hosts import PATIENCE_S, environment

needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed")


def run(name: str, directory: Path, **variables: str) -> Any:
    """What a program of `ray_run` comes to."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.integration.ray_run", name, str(directory)],
        env=environment(1, **variables),
        stdout=subprocess.PIPE,
        timeout=PATIENCE_S,
        check=True,
        text=True,
    )
    return json.loads(done.stdout.strip().splitlines()[-1])


def test_without_ray_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"pip install 'jaxengine\[ray\]'"):
        placed(EngineConfig.from_options(distributed_executor_backend="ray", tensor_parallel_size=2, nnodes=2))


@pytest.mark.slow
@needs_ray
@pytest.mark.rare
def test_two_nodes_are_one_engine_and_an_actor_may_die(tmp_path: Path) -> None:
    undisturbed, disturbed = run("two_hosts", tmp_path)
    assert disturbed == undisturbed
    assert all(len(tokens) == 40 for tokens in disturbed)


@pytest.mark.slow
@needs_ray
@pytest.mark.rare
def test_ray_serve_answers_the_official_client(tmp_path: Path) -> None:
    pytest.importorskip("grpc_reflection", reason="ray[serve] is not installed")
    options = {"max_model_len": 128, "max_num_seqs": 4, "bucket_planner": "explicit", "buckets": ["4x8"]}
    scaling = {"upscale_delay_s": 1, "look_back_period_s": 2, "metrics_interval_s": 1}  # Ray's own take half a minute
    given = {"OPTIONS": json.dumps(options), "SCALING": json.dumps(scaling), "REPLICAS": "2", "REQUESTS": "1"}
    found = run("application", tmp_path, **given)
    assert found["tokens"] == 12
    assert found["streamed"] == found["whole"]
    assert found["replicas"] == 2, "requests waited, and no replica was added"
    assert found["texts"] == 1
