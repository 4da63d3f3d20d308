"""One program for every layer of a kind does what one program for the whole pass does, to the last bit."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import jax
import numpy as np
import pytest

from buckets import Bucket
from jaxengine.contract.rows import Row, Rows, Sample
from jaxengine.device.layers.schemes.scaled import INT4
from jaxengine.device.runtime import forward, forward_programs, stages
from jaxengine.device.runtime import space as runtime_space
from jaxengine.device.runtime.forward import ForwardPass
from jaxengine.device.runtime.forward_programs import forward_names
from jaxengine.device.runtime.inputs import FlatRows, KeptPlaces, PageTables, pad
from jaxengine.device.runtime.launcher import allocate_state
from jaxengine.device.runtime.space import ProgramSpace
from jaxengine.device.runtime.stages import stage_of
from jaxengine.options.config import EngineConfig
from jaxengine.startup.pool import plan_space
from jaxengine.startup.prepare import prepare
from jaxengine.startup.progress import Progress
from pallas_kernels.scaled_matmul.packed import is_packed
from tests.integration import engines
from tests.integration.engines import SMALL
from tests.quick import slow_but

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
EXPERTS = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
}


def space(directory, changes: dict[str, Any], **options: Any) -> ProgramSpace:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps({**BASE, **changes}))
    options = {**SMALL, "buckets": ("4x16", "4x1", "1x1"), **options}
    config = EngineConfig.from_options(model=str(directory), **options)
    return plan_space(prepare(config, Progress())).space


def whole(space: ProgramSpace, monkeypatch) -> None:
    """From now on the forward pass is one program."""
    monkeypatch.setattr(ProgramSpace, "layer_by_layer", False)


def a_step(space: ProgramSpace, bucket: Bucket) -> np.ndarray:
    """A buffer with tokens in every place, two of them those of slots, in rows with pages of their own."""
    numbers = np.random.default_rng(1)
    rows = []
    groups = space.cache.num_groups
    for number in range(bucket.batch):
        tokens = tuple(numbers.integers(0, space.vocab_size, bucket.seq).tolist())
        decodes = bucket.seq == 1 and number < 2
        rows.append(Row(number + 1, None if decodes else tokens, bucket.seq, 3, Sample()))
    flat = FlatRows.of(Rows(rows))
    kept = KeptPlaces.of(flat)
    tables = PageTables(
        space.max_num_seqs + 1, pages_per_row=space.pages_per_row, page_size=space.page_size, num_groups=groups
    )
    pages = (np.arange(3 * groups * bucket.batch, dtype=np.int32) + 1).reshape(bucket.batch, groups, 3)
    tables.write(enumerate(pages, 1))
    return pad(space.layout(bucket, 3), flat, kept, np.arange(len(kept)), tables, num_sampled=len(kept))


def run(space: ProgramSpace, bucket: Bucket, parameters: Any) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Hidden states, pages, and the names of the programs in the order of their calls."""
    compiled = {program.name: program.lower().compile() for program in forward_programs.forward_programs(space, bucket)}
    called = []

    def call(name: str, *arguments: Any) -> Any:
        called.append(name)
        return compiled[name](*arguments)

    cache, slots = allocate_state(space)
    last_token = slots.last_token.at[:].set(np.arange(5) + 7)
    buffer = jax.device_put(a_step(space, bucket))
    left, cache = ForwardPass(space, parameters).run(call, space.layout(bucket, 3), cache, last_token, [buffer])
    assert isinstance(left, tuple)
    hidden, kept, read = left
    assert len(read) == (0 if space.taps is None else len(space.taps) or 1)
    assert kept.count == bucket.batch
    assert kept.slots.tolist()[: bucket.batch] == list(range(1, bucket.batch + 1))
    return np.asarray(hidden), np.asarray(cache.pages[0]), called


def streams(space: ProgramSpace, bucket: Bucket, parameters: Any) -> tuple[np.ndarray, ...]:
    """What drafts read of a step, and the hidden states of its kept places."""
    compiled = {program.name: program.lower().compile() for program in forward_programs.forward_programs(space, bucket)}
    cache, slots = allocate_state(space)
    step = space.layout(bucket, 3), cache, slots.last_token, [jax.device_put(a_step(space, bucket))]
    (hidden, _, read), _ = ForwardPass(space, parameters).run(lambda name, *given: compiled[name](*given), *step)
    return (*map(np.asarray, read), np.asarray(hidden))


