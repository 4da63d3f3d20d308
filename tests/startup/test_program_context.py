"""Every number that a program depends on is in its key, and none that differs from machine to machine without need."""

from __future__ import annotations

import dataclasses
import os
import shutil
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxengine.device.layers.context import ModelContext
from jaxengine.device.models.config.decoder_config import DecoderConfig
from jaxengine.device.models.families.qwen3 import Qwen3ForCausalLM
from jaxengine.device.models.registry import read_config, resolve
from jaxengine.device.runtime.programs import all_programs
from jaxengine.device.runtime.space import ProgramSpace
from jaxengine.options.config import EngineConfig
from jaxengine.startup.model_plan import ModelPlan
from jaxengine.startup.pool import plan_space
from jaxengine.startup.prepare import prepare
from jaxengine.startup.program_context import PACKAGES, describe_config, program_context, traced
from jaxengine.startup.progress import Progress
from tests.device.models.cases import CASES, Fixture
from tests.integration.engines import SMALL, write_config
from xla_cache import program_key, source_digests, sources
from xla_cache.cache import hlo_digest

ROOT = Path(__file__).resolve().parents[2]


def small_space(model: Path, **options: object) -> tuple[ModelPlan, ProgramSpace]:
    """The programs of a small engine."""
    config = EngineConfig.from_options(model=str(model), **{**SMALL, "buckets": ("4x16", "4x1"), **options})
    prepared = prepare(config, Progress(), weights=True)
    return prepared.model, plan_space(prepared).space


def keys_and_hlo(model: Path, **options: object) -> dict[str, tuple[str, str]]:
    """Key digest and HLO digest of every program of a small engine."""
    plan, space = small_space(model, **options)
    context = program_context(plan)
    programs = all_programs(space)
    return {p.name: (program_key(p, context).digest, hlo_digest(p.lower())) for p in programs}


@pytest.mark.slow
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


@pytest.mark.slow
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


def test_all_code_that_tracing_runs_is_in_the_key(tmp_path):
    plan, space = small_space(write_config(tmp_path / "model", num_hidden_layers=1))
    ran: set[str] = set()

    def remember(frame: FrameType, event: str, argument: object) -> None:
        ran.add(frame.f_code.co_filename)  # each call of Python code, and no line of it: nothing is given back

    programs, before = all_programs(space), sys.gettrace()
    sys.settrace(remember)
    try:
        for program in programs:
            program.lower()
    finally:
        sys.settrace(before)
    ours = {Path(name) for name in ran if any(Path(name).is_relative_to(ROOT / package) for package in PACKAGES)}
    # it listens to JAX where an engine has been in this process, and traces nothing
    ours.discard(ROOT / "xla_cache/events.py")
    assert ROOT / "jaxengine/device/layers/linear.py" in ours
    assert ours <= set(sources.closure(traced(plan.model_class), PACKAGES).values())


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("copied")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, place / package, ignore=shutil.ignore_patterns("__pycache__", "checkpoint"))
    return place


@pytest.mark.parametrize(
    ("file", "part"),
    [
        ("jaxengine/device/runtime/forward_programs.py", "source.jaxengine.device.runtime"),
        ("jaxengine/device/layers/linear.py", "source.jaxengine.device.layers"),
        ("jaxengine/device/models/families/qwen3.py", "source.jaxengine.device.models.families"),
        pytest.param("jaxengine/device/models/families/gpt2.py", None, marks=pytest.mark.slow),  # another family
        pytest.param("jaxengine/device/sampling/slots.py", "source.jaxengine.device.sampling", marks=pytest.mark.slow),
        ("jaxengine/contract/sampling_params.py", "source.jaxengine.contract"),  # MAX_LOGIT_BIAS
        pytest.param("jaxengine/contract/batch.py", "source.jaxengine.contract", marks=pytest.mark.slow),
        ("pallas_kernels/paged_attention/tpu_kernel.py", "source.pallas_kernels.paged_attention"),
        pytest.param("buckets/shape.py", "source.buckets", marks=pytest.mark.slow),
        pytest.param("buckets/planners.py", None, marks=pytest.mark.slow),
        pytest.param("xla_cache/program.py", "source.xla_cache", marks=pytest.mark.slow),
        pytest.param("xla_cache/store.py", None, marks=pytest.mark.slow),
        ("jaxengine/server/app.py", None),
        ("jaxengine/host/scheduler/scheduler.py", None),
        pytest.param("jaxengine/host/engine/core.py", None, marks=pytest.mark.slow),
        pytest.param("jaxengine/startup/build.py", None, marks=pytest.mark.slow),
        pytest.param("jaxengine/options/config.py", None, marks=pytest.mark.slow),
    ],
)
def test_source_counts_where_programs_are_traced_from_it(copied, monkeypatch, file, part):
    monkeypatch.setattr(sources, "_folder", lambda package: copied / package)

    def digests() -> set[tuple[str, str]]:
        source_digests.cache_clear()
        return set(source_digests(traced(Qwen3ForCausalLM), PACKAGES).items())

    before = digests()
    path = copied / file
    path.write_text(path.read_text() + "\nCHANGED = 1\n")
    os.utime(path, (1, 1))
    after = digests()
    source_digests.cache_clear()
    assert {name for name, _ in before ^ after} == ({part} if part else set())


def fields_read(case: str) -> tuple[set[str], type[DecoderConfig]]:
    """The fields of its configuration that a family's class reads while it is made and traced, and the configuration's class."""
    values = Fixture.load(case).config
    model_class = resolve(values)
    config = read_config(model_class, values)
    read: set[str] = set()

    class Watched(type(config)):
        def __getattribute__(self, name: str) -> Any:
            read.add(name)
            return super().__getattribute__(name)

    watched = object.__new__(Watched)
    vars(watched).update(vars(config))

    def ends(tokens: jax.Array) -> jax.Array:
        model = model_class(watched, ModelContext(dtype=jnp.dtype(jnp.float32), platform="cpu"))
        assert model.cache
        x, _ = model.embed_tokens(tokens, tokens)
        return model.logits(model.final_norm(x))

    jax.eval_shape(ends, jnp.zeros(4, jnp.int32))
    return read & {field.name for field in dataclasses.fields(config)}, type(config)


@pytest.mark.slow
def test_keys_have_what_families_read_and_nothing_else() -> None:
    """But for the length of a table of positions: it shows in the shape of a parameter, which every key has.

    Kinds of texts are what encoders have, and a tower, sight and the padding of pictures' places what models that see have: none
    of these cases is one.
    """
    all_read, all_keyed = {"text_kinds", "tower", "sight", "padding"}, set()
    for case in CASES:
        read, config_class = fields_read(case)
        keyed = {field.name for field in dataclasses.fields(config_class) if field.metadata.get("traced", True)}
        assert read - keyed <= {"max_position_embeddings"}, case
        all_read |= read
        all_keyed |= keyed
    assert all_keyed <= all_read
