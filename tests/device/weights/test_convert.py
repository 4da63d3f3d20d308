"""Conversion: what is written loads back bit for bit, the directory is complete or absent."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jaxengine.device.weights import convert
from jaxengine.device.weights.checkpoint import OrbaxCheckpoint, open_checkpoint
from jaxengine.device.weights.convert import write_converted
from jaxengine.device.weights.loader import load
from jaxengine.device.weights.report import LoadReport
from jaxengine.device.weights.rules import Array, Rule, transpose
from jaxengine.errors import CheckpointError

from .files import numbers, write_single

RULES = (Rule("layers.*.w", "w.*", transpose), Rule("norm", "norm"))
STORED = {"w.0": numbers(8, 16), "w.1": numbers(8, 16, seed=1), "norm": numbers(8)}


def expected(dtype: np.typing.DTypeLike) -> dict[str, Array]:
    return {
        "layers.0.w": STORED["w.0"].T.astype(dtype),
        "layers.1.w": STORED["w.1"].T.astype(dtype),
        "norm": STORED["norm"].astype(dtype),
    }


def parameters(dtype: np.typing.DTypeLike, *, sharded: bool = False) -> dict[str, jax.ShapeDtypeStruct]:
    mesh = jax.sharding.Mesh(np.asarray(jax.devices()), ("tensor",))
    sharding = NamedSharding(mesh, PartitionSpec("tensor")) if sharded else None
    return {
        path: jax.ShapeDtypeStruct(value.shape, jnp.dtype(dtype), sharding=sharding)
        for path, value in expected(dtype).items()
    }


@pytest.fixture
def source(tmp_path: Path) -> Path:
    directory = write_single(tmp_path / "source", STORED)
    (directory / "config.json").write_text('{"model_type": "toy", "torch_dtype": "float32"}')
    (directory / "tokenizer.json").write_text("{}")
    (directory / "generation_config.json").write_text('{"temperature": 0.5}')
    (directory / "modeling_evil.py").write_text("raise SystemExit")
    return directory


def convert_to(
    source: Path, output: Path, *, dtype: np.typing.DTypeLike = ml_dtypes.bfloat16, force: bool = False
) -> None:
    write_converted(
        source, output, rules=RULES, parameters=parameters(dtype), config=None, dtype=str(jnp.dtype(dtype)), force=force
    )


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("load_format", ["auto", "orbax"])
def test_what_is_written_loads_back(dtype: type, sharded: bool, load_format: str, source: Path, tmp_path: Path) -> None:
    convert_to(source, tmp_path / "out", dtype=dtype)
    checkpoint = open_checkpoint(tmp_path / "out", load_format=load_format)
    assert isinstance(checkpoint, OrbaxCheckpoint)
    wanted = parameters(dtype, sharded=sharded)
    reports: list[LoadReport] = []
    loaded = load(checkpoint, RULES, wanted, None, progress=reports.append)
    assert list(loaded) == list(wanted)
    for path, value in expected(dtype).items():
        assert loaded[path].dtype == dtype
        assert wanted[path].sharding is None or loaded[path].sharding == wanted[path].sharding
        np.testing.assert_array_equal(np.asarray(loaded[path]), value)
    assert reports[-1].bytes_read == reports[-1].total_bytes == sum(value.nbytes for value in expected(dtype).values())


def test_a_stored_dtype_is_cast_to_the_wanted_one(source: Path, tmp_path: Path) -> None:
    convert_to(source, tmp_path / "out", dtype=ml_dtypes.bfloat16)
    loaded = load(open_checkpoint(tmp_path / "out"), RULES, parameters(np.float32), None)
    for path, value in expected(ml_dtypes.bfloat16).items():
        np.testing.assert_array_equal(np.asarray(loaded[path]), value.astype(np.float32))


def test_texts_are_copied_and_the_config_names_the_new_dtype(source: Path, tmp_path: Path) -> None:
    convert_to(source, tmp_path / "out")
    assert json.loads((tmp_path / "out/config.json").read_text()) == {"model_type": "toy", "dtype": "bfloat16"}
    assert (tmp_path / "out/generation_config.json").read_text() == '{"temperature": 0.5}'
    assert {entry.name for entry in (tmp_path / "out").iterdir()} == {
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "jaxengine_weights.json",
        "orbax",
    }


def test_an_existing_output_is_kept_unless_forced(source: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    output.mkdir()
    (output / "precious").touch()
    with pytest.raises(CheckpointError, match="exists; name another directory, or pass --force"):
        convert_to(source, output)
    assert (output / "precious").exists()
    convert_to(source, output, force=True)
    assert not (output / "precious").exists()
    assert isinstance(open_checkpoint(output), OrbaxCheckpoint)


def test_the_source_is_never_replaced(source: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(source)
    for output in (source, link):
        with pytest.raises(CheckpointError, match="is the source itself"):
            convert_to(source, output, force=True)
    assert (source / "model.safetensors").exists()


def test_a_failure_leaves_nothing_behind(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full_disk(directory: Path, arrays: object) -> None:
        (directory / "half").touch()
        raise OSError("no space left on device")

    monkeypatch.setattr(convert, "_save", full_disk)
    output = tmp_path / "out"
    output.mkdir()
    (output / "old").touch()
    with pytest.raises(OSError, match="no space"):
        convert_to(source, output, force=True)
    assert {entry.name for entry in tmp_path.iterdir()} == {"source", "out"}
    assert (output / "old").exists()


def test_a_converted_checkpoint_converts_again(source: Path, tmp_path: Path) -> None:
    convert_to(source, tmp_path / "first", dtype=np.float32)
    convert_to(tmp_path / "first", tmp_path / "second")
    loaded = load(open_checkpoint(tmp_path / "second"), RULES, parameters(ml_dtypes.bfloat16), None)
    np.testing.assert_array_equal(np.asarray(loaded["norm"]), expected(ml_dtypes.bfloat16)["norm"])


def test_a_model_of_other_shapes_lists_every_difference(source: Path, tmp_path: Path) -> None:
    convert_to(source, tmp_path / "out")
    wanted = parameters(ml_dtypes.bfloat16)
    wanted["norm"] = jax.ShapeDtypeStruct((9,), jnp.bfloat16)
    wanted["extra"] = wanted.pop("layers.1.w")
    with pytest.raises(CheckpointError) as caught:
        load(open_checkpoint(tmp_path / "out"), RULES, wanted, None)
    message = str(caught.value)
    for part in ("layers.1.w", "extra", "norm: [8] stored, the model wants [9]"):
        assert part in message


def test_damaged_storage_is_a_checkpoint_error(tmp_path: Path) -> None:
    """Of one array: Orbax's other reads would go on after the error and complain about the closed event loop."""
    stored, rules = {"norm": numbers(400_000)}, (Rule("norm", "norm"),)
    wanted = {"norm": jax.ShapeDtypeStruct((400_000,), jnp.float32)}
    whole = write_single(tmp_path / "whole", stored)
    write_converted(whole, tmp_path / "out", rules=rules, parameters=wanted, config=None, dtype="float32")
    file = max((tmp_path / "out/orbax").rglob("*"), key=lambda entry: entry.stat().st_size)
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(CheckpointError, match="convert the model again"):
        load(open_checkpoint(tmp_path / "out"), rules, wanted, None)


def test_nothing_of_the_libraries_is_shown_to_the_user(
    source: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    convert_to(source, tmp_path / "out")
    load(open_checkpoint(tmp_path / "out"), RULES, parameters(np.float32), None)
    assert caplog.messages == []