@pytest.mark.slow
def test_what_drafts_read(tmp_path, monkeypatch):
    """Streams before layers and behind the last, or what is normalised of it; in parts as in the whole."""
    planned = space(tmp_path, WINDOWS)
    parameters = random_parameters(planned)
    bucket, places = planned.grid.buckets[0], planned.layout(planned.grid.buckets[0], 3).view
    tapped, normed = (dataclasses.replace(planned, taps=taps) for taps in ((4, 1), ()))
    found = streams(tapped, bucket, parameters)
    last, second, _ = found
    assert last.shape == second.shape == (bucket.tokens, BASE["hidden_size"])
    assert not np.array_equal(last, second)
    whole_pass, hidden = streams(normed, bucket, parameters)
    assert np.array_equal(
        whole_pass[places(a_step(planned, bucket), "kept_places")[: bucket.batch]], hidden[: bucket.batch]
    )
    scale = np.asarray(parameters[list(planned.parameters).index("norm.scale")])
    epsilon = BASE.get("rms_norm_eps", 1e-6)
    expected = last / np.sqrt((last * last).mean(axis=-1, keepdims=True) + epsilon) * scale
    np.testing.assert_allclose(whole_pass, expected, rtol=1e-4, atol=1e-5)
    whole(planned, monkeypatch)
    for one, other in zip(found, streams(tapped, bucket, parameters), strict=True):
        assert np.array_equal(one, other)


def random_parameters(planned: ProgramSpace) -> list[jax.Array]:
    numbers = np.random.default_rng(0)
    return [
        jax.device_put(numbers.normal(scale=0.3, size=struct.shape).astype(struct.dtype))
        for struct in planned.parameters.values()
    ]


@pytest.mark.parametrize(
    ("changes", "kinds"), [pytest.param(LLAMA, [0, 0, 0], marks=pytest.mark.rare), (WINDOWS, [0, 0, 2, 2])]
)
@pytest.mark.slow
def test_the_parts_do_what_the_whole_does(tmp_path, monkeypatch, changes, kinds):
    planned = space(tmp_path, changes)
    parameters = random_parameters(planned)
    for bucket in planned.grid.buckets:
        hidden, pages, called = run(planned, bucket, parameters)
        assert called == [
            f"forward {bucket} begin",
            *(f"forward {bucket} layer {kind}" for kind in kinds),
            f"forward {bucket} end",
        ]
        with monkeypatch.context() as patch:
            whole(planned, patch)
            expected_hidden, expected_pages, called = run(planned, bucket, parameters)
            assert called == [f"forward {bucket}"]
        assert np.array_equal(hidden, expected_hidden)
        assert np.array_equal(pages, expected_pages)
        assert np.ptp(hidden) > 0


@pytest.mark.parametrize("quantization", slow_but(["int4", "int8", None], {"int4"}, often=()))
def test_a_loop_over_layers_that_are_alike_does_what_they_do_one_by_one(tmp_path, monkeypatch, native, quantization):
    """With the products and the attention of the CPU's library, whose arguments a loop finds by their addresses."""
    changes = {**WINDOWS, "use_sliding_window": False, "num_hidden_layers": 3, "torch_dtype": "bfloat16"}
    planned = dataclasses.replace(space(tmp_path, changes, quantization=quantization), native=native)
    if quantization == "int4":  # packed, as a model that calls the library is
        packed = {path: INT4.packed(each) for path, each in planned.parameters.items() if each.dtype == np.uint8}
        assert any(is_packed(each) for each in packed.values())
        planned = dataclasses.replace(planned, parameters={**planned.parameters, **packed})
    parameters = random_parameters(planned)
    many, *few = planned.grid.buckets
    assert len(forward_names(planned, many)) == 3
    for bucket in few if quantization is None else few[:1]:
        hidden, pages, called = run(planned, bucket, parameters)
        assert called == [f"forward {bucket}"]
        with monkeypatch.context() as patch:
            patch.setattr(stages, "loops", lambda space: False)
            expected_hidden, expected_pages, called = run(planned, bucket, parameters)
            assert called[1:-1] == [f"forward {bucket} layer 0"] * 3
        assert np.array_equal(hidden, expected_hidden)
        assert np.array_equal(pages, expected_pages)
        assert np.ptp(hidden.astype(np.float32)) > 0


def test_who_frees_what_a_loop_reads_can_wait_for_it(tmp_path, native):
    planned = dataclasses.replace(space(tmp_path, {**LLAMA, "torch_dtype": "bfloat16"}), native=native)
    assert stages.loops(planned)
    few = planned.grid.buckets[-1]
    parameters = random_parameters(planned)
    given = []

    class Launched:
        waited = 0

        def block_until_ready(self) -> None:
            self.waited += 1
            raise RuntimeError("it failed, which is told to whoever asks for its result")

    launched = Launched()

    def call(name: str, *arguments: Any) -> Any:
        given.append((arguments[0], arguments[-1]))
        return launched, (), None

    passing = ForwardPass(planned, parameters)
    passing.run(call, planned.layout(few), planned.cache_struct, None, [None])
    [(arrays, addresses)] = given
    layers = planned.parts.layers
    assert len(arrays) == len(planned.outer) + len(layers[0]) < len(parameters)
    where = [[parameters[number].unsafe_buffer_pointer() for number in numbers] for numbers in layers]
    assert np.array_equal(np.asarray(addresses).view(np.uintp)[..., 0], where)
    passing.wait()
    assert launched.waited == 1
    del passing
    assert launched.waited == 2


