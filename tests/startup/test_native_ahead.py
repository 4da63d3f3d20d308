"""When the CPU's own products are begun before the device half of the engine is loaded, and that the start finds them begun."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from jaxengine.options.config import EngineConfig
from jaxengine.startup import native_ahead, native_libraries
from pallas_kernels.native import PRODUCT, SOURCES


@pytest.fixture
def begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """What was begun, where nothing is built."""
    calls: list[None] = []
    monkeypatch.setattr(native_libraries, "MIN_WEIGHT_BYTES", 100)
    monkeypatch.setattr(native_ahead, "_begin", lambda: calls.append(None))
    return calls


def write(path: Path, *, architecture: str = "Qwen3ForCausalLM", size: int = 100) -> str:
    path.mkdir()
    (path / "config.json").write_text(json.dumps({"architectures": [architecture]}))
    (path / "model.safetensors").write_bytes(bytes(size))
    return str(path)


def begin(model: str | None, **options: Any) -> None:
    native_ahead.begin_ahead(EngineConfig.from_options(model=model, **options))


def test_a_large_decoder_on_a_cpu_is_begun(tmp_path, begun):
    begin(write(tmp_path / "model"))
    assert len(begun) == 1


def test_so_is_a_gguf_file(tmp_path, begun):
    (tmp_path / "model.gguf").write_bytes(bytes(100))
    begin(str(tmp_path / "model.gguf"))
    assert len(begun) == 1


def test_so_is_what_the_cache_of_the_hub_has(tmp_path, begun):
    folder, cache = tmp_path / "models--Qwen--Qwen3-0.6B", {"download_dir": str(tmp_path)}
    (folder / "snapshots").mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("c0ffee")
    write(folder / "snapshots" / "c0ffee")
    begin("Qwen/Qwen3-0.6B", revision="another", **cache)
    begin("Qwen/Qwen3-1.7B", **cache)
    assert begun == []
    begin("Qwen/Qwen3-0.6B", **cache)
    assert len(begun) == 1


@pytest.mark.parametrize(
    ("kept", "options"),
    [
        ({"size": 99}, {}),
        ({"architecture": "BertModel"}, {}),
        ({}, {"xla_cache_path": "off"}),
        ({}, {"bundle": "somewhere"}),
        ({}, {"device": "tpu"}),
        ({}, {"tensor_parallel_size": 2}),
    ],
)
def test_nothing_is_begun_that_is_not_called(tmp_path, begun, kept, options):
    begin(write(tmp_path / "model", **kept), **options)
    assert begun == []


def test_nothing_is_begun_where_jax_may_find_another_device(tmp_path, monkeypatch, begun):
    model = write(tmp_path / "model")
    for named in ("tpu", "cuda,cpu"):
        monkeypatch.setenv("JAX_PLATFORMS", named)
        begin(model)
    monkeypatch.delenv("JAX_PLATFORMS")
    monkeypatch.setattr(native_ahead, "find_spec", lambda name: name == "libtpu" or None)
    begin(model)
    assert begun == []
    monkeypatch.setattr(native_ahead, "find_spec", lambda name: None)
    begin(model)
    assert len(begun) == 1


def test_nothing_is_begun_without_a_model_that_can_be_read(tmp_path, begun):
    for model in (None, "Qwen/Qwen3-0.6B", "no: id", str(tmp_path)):
        begin(model)
    assert begun == []


def test_the_start_finds_it_begun(tmp_path, monkeypatch):
    (tmp_path / "folder").mkdir()
    for source, symbols in SOURCES.items():
        (tmp_path / "folder" / source).write_text(
            # by a name of its own: libraries of equal sources are one in a process
            f"// {tmp_path}\n" + "".join(f'extern "C" int {name}() {{ return 0; }}\n' for name in symbols)
        )
    found = native_libraries.find_native(tmp_path / "kept", tmp_path / "folder")
    monkeypatch.setattr(native_libraries, "find_native", lambda directory: found)
    native_ahead._begin()
    assert list(found._building) == ["decoder.cc", "rows.cc"]
    assert found._building["decoder.cc"].result().built
    monkeypatch.setattr("jax.ffi.register_ffi_target", lambda *arguments, **options: None)
    assert found.register([PRODUCT])


def test_a_compiler_that_is_missing_is_left_to_the_start(tmp_path, monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    native_ahead._begin()
