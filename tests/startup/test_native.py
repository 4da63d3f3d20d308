"""Whose matrix products a start's programs are traced with, and that their keys say so."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from jaxengine.device.runtime.target import find_target
from jaxengine.options.config import EngineConfig
from jaxengine.startup import native as subject
from jaxengine.startup import native_libraries
from jaxengine.startup.model_plan import ModelPlan, plan_model
from jaxengine.startup.native import obtain_native
from jaxengine.startup.program_context import NATIVE, program_context
from jaxengine.startup.progress import Progress
from jaxengine.tools import doctor
from pallas_kernels.native import ATTENTION, PRODUCT, SOURCES, SYMBOLS, registered_name
from tests.integration.engines import SMALL, write_config
from xla_cache import LinkError


def planned(tmp_path: Any, **options: Any) -> tuple[EngineConfig, ModelPlan]:
    config = EngineConfig.from_options(model=str(write_config(tmp_path)), **{**SMALL, **options})
    return config, plan_model(config)


@pytest.fixture(autouse=True)
def any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "MIN_WEIGHT_BYTES", 0)


def bundle(**context: str) -> Any:
    return SimpleNamespace(manifest=SimpleNamespace(context=context))


def test_one_cpu_device_of_this_machine_has_its_own(tmp_path, native):
    config, model = planned(tmp_path)
    assert obtain_native(config, model, Progress()) == native
    assert obtain_native(config, replace(model, target=find_target("cpu")), Progress()) is None
    assert obtain_native(config, replace(model, platform="tpu"), Progress()) is None
    assert obtain_native(*planned(tmp_path, tensor_parallel_size=2), Progress()) is None
    assert obtain_native(*planned(tmp_path, xla_cache_path="off"), Progress()) is None


def test_a_small_model_builds_nothing(tmp_path, monkeypatch):
    config, model = planned(tmp_path)
    size = sum(struct.size * struct.dtype.itemsize for struct in model.parameters.values())
    monkeypatch.setattr(subject, "find_native", lambda directory: SimpleNamespace(identity=str(directory)))
    monkeypatch.setattr(subject, "MIN_WEIGHT_BYTES", size)
    assert obtain_native(config, model, Progress()) == str(native_libraries.native_directory())
    monkeypatch.setattr(subject, "MIN_WEIGHT_BYTES", size + 1)
    assert obtain_native(config, model, Progress()) is None


def test_a_bundle_is_started_with_what_it_was_compiled_with(tmp_path, native):
    config, model = planned(tmp_path)
    assert obtain_native(config, model, Progress(), bundle()) is None
    assert obtain_native(config, model, Progress(), bundle(**{NATIVE: native})) == native


@pytest.mark.slow
def test_a_bundle_that_was_compiled_with_them_starts_where_nothing_is_kept(tmp_path, native, monkeypatch):
    monkeypatch.setenv("JAXENGINE_CACHE_DIR", str(tmp_path / "cache"))
    config, model = planned(tmp_path, xla_cache_path="off")
    assert obtain_native(config, model, Progress(), bundle(**{NATIVE: native})) == native
    assert not (tmp_path / "cache").exists()


def test_keys_name_them(tmp_path):
    _, model = planned(tmp_path)
    assert NATIVE not in program_context(model)
    assert program_context(replace(model, native="a"))[NATIVE] == "a"


def test_without_a_compiler_xla_multiplies_and_both_log_and_doctor_say_so(tmp_path, monkeypatch, caplog):
    config, model = planned(tmp_path)
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert obtain_native(config, model, Progress()) is None
    (record,) = caplog.records
    assert "matrix products and attention are XLA's, which are slower" in record.message
    assert "apt install g++" in record.message
    assert "apt install g++" in doctor._compiler()


@pytest.mark.slow
def test_a_program_that_calls_them_is_loaded_by_another_process(tmp_path, native):
    child = """
import sys, jax, jax.numpy as jnp
from pathlib import Path
from jaxengine.startup.native_libraries import find_native, native_directory
from pallas_kernels import matmul
from pallas_kernels.native import calling
from xla_cache import Program, ProgramCache, Store, obtain
libraries = find_native(native_directory())
def function(x, weight):
    with calling(libraries.identity):
        return matmul(x, weight, platform="cpu")
structs = jax.ShapeDtypeStruct((3, 64), jnp.float32), jax.ShapeDtypeStruct((48, 64), jnp.bfloat16)
program = Program(name="product", function=function, arguments=structs)
context, store = {"target.native": libraries.identity}, Store.open(Path(sys.argv[1]))
compiled, record = obtain(program, ProgramCache(context, store=store, link=libraries.link))
x = jnp.arange(192, dtype=jnp.float32).reshape(3, 64) / 64
print(record.origin, float(compiled(x, jnp.ones((48, 64), jnp.bfloat16)).sum()))
"""
    command = [sys.executable, "-c", child, str(tmp_path / "store")]
    first, second = (
        subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() for _ in range(2)
    )
    assert (first[0], second[0]) == ("compiler", "store")
    assert first[1] == second[1]


def test_what_cannot_be_built_is_said_when_a_program_calls_it_and_not_called_again(tmp_path, monkeypatch, caplog):
    (tmp_path / "folder").mkdir()
    for source in SOURCES:
        (tmp_path / "folder" / source).write_text("#error not today\n")
    libraries = native_libraries.find_native(tmp_path / "kept", tmp_path / "folder")
    libraries.link(b"calls of nobody")
    with pytest.raises(LinkError, match="not today") as raised:
        libraries.link(f"custom_call @{registered_name(PRODUCT, libraries.identity)}".encode())
    monkeypatch.setattr(subject, "_refused", set())
    monkeypatch.setattr(subject, "find_native", lambda directory: libraries)
    config, model = planned(tmp_path)
    assert obtain_native(config, model, Progress()) == libraries.identity
    subject.refuse_native(raised.value)
    assert "not today" in caplog.records[-1].message
    assert obtain_native(config, model, Progress()) is None


def test_only_what_is_called_is_built(tmp_path, monkeypatch):
    (tmp_path / "folder").mkdir()
    for source, symbols in SOURCES.items():
        (tmp_path / "folder" / source).write_text(
            "".join(f'extern "C" int {name}() {{ return 0; }}\n' for name in symbols)
        )
    libraries = native_libraries.find_native(tmp_path / "kept", tmp_path / "folder")
    registered: list[str] = []
    monkeypatch.setattr("jax.ffi.register_ffi_target", lambda name, *arguments, **options: registered.append(name))
    libraries.link(f"custom_call @{registered_name(ATTENTION, libraries.identity)}".encode())
    assert [path.stem for path in (tmp_path / "kept").glob("*.json")] == [f"{libraries.identity}-decoder"]
    assert libraries.register(SYMBOLS)
    assert sorted(registered) == sorted(registered_name(symbol, libraries.identity) for symbol in SYMBOLS)


def test_the_library_lies_beside_the_programs(tmp_path, monkeypatch):
    monkeypatch.setenv("JAXENGINE_CACHE_DIR", str(tmp_path))
    assert native_libraries.native_directory() == tmp_path / "native"
