"""The second start loads what the first compiled, from the store or from a bundle, and answers the same."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import pytest

from jaxengine.device.runtime import launcher
from jaxengine.errors import BundleError
from jaxengine.options.config import EngineConfig
from jaxengine.startup import program_context
from jaxengine.startup.build import Engine, build_engine
from jaxengine.tools.cache import export_start, import_bundle, list_starts
from jaxengine.tools.compile_ahead import compile_ahead
from tests.integration import engines
from tests.integration.engines import greedy, run, token_ids
from xla_cache import Store
from xla_cache.store import object_name

pytestmark = pytest.mark.usefixtures("quick_engines")

SMALL = {**engines.SMALL, "buckets": ("4x16", "4x1")}
PROMPTS = [[5, 6, 7], list(range(3, 40)), [9] * 17]


def write_config(directory: Path, **changes: Any) -> Path:
    return engines.write_config(directory, **{"num_hidden_layers": 1, **changes})


def start(model: Path, **options: Any) -> Engine:
    return engines.start(model, **{"buckets": SMALL["buckets"], **options})


def answers(engine: Engine) -> list[tuple[int, ...]]:
    """Greedy tokens of the engine, which compiled nothing to give them, and is closed."""
    tokens = token_ids(run(engine, PROMPTS, greedy(8)))
    assert engine.compile_counter.count == 0
    engine.close()
    return tokens


def origins(engine: Engine) -> dict[str, str]:
    return {record.name: record.origin for record in engine.programs}


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """A model, a store that one start filled, and what that start answered. No test writes to this store."""
    place = tmp_path_factory.mktemp("kept")
    model, store = write_config(place / "model"), str(place / "store")
    engine = start(model, xla_cache_path=store)
    assert set(origins(engine).values()) == {"compiler"}
    return model, store, answers(engine)


@pytest.fixture
def kept(first, tmp_path):
    """The same with a store of the test's own: a start leaves its record, which another test might export."""
    model, store, tokens = first
    return model, shutil.copytree(store, tmp_path / "store"), tokens


def test_a_second_start_compiles_nothing_and_answers_the_same(kept, caplog):
    model, store, tokens = kept
    with caplog.at_level("INFO", logger="jaxengine"):
        engine = start(model, xla_cache_path=str(store))
    assert set(origins(engine).values()) == {"store"}
    assert answers(engine) == tokens
    assert any("from the store" in record.message for record in caplog.records)


def test_the_place_of_the_model_says_nothing(kept, tmp_path):
    _, store, tokens = kept
    engine = start(write_config(tmp_path / "elsewhere"), xla_cache_path=str(store))
    assert set(origins(engine).values()) == {"store"}
    assert answers(engine) == tokens


@pytest.mark.slow
def test_another_pool_compiles_only_what_sees_the_pool(kept):
    model, store, tokens = kept
    engine = start(model, xla_cache_path=str(store), num_pages=40)
    compiled = {name for name, origin in origins(engine).items() if origin == "compiler"}
    assert {name.split()[0] for name in compiled} == {"forward"}
    assert all("fact.num_pages: (40,) here, " in record.missed for record in engine.programs if record.name in compiled)
    assert answers(engine) == tokens


@pytest.mark.slow
def test_another_model_is_never_given_these_programs(kept, tmp_path):
    _, store, tokens = kept
    model = write_config(tmp_path / "other", rope_theta=100.0)
    alone = answers(start(model, xla_cache_path="off"))
    engine = start(model, xla_cache_path=str(store))
    compiled = [record for record in engine.programs if record.origin == "compiler"]
    # Angles are made where a pass begins; the layers take them as they are, and so are the same program.
    assert {record.name.split()[-1] for record in compiled} == {"begin"}
    assert all(record.missed.startswith("model.rope: ") for record in compiled)
    assert origins(engine)["write settings"] == "store"
    assert answers(engine) == alone != tokens


