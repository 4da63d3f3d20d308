"""Each family's table maps what transformers saves to the model's parameters, one to one."""

from __future__ import annotations

import re

import jax.numpy as jnp
import pytest

from jaxengine.device.layers.sharding import ONE_DEVICE
from jaxengine.device.models.parameters import abstract_model
from jaxengine.device.models.registry import read_config, resolve
from jaxengine.device.weights.matching import match
from jaxengine.device.weights.rules import Ignore
from jaxengine.errors import CheckpointError
from tests.device.models.cases import CASES, Fixture
from tests.quick import slow_but


def assign(fixture, names):
    model_class = resolve(fixture.config)
    config = read_config(model_class, fixture.config)
    _, parameters = abstract_model(model_class, config, dtype=jnp.bfloat16, layout=ONE_DEVICE, platform="cpu")
    return match(names, model_class.WEIGHTS, parameters, config), parameters


@pytest.mark.parametrize("case", CASES)
def test_every_tensor_and_every_parameter_has_its_place(case):
    fixture = Fixture.load(case)
    assignments, parameters = assign(fixture, fixture.shapes)
    targets = [write.target for assignment in assignments for write in assignment.writes]
    assert sorted(targets) == sorted(parameters)
    assert {name for assignment in assignments for name in assignment.sources} == set(fixture.shapes)


@pytest.mark.parametrize("case", slow_but(CASES, list(CASES)[::4]))
def test_a_tensor_too_many_or_too_few_is_an_error(case):
    fixture = Fixture.load(case)
    names = list(fixture.shapes)
    with pytest.raises(CheckpointError, match=r"layers\.1\.surprise"):
        assign(fixture, [*names, "model.layers.1.surprise.weight"])
    with pytest.raises(CheckpointError, match="no tensor of the checkpoint fills"):
        assign(fixture, names[:-1])


@pytest.mark.parametrize(
    ("case", "prefix"),
    [
        ("gpt2", "transformer."),
        ("opt", "model."),
        ("llama-tied-biases-mqa", "model."),
        ("qwen2", "model."),
        ("qwen3", "model."),
        ("qwen3-biases-windows", "model."),
    ],
)
def test_published_files_without_a_prefix_fit_too(case, prefix):
    fixture = Fixture.load(case)
    assignments, parameters = assign(fixture, [name.removeprefix(prefix) for name in fixture.shapes])
    assert sum(len(assignment.writes) for assignment in assignments) == len(parameters)


def test_mixtral_experts_may_be_called_what_llm_compressor_calls_them():
    fixture = Fixture.load("mixtral")
    others = {".w1.": ".gate_proj.", ".w2.": ".down_proj.", ".w3.": ".up_proj."}
    usual, parameters = assign(fixture, fixture.shapes)
    renamed = {name: re.sub(r"\.w[123]\.", lambda found: others[found[0]], name) for name in fixture.shapes}
    found, _ = assign(fixture, renamed.values())
    assert sum(len(assignment.writes) for assignment in found) == len(parameters)
    for before in usual:
        [after] = [
            one for one in found if {write.target for write in one.writes} == {write.target for write in before.writes}
        ]
        assert after.sources == tuple(renamed[name] for name in before.sources)


def test_layers_behind_the_last_are_left_out_as_many_as_the_configuration_says():
    fixture = Fixture.load("deepseek-v3")
    names = [*fixture.shapes, "model.layers.3.eh_proj.weight", "model.layers.3.self_attn.kv_b_proj.weight"]
    assignments, parameters = assign(fixture, names)
    assert sum(len(assignment.writes) for assignment in assignments) == len(parameters)
    with pytest.raises(CheckpointError, match=r"layers\.4\.self_attn"):
        assign(fixture, [*names, "model.layers.4.self_attn.kv_b_proj.weight"])


@pytest.mark.slow
def test_every_row_of_every_table_is_used():
    """A row that no case needs is a row that no test would miss."""
    unused = {}
    for case in CASES:
        fixture = Fixture.load(case)
        model_class = resolve(fixture.config)
        rows = unused.setdefault(
            model_class, {row.target for row in model_class.WEIGHTS if not isinstance(row, Ignore)}
        )
        assignments, _ = assign(fixture, fixture.shapes)
        rows -= {re.sub(r"\.\d+\.", ".*.", write.target) for assignment in assignments for write in assignment.writes}
    assert {model_class.__name__: rows for model_class, rows in unused.items() if rows} == {}
