"""Stages on several processes as hosts: the tokens of the same stages on one host, and nothing compiles."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.integration.engines import write_config
from tests.integration.test_hosts import KINDS, check

NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}


def stages(count: int, tensor: int = 1) -> dict[str, Any]:
    return {"pipeline_parallel_size": count, "tensor_parallel_size": tensor}


@pytest.mark.slow
def test_two_hosts_have_a_stage_each_with_all_that_a_step_can_bring(tmp_path: Path) -> None:
    """Tied embeddings lie on both hosts, each of which reads them."""
    options = {"model": str(write_config(tmp_path)), "num_pages": 17, "speculative_config": NGRAM, **stages(2)}
    found = check(options, hosts=2, devices=1)
    assert found.num_preemptions > 0
    assert any(found.num_cached_tokens)


@pytest.mark.rare
@pytest.mark.parametrize(
    ("hosts", "devices", "count", "tensor"),
    [(3, 1, 3, 1), (2, 2, 2, 2), (2, 2, 4, 1), (4, 1, 2, 2)],
    ids=["a host each", "tensor parallel", "two of a host", "a stage of two hosts"],
)
def test_stages_lie_on_hosts_in_any_way(hosts: int, devices: int, count: int, tensor: int, tmp_path: Path) -> None:
    model = str(write_config(tmp_path, num_hidden_layers=4))
    check({"model": model, **stages(count, tensor)}, hosts=hosts, devices=devices)


@pytest.mark.rare
@pytest.mark.parametrize("name", ["mixture", "windows", "hybrid"])
def test_other_kinds_of_models(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**KINDS[name], "num_hidden_layers": 4}))
    options = {"num_pages": 80, "mamba_block_size": 8} if name == "hybrid" else {}
    check({"model": str(tmp_path), **stages(2), **options}, hosts=2, devices=1)


@pytest.mark.rare
def test_the_embedded_model_follows_grammars() -> None:
    short = {"max_tokens": 12, "temperature": 0.0}
    work: list[dict[str, Any]] = [{"prompt": list(range(20, 60)), "params": short} for _ in range(3)]
    work.append({"prompt": [40, 41], "params": {"max_tokens": 12, "temperature": 0.8, "seed": 1, "regex": "[0-9]{3}x"}})
    check(
        {"load_format": "auto", "skip_tokenizer_init": False, **stages(2)},
        hosts=2,
        devices=1,
        work=work,
    )


@pytest.mark.rare
def test_embeddings_come_from_the_last_stage(tmp_path: Path) -> None:
    work = [{"prompt": [5, 6, 7, 8 + number], "pool": True} for number in range(6)]
    options = {"model": str(write_config(tmp_path)), "runner": "pooling", **stages(2)}
    assert len(check(options, hosts=2, devices=1, work=work).pooled) == 12