@pytest.mark.slow
def test_changed_source_of_the_same_programs_is_lowered_and_found(kept, monkeypatch):
    model, store, tokens = kept
    digests = program_context.source_digests
    monkeypatch.setattr(program_context, "source_digests", lambda *modules: dict.fromkeys(digests(*modules), "changed"))
    for lowered in (True, False):
        engine = start(model, xla_cache_path=str(store))
        assert set(origins(engine).values()) == {"store"}
        assert any(record.lower_s > 0 for record in engine.programs) == lowered
        assert answers(engine) == tokens


@pytest.mark.slow
def test_a_mesh_is_kept_too(first, tmp_path):
    model, _, _ = first
    options = {"xla_cache_path": str(tmp_path / "store"), "tensor_parallel_size": 2}
    tokens = answers(start(model, **options))
    engine = start(model, **options)
    assert set(origins(engine).values()) == {"store"}
    assert answers(engine) == tokens


def test_a_store_that_cannot_be_written_stops_nothing(first, tmp_path, caplog):
    model, _, tokens = first
    (tmp_path / "file").touch()
    engine = start(model, xla_cache_path=str(tmp_path / "file"), warmup="none")
    assert token_ids(run(engine, PROMPTS, greedy(8))) == tokens
    engine.close()
    assert "cannot be written" in caplog.text


def test_a_loaded_program_that_does_not_run_is_compiled(kept, monkeypatch, caplog):
    model, store, tokens = kept
    failed = []
    original = launcher.Launcher.call

    def fail_once(self: Any, name: str, *arguments: Any) -> Any:
        if not failed and "layer" in name:
            failed.append(name)
            self.cache.pages[0].delete()  # as a call does that fails after it took its donated argument
            raise RuntimeError("NOT_FOUND: Function fusion not found")
        return original(self, name, *arguments)

    monkeypatch.setattr(launcher.Launcher, "call", fail_once)
    engine = start(model, xla_cache_path=str(store))
    assert answers(engine) == tokens
    assert f"the executable of {failed[0]!r} was loaded and does not run: NOT_FOUND" in caplog.text
    assert set(origins(start(model, xla_cache_path=str(store))).values()) == {"store"}


# bundles


def from_bundle(model: Path, bundle: Path, **options: Any) -> Engine:
    """An engine that is told only what no bundle can know: everything else it takes from there."""
    given = {"load_format": "dummy", "skip_tokenizer_init": True, "xla_cache_path": "off", **options}
    return build_engine(EngineConfig.from_options(model=str(model), bundle=str(bundle), **given))


@pytest.fixture(scope="module", params=["compiled", "exported.zip"])
def bundle(first, tmp_path_factory, request):
    """Made by `jaxengine compile`, which has no weights, or by `jaxengine cache export` from what a start kept."""
    model, store, _ = first
    path = tmp_path_factory.mktemp("bundle") / request.param
    if path.suffix == ".zip":
        export_start(str(model), path, Path(store))
    else:
        compile_ahead(EngineConfig.from_options(model=str(model), **SMALL), "local", path)
    return path


@pytest.mark.slow
def test_a_bundle_brings_its_options(first, bundle):
    model, _, tokens = first
    engine = from_bundle(model, bundle)
    assert set(origins(engine).values()) == {"bundle"}
    assert {str(bucket) for bucket in engine.space.grid.buckets} == set(SMALL["buckets"])
    assert engine.limits.max_model_len == SMALL["max_model_len"]
    assert answers(engine) == tokens


def test_options_that_say_the_same_are_welcome(first, bundle):
    model, _, tokens = first
    options = {name: value for name, value in SMALL.items() if name != "max_model_len"}
    assert answers(from_bundle(model, bundle, max_model_len="128", **options)) == tokens


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"buckets": ("2x16", "4x1"), "bucket_planner": "explicit"}, r"buckets: \('2x16', '4x1'\) here, .*'4x16'"),
        ({"page_size": 16}, "page_size: 16 here, 8 there"),
        ({"num_pages": 33}, "num_pages: 33 here, "),
        ({"max_model_len": 64}, "max_model_len: 64 here, 128 there"),
        ({"max_logprobs": 5}, "max_logprobs: 5 here, its default there"),
        ({"hf_overrides": {"rope_theta": 5.0}}, "hf_overrides: "),
        ({"tensor_parallel_size": 2}, "tensor_parallel_size: 2 here, its default there"),
        ({"dtype": "bfloat16"}, "dtype: 'bfloat16' here, its default there"),
    ],
)
def test_other_options_are_refused_with_both_values(first, bundle, options, message):
    model, _, _ = first
    with pytest.raises(BundleError, match=message) as refused:
        from_bundle(model, bundle, **options)
    assert "jaxengine compile" in str(refused.value)
    assert "--bundle-policy prefer" in str(refused.value)


