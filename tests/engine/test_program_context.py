"""Every number that a program depends on is in its key, and none that differs from machine to machine without need."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from jaxengine.config import EngineConfig
from jaxengine.engine.limits import EngineLimits
from jaxengine.engine.model_plan import plan_model
from jaxengine.engine.pool import plan_space
from jaxengine.engine.program_context import describe_config, program_context
from jaxengine.engine.progress import Progress
from jaxengine.runtime.programs import all_programs
from jaxengine.runtime.target import DEFAULTS
from tests.integration.engines import SMALL, write_config
from xla_cache import program_key
from xla_cache.cache import hlo_digest


def keys_and_hlo(model: Path, **options: object) -> dict[str, tuple[str, str]]:
    """Key digest and HLO digest of every program of a small engine."""
    config = EngineConfig.from_options(model=str(model), **{**SMALL, "buckets": ("4x16", "4x1"), **options})
    plan = plan_model(config)
    defaults = DEFAULTS[plan.platform]
    limits = EngineLimits.resolve(config, model_max_len=plan.config.max_position_embeddings, defaults=defaults)
    space = plan_space(plan, config, limits, defaults, Progress()).space
    context = program_context(plan)
    programs = all_programs(space)
    return {p.name: (program_key(p, context).digest, hlo_digest(p.lower())) for p in programs}


def test_equal_keys_mean_equal_programs(tmp_path):
    """What a function closes over and no part of the key shows would give two programs one key: change everything and look."""
    model = write_config(tmp_path / "model", num_hidden_layers=1)
    variations: list[dict[str, object]] = [
        {},
        {"num_pages": 40},
        {"page_size": 16},
        {"max_model_len": 64},
        {"max_logprobs": 3},
        {"max_num_seqs": 8, "buckets": ("8x16", "8x1")},
        {"buckets": ("4x32", "4x1")},
        {"attention_backend": "reference"},
        {"tensor_parallel_size": 2},
        {"quantization": "int8"},
        {"quantization": "int8", "tensor_parallel_size": 2},
        {"hf_overrides": {"rope_theta": 100.0}},
        {"hf_overrides": {"vocab_size": 320}},
        {"hf_overrides": {"tie_word_embeddings": False}},
    ]
    seen: dict[str, str] = {}
    for options in variations:
        for name, (key, hlo) in keys_and_hlo(model, **options).items():
            assert seen.setdefault(key, hlo) == hlo, (name, options)
    assert len(set(seen.values())) > 30


def test_a_key_is_the_same_in_another_place(tmp_path):
    one, other = (keys_and_hlo(write_config(tmp_path / name, num_hidden_layers=1)) for name in ("a", "b"))
    assert one == other


def test_a_field_that_no_key_can_describe_is_an_error():
    @dataclasses.dataclass
    class Config:
        width: int
        function: object

    assert describe_config(Config(4, None)) == {"width": "4", "function": "null"}
    with pytest.raises(TypeError, match="no cache key can describe"):
        describe_config(Config(4, object()))
