"""What is kept is found by key, or by HLO where only source code differs, and a miss says what was new."""

from __future__ import annotations

import dataclasses
import threading
from contextlib import nullcontext

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.compilation_cache import compilation_cache

from tests.xla_cache.small import cache, expected, result, scaled
from xla_cache import CompileCounter, Program, ProgramCache, Store, build_programs, compile_programs, compiler, obtain
from xla_cache.errors import RefusedError
from xla_cache.jax_cache import hits


def test_a_second_start_compiles_nothing(tmp_path):
    programs = [scaled(factor) for factor in (2, 3, 4)]
    first = compile_programs(programs, cache=cache(tmp_path / "xla"))
    assert {record.origin for _, record in first.values()} == {"compiler"}
    with CompileCounter() as counter:
        second = compile_programs(programs, cache=cache(tmp_path / "xla"))
        assert {record.origin for _, record in second.values()} == {"store"}
    assert counter.count == 0
    assert [result(second[f"scale {factor}"][0]) for factor in (2, 3, 4)] == [expected(f) for f in (2, 3, 4)]


@pytest.mark.parametrize("change", ["source_code", "model_width", "versions_flax"])
def test_equal_hlo_is_found_whatever_traced_it(tmp_path, change):
    obtain(scaled(3), cache(tmp_path / "xla"))
    for origin_traced in (True, False):
        with CompileCounter() as counter:
            compiled, record = obtain(scaled(3), cache(tmp_path / "xla", **{change: "other"}))
        assert counter.count == 0
        assert record.origin == "store"
        assert (record.lower_s > 0) == origin_traced  # the second time its new key is known
        assert result(compiled) == expected(3)


@pytest.mark.parametrize(
    ("change", "value"),
    [
        ("versions_jaxlib", "0.0.1"),
        ("versions_jax", "0.0.1"),
        ("versions_libtpu", "0.0.1"),
        ("target_device_kind", "TPU v9"),
        ("target_devices", "8"),
        ("target_cpu", "x86_64 other"),
        ("flags_XLA_FLAGS", "--xla_other"),
        ("settings_jax_enable_x64", "True"),
    ],
)
def test_another_compiler_or_target_is_a_miss_that_says_so(tmp_path, change, value):
    obtain(scaled(3), cache(tmp_path / "xla"))
    compiled, record = obtain(scaled(3), cache(tmp_path / "xla", **{change: value}))
    assert record.origin == "compiler"
    assert record.missed.startswith(f"{change.replace('_', '.', 1)}: {value} here, ")
    assert result(compiled) == expected(3)


def test_a_miss_is_explained_by_the_nearest_program(tmp_path):
    assert obtain(scaled(3), cache(tmp_path / "xla"))[1].missed == "nothing is kept yet"
    assert obtain(scaled(4), cache(tmp_path / "xla"))[1].missed == "no program 'scale 4' is kept"
    _, record = obtain(scaled(5, name="scale 4"), cache(tmp_path / "xla"))
    assert record.missed == "fact.factor: 5 here, 4 there"
    _, record = obtain(scaled(5, name="scale 4"), cache(tmp_path / "xla", versions_jaxlib="9", model_width="8"))
    assert record.missed.startswith("model.width: 8 here, 4 there; versions.jaxlib: 9 here, ")


def test_a_fact_that_changes_the_program_changes_the_executable(tmp_path):
    for factor in (3, 4):
        assert result(obtain(scaled(factor, name="same"), cache(tmp_path / "xla"))[0]) == expected(factor)


def test_equal_hlo_with_other_output_names_is_not_the_same_program(tmp_path):
    struct = (jax.ShapeDtypeStruct((3,), jnp.float32),)
    one = Program("named", lambda x: {"one": x * 2}, struct)
    other = dataclasses.replace(one, function=lambda x: {"other": x * 2})
    obtain(one, cache(tmp_path / "xla"))
    compiled, record = obtain(other, cache(tmp_path / "xla", source_code="b"))
    assert record.origin == "compiler"
    assert set(compiled(jnp.ones(3))) == {"other"}


def test_variants_with_equal_hlo_keep_their_own_entries(tmp_path):
    obtain(scaled(3, name="a"), cache(tmp_path / "xla"))
    assert obtain(scaled(3, name="b"), cache(tmp_path / "xla"))[1].origin == "compiler"