def test_another_model_is_refused_by_the_fields_that_differ(bundle, tmp_path):
    with pytest.raises(BundleError, match=r"model\.num_layers: 3 here, 1 there"):
        from_bundle(write_config(tmp_path, num_hidden_layers=3), bundle)


INSTRUCT = {"eos_token_id": [2, 7, 8], "bos_token_id": 3, "pad_token_id": 0, "max_position_embeddings": 200}
"""In what an Instruct checkpoint's config.json may differ from the base model's."""


def test_a_bundle_of_a_base_model_serves_its_instruct_sibling(first, bundle, tmp_path):
    _, _, tokens = first
    engine = from_bundle(write_config(tmp_path, **INSTRUCT), bundle)
    assert set(origins(engine).values()) == {"bundle"}
    assert answers(engine) == tokens


@pytest.mark.slow
def test_a_bundle_with_a_longer_context_than_a_siblings_is_refused(tmp_path):
    base, options = write_config(tmp_path / "base"), {**SMALL, "max_model_len": None}
    compile_ahead(EngineConfig.from_options(model=str(base), **options), "local", tmp_path / "bundle")
    with pytest.raises(BundleError, match="serves 256 tokens of context, and this model has 200 positions"):
        from_bundle(write_config(tmp_path / "instruct", **INSTRUCT), tmp_path / "bundle")


@pytest.mark.slow
def test_prefer_compiles_what_does_not_fit(first, tmp_path, caplog):
    built_for, store, tokens = first
    export_start(str(built_for), tmp_path / "bundle", Path(store))
    model = write_config(tmp_path / "other", rope_theta=100.0)
    with caplog.at_level(logging.WARNING):
        engine = from_bundle(model, tmp_path / "bundle", bundle_policy="prefer")
    assert "model.rope: " in caplog.text
    assert answers(engine) != tokens


@pytest.mark.parametrize("policy", ["require", "prefer"])
def test_a_damaged_bundle(first, tmp_path, policy, caplog):
    model, store, tokens = first
    path = tmp_path / "bundle"
    manifest = export_start(str(model), path, Path(store))
    damaged = path / object_name(next(r.file for r in manifest.records if r.program.startswith("forward")))
    damaged.write_bytes(damaged.read_bytes()[:-1])
    if policy == "require":
        with pytest.raises(BundleError, match=r"changed or damaged.*Rebuild it: jaxengine compile"):
            from_bundle(model, path)
    else:
        engine = from_bundle(model, path, bundle_policy="prefer")
        assert sorted(set(origins(engine).values())) == ["bundle", "compiler"]
        assert answers(engine) == tokens


def test_an_imported_bundle_is_found_by_any_start(first, bundle, tmp_path):
    model, _, tokens = first
    store = tmp_path / "fresh"
    assert import_bundle(bundle, store, None) == len(list(Store.open(store).records()))
    engine = start(model, xla_cache_path=str(store))
    assert set(origins(engine).values()) == {"store"}
    assert answers(engine) == tokens
    lines = list(list_starts(store))
    assert str(model) in lines[1]
    assert "MB" in lines[1]


def test_what_is_not_there_is_told(first, tmp_path):
    model, store, _ = first
    with pytest.raises(BundleError, match="there is no bundle"):
        from_bundle(model, tmp_path / "nothing")
    with pytest.raises(BundleError, match=r"no start 'other'; it has .*model"):
        export_start("other", tmp_path / "x", Path(store))
    with pytest.raises(BundleError, match="no bundle is given"):
        start(model, bundle_key="key.pem")
