"""One program for every layer of a kind does what one program for the whole pass does, to the last bit."""

from __future__ import annotations

import json
from typing import Any

import jax
import numpy as np
import pytest

from jaxengine.config import EngineConfig
from jaxengine.engine.limits import EngineLimits
from jaxengine.engine.model_plan import plan_model
from jaxengine.engine.pool import plan_space
from jaxengine.engine.progress import Progress
from jaxengine.runtime.forward import ForwardPass, forward_names, forward_programs
from jaxengine.runtime.runner import allocate_kv_pages
from jaxengine.runtime.space import ProgramSpace
from jaxengine.runtime.target import DEFAULTS
from tests.integration import engines
from tests.integration.engines import SMALL

BASE = {key: value for key, value in engines.LLAMA.items() if key != "mlp_bias"}  # which Qwen3 does not have
LLAMA = {"num_hidden_layers": 3}
WINDOWS = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "num_hidden_layers": 4,
    "use_sliding_window": True,
    "sliding_window": 5,
    "max_window_layers": 2,
}


def space(directory, changes: dict[str, Any]) -> ProgramSpace:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps({**BASE, **changes}))
    options = {**SMALL, "buckets": ("4x16", "4x1", "4x16+4")}
    config = EngineConfig.from_options(model=str(directory), **options)
    model = plan_model(config)
    limits = EngineLimits.resolve(config, model_max_len=256, defaults=DEFAULTS["cpu"])
    return plan_space(model, config, limits, DEFAULTS["cpu"], Progress()).space


def whole(space: ProgramSpace, monkeypatch) -> None:
    """From now on the forward pass is one program."""
    monkeypatch.setattr(ProgramSpace, "layer_by_layer", False)


def a_step(space: ProgramSpace, shape: Any) -> np.ndarray:
    """A buffer with tokens in every place, over pages of their own."""
    numbers, layout = np.random.default_rng(1), space.layout(shape)
    buffer, page = np.zeros(layout.size, np.int32), 1
    for block in layout.blocks:
        offset = block.offset
        for name, extents in block.fields:
            if name == "tokens":
                values = numbers.integers(0, space.vocab_size, extents)
            elif name == "page_table":
                values = np.zeros(extents, np.int64)
                values[:, :3] = page + np.arange(3 * extents[0]).reshape(-1, 3)
                page += 3 * extents[0]
            else:
                values = np.full(extents, 3 if name == "starts" else block.bucket.seq)
            size = int(np.prod(extents))
            buffer[offset : offset + size] = values.reshape(-1)
            offset += size
    buffer[layout.sampled_offset :] = numbers.integers(0, shape.tokens, layout.sampled_rows)
    return buffer


def run(space: ProgramSpace, shape: Any, parameters: Any) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Hidden states, pages, and the names of the programs in the order of their calls."""
    compiled = {program.name: program.lower().compile() for program in forward_programs(space, shape)}
    called = []

    def call(name: str, *arguments: Any) -> Any:
        called.append(name)
        return compiled[name](*arguments)

    buffer = jax.device_put(a_step(space, shape))
    hidden, pages = ForwardPass(space, parameters).run(call, shape, allocate_kv_pages(space), buffer)
    return np.asarray(hidden), np.asarray(pages), called


@pytest.mark.parametrize(("changes", "kinds"), [(LLAMA, [0, 0, 0]), (WINDOWS, [0, 0, 2, 2])])
def test_the_parts_do_what_the_whole_does(tmp_path, monkeypatch, changes, kinds):
    planned = space(tmp_path, changes)
    numbers = np.random.default_rng(0)
    parameters = [
        jax.device_put(numbers.normal(scale=0.3, size=struct.shape).astype(struct.dtype))
        for struct in planned.parameters.values()
    ]
    for shape in planned.grid.shapes:
        hidden, pages, called = run(planned, shape, parameters)
        assert called == [
            f"forward {shape} begin",
            *(f"forward {shape} layer {kind}" for kind in kinds),
            f"forward {shape} end",
        ]
        with monkeypatch.context() as patch:
            whole(planned, patch)
            expected_hidden, expected_pages, called = run(planned, shape, parameters)
            assert called == [f"forward {shape}"]
        assert np.array_equal(hidden, expected_hidden)
        assert np.array_equal(pages, expected_pages)
        assert np.ptp(hidden) > 0


def test_every_parameter_belongs_somewhere_once(tmp_path):
    planned = space(tmp_path, WINDOWS)
    parts = planned.parts
    together = [*parts.outer, *(number for numbers in parts.layers for number in numbers)]
    assert sorted(together) == list(range(len(planned.parameters)))
    names = list(planned.parameters)
    assert {names[number] for number in parts.outer} == {"embed.table", "norm.scale"}


def test_depth_adds_no_programs_and_running_each_once_runs_one_layer_of_a_kind(tmp_path):
    shallow, deep = (space(tmp_path / str(depth), {"num_hidden_layers": depth}) for depth in (1, 12))
    shape = deep.grid.shapes[0]
    assert forward_names(shallow, shape) == forward_names(deep, shape)
    called = []

    def call(name: str, *arguments: Any) -> Any:
        called.append(name)
        return None if name.endswith("end") else (None, None)

    ForwardPass(deep, [None] * len(deep.parameters)).run(call, shape, None, None, once=True)
    assert called == list(forward_names(deep, shape))


def test_a_mesh_and_an_accelerator_run_one_program(tmp_path, monkeypatch):
    planned = space(tmp_path, LLAMA)
    shape = planned.grid.shapes[0]
    assert len(forward_names(planned, shape)) == 3
    whole(planned, monkeypatch)
    assert forward_names(planned, shape) == (f"forward {shape}",)


def test_the_pool_is_donated_to_every_layer(tmp_path):
    planned = space(tmp_path, LLAMA)
    pool = planned.kv_pages.size * planned.kv_pages.dtype.itemsize
    [layer] = [program for program in forward_programs(planned, planned.grid.shapes[0]) if "layer" in program.name]
    assert layer.lower().compile().memory_analysis().alias_size_in_bytes >= pool