def test_outputs_of_unnamed_classes_run_and_are_not_kept(tmp_path, caplog):
    program = dataclasses.replace(scaled(3), nodes=())
    compiled, record = obtain(program, cache(tmp_path / "xla"))
    assert result(compiled) == expected(3)
    assert record.kept is None
    assert "Program.nodes" in caplog.text


@pytest.fixture
def jax_cache(tmp_path):
    """JAX's own disk cache, on and in use."""
    settings = {
        "jax_compilation_cache_dir": str(tmp_path / "jax"),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    previous = {name: getattr(jax.config, name) for name in settings}
    for name, value in settings.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()
    yield tmp_path / "jax"
    for name, value in previous.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


def test_what_is_kept_did_not_come_out_of_jax_own_disk_cache(tmp_path, jax_cache):
    """Such an executable, serialised again, loads and then fails when it is called."""
    scaled(7).lower().compile()
    assert list(jax_cache.iterdir())
    kept, _ = obtain(scaled(7), cache(tmp_path / "xla"))
    assert result(kept) == expected(7)
    loaded, record = obtain(scaled(7), cache(tmp_path / "xla"))
    assert record.origin == "store"
    assert result(loaded) == expected(7)
    again, _ = obtain(scaled(7))  # without a store JAX's cache serves as ever
    assert hits() > 0
    assert result(again) == expected(7)


def test_what_came_out_of_it_all_the_same_is_not_kept(tmp_path, jax_cache, monkeypatch):
    scaled(7).lower().compile()
    monkeypatch.setattr(compiler, "without_jax_cache", nullcontext)
    compiled, record = obtain(scaled(7), cache(tmp_path / "xla"))
    assert record.kept is None
    assert result(compiled) == expected(7)


def test_a_build_goes_on_where_it_was(tmp_path):
    programs = [scaled(factor) for factor in (2, 3, 4)]
    build_programs(programs[:2], cache(tmp_path / "xla"))
    [file] = list((tmp_path / "xla" / "objects").iterdir())[:1]
    file.write_bytes(b"damaged")
    records = build_programs(programs, cache(tmp_path / "xla"))
    assert sorted(record.origin for record in records) == ["compiler", "compiler", "store"]
    assert {record.origin for record in build_programs(programs, cache(tmp_path / "xla"))} == {"store"}


def test_many_threads_of_two_builders_agree(tmp_path):
    programs = [scaled(factor) for factor in range(2, 10)]
    failures = []

    def build() -> None:
        try:
            build_programs(programs, cache(tmp_path / "xla"), threads=2)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=build) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    done = compile_programs(programs, cache=cache(tmp_path / "xla"))
    assert {record.origin for _, record in done.values()} == {"store"}
    assert all(result(done[f"scale {factor}"][0]) == expected(factor) for factor in range(2, 10))


def test_a_required_bundle_that_lacks_a_program_is_an_error(tmp_path):
    other = Store.open(tmp_path / "other")
    obtain(scaled(3), ProgramCache(cache(tmp_path).context, store=other))
    required = ProgramCache(cache(tmp_path).context, bundle=other, require_bundle=True)
    assert obtain(scaled(3), required)[1].origin == "bundle"
    assert required.expect([scaled(3), scaled(4)]) == ["scale 4"]
    with pytest.raises(RefusedError, match="no program 'scale 4'"):
        obtain(scaled(4), required)


def test_a_preferred_bundle_comes_first_and_the_store_next(tmp_path):
    bundle, store = Store.open(tmp_path / "bundle"), Store.open(tmp_path / "store")
    shared = cache(tmp_path).context
    for factor, places in ((2, [bundle, store]), (3, [bundle]), (4, [store])):
        for place in places:
            obtain(scaled(factor), ProgramCache(shared, store=place))
    both = ProgramCache(shared, bundle=bundle, store=store)
    done = compile_programs([scaled(factor) for factor in (2, 3, 4, 5)], cache=both)
    assert {name: record.origin for name, (_, record) in done.items()} == {
        "scale 2": "bundle",
        "scale 3": "bundle",
        "scale 4": "store",
        "scale 5": "compiler",
    }