def test_which_layers_can_be_a_loop(tmp_path):
    bfloat16 = {"torch_dtype": "bfloat16"}
    planned = dataclasses.replace(space(tmp_path / "alike", {**LLAMA, **bfloat16}), native="a")
    assert stages.loops(planned)
    others = [dataclasses.replace(planned, **change) for change in ({"native": None}, {"taps": (4, 1)})]
    for name, changes in {
        "windows": {**WINDOWS, **bfloat16},
        "experts": {**LLAMA, **EXPERTS, **bfloat16},
        "float32": LLAMA,
    }.items():
        others.append(dataclasses.replace(space(tmp_path / name, changes), native="a"))
    assert not any(map(stages.loops, others))


@pytest.mark.parametrize("cut", slow_but([1, 3], (), often={3}))
def test_the_pass_may_be_cut_anywhere(tmp_path, monkeypatch, cut):
    """As it will be for layers that lie on other devices."""
    planned = space(tmp_path, WINDOWS)
    parameters = random_parameters(planned)
    bucket = planned.grid.buckets[0]
    expected = run(planned, bucket, parameters)
    halves = (
        stage_of(planned, "below", layers=range(cut), begins=True),
        stage_of(planned, "above", layers=range(cut, 4), ends=True),
    )
    for module in (forward, forward_programs):
        monkeypatch.setattr(module, "stages", lambda space: halves)
    hidden, pages, called = run(planned, bucket, parameters)
    assert called == [f"forward {bucket} below", f"forward {bucket} above"]
    assert np.array_equal(hidden, expected[0])
    assert np.array_equal(pages, expected[1])


@pytest.mark.slow
def test_steps_with_longer_rows_run_programs_of_their_own_that_do_the_same(tmp_path, monkeypatch):
    planned = space(tmp_path, LLAMA)
    parameters = random_parameters(planned)
    bucket = planned.grid.buckets[-1]
    hidden, pages, called = run(planned, bucket, parameters)
    monkeypatch.setattr(runtime_space, "USUAL_CONTEXT", 2 * planned.page_size)
    widened = dataclasses.replace(planned)
    assert [layout.pages_per_row for layout in widened.layouts(bucket)] == [2, planned.pages_per_row]
    found_hidden, found_pages, found_called = run(widened, bucket, parameters)
    assert found_called == [name.replace(f"{bucket}", f"{bucket} wide") for name in called]
    assert np.array_equal(hidden, found_hidden)
    assert np.array_equal(pages, found_pages)


def test_every_parameter_belongs_somewhere_once(tmp_path):
    planned = space(tmp_path, WINDOWS)
    parts = planned.parts
    together = [*parts.outer, *(number for numbers in parts.layers for number in numbers)]
    assert sorted(together) == list(range(len(planned.parameters)))
    names = list(planned.parameters)
    assert {names[number] for number in parts.outer} == {"embed.table", "norm.scale"}


def test_depth_adds_no_programs_and_running_each_once_runs_one_layer_of_a_kind(tmp_path):
    shallow, deep = (space(tmp_path / str(depth), {"num_hidden_layers": depth}) for depth in (1, 12))
    bucket = deep.grid.buckets[0]
    assert forward_names(shallow, bucket) == forward_names(deep, bucket)
    called = []

    def call(name: str, *arguments: Any) -> Any:
        called.append(name)
        return (None, None), (), None

    passing = ForwardPass(deep, [None] * len(deep.parameters))
    passing.run(call, deep.layout(bucket), deep.cache_struct, None, [None], only=30)
    assert called == list(forward_names(deep, bucket))
    assert list(passing.calls(deep.layout(bucket)).values()) == [1, 12, 1]


def test_a_mesh_and_an_accelerator_run_one_program(tmp_path, monkeypatch):
    planned = space(tmp_path, LLAMA)
    bucket = planned.grid.buckets[0]
    assert len(forward_names(planned, bucket)) == 3
    whole(planned, monkeypatch)
    assert forward_names(planned, bucket) == (f"forward {bucket}",)


def test_the_pool_is_donated_to_every_layer(tmp_path):
    planned = space(tmp_path, LLAMA)
    [pages] = planned.kv_pages
    pool = pages.size * pages.dtype.itemsize
    [layer] = [
        program
        for program in forward_programs.forward_programs(planned, planned.grid.buckets[0])
        if "layer" in program.name
    ]
    assert layer.lower().compile().memory_analysis().alias_size_in_bytes >= pool
