"""The mapped file: values equal to what the safetensors package writes, and every kind of damage named."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from jaxengine.device.weights.mapped_file import DTYPES
from jaxengine.device.weights.safetensors_file import SafetensorsFile
from jaxengine.errors import CheckpointError

from .files import numbers, write_raw


@pytest.mark.parametrize(
    "dtype", [np.float32, np.float16, np.float64, ml_dtypes.bfloat16, np.int8, np.uint8, np.int32, np.int64, np.bool_]
)
def test_views_equal_what_was_written(dtype: type, tmp_path: Path) -> None:
    tensors = {
        "matrix": (numbers(5, 7) * 50).astype(dtype),
        "odd": np.ones(3, np.uint8),
        "scalar": numbers().astype(dtype),
        "empty": np.zeros((0, 4), dtype),
        "vector": (numbers(9) * 50).astype(dtype),
    }
    save_file({name: np.asarray(tensor) for name, tensor in tensors.items()}, tmp_path / "x.safetensors")
    file = SafetensorsFile(tmp_path / "x.safetensors")
    assert set(file.tensors) == set(tensors)
    for name, tensor in tensors.items():
        view = file.view(name)
        assert (view.dtype, view.shape) == (tensor.dtype, tensor.shape)
        np.testing.assert_array_equal(view, tensor)
        assert not view.flags.writeable


def test_released_pages_are_read_again(tmp_path: Path) -> None:
    tensors = {"a": numbers(300, 300), "b": numbers(300, 300, seed=1)}
    save_file(tensors, tmp_path / "x.safetensors")
    file = SafetensorsFile(tmp_path / "x.safetensors")
    for _ in range(2):
        for name, tensor in tensors.items():
            file.expect(name)
            view = file.view(name)
            np.testing.assert_array_equal(view, tensor)
            file.release(name)
            np.testing.assert_array_equal(view, tensor)


def test_truncated_says_expected_and_actual_bytes(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save_file({"a": numbers(100)}, path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-7])
    with pytest.raises(
        CheckpointError, match=rf"x.safetensors is truncated: expected {len(whole)} bytes, found {len(whole) - 7}"
    ):
        SafetensorsFile(path)
    path.write_bytes(whole + b"junk")
    with pytest.raises(CheckpointError, match="too long"):
        SafetensorsFile(path)


def entry(dtype: str = "F32", shape: object = (2,), offsets: object = (0, 8)) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"{not json", "not a safetensors file"),
        (b"\xff\xfe", "not a safetensors file"),
        ([], "not a safetensors file"),
        ({"a": 3}, "not a safetensors file"),
        ({"a": {"dtype": "F32"}}, "not a safetensors file"),
        ({"a": entry(shape=[-2])}, "is corrupt: .*`-2`"),
        ({"a": entry(shape=[2.0])}, r"is corrupt: .*`2\.0`"),
        ({"a": entry(offsets=[8, 0])}, "is too long|is corrupt"),
        ({"a": entry(offsets=[-8, 0])}, "is too long|is corrupt"),
        ({"a": entry("F5")}, "is corrupt: .*unknown variant `F5`"),
        ({"a": entry(shape=[3])}, "is corrupt: .*invalid shape, data type, or offset"),
        ({"a": entry(offsets=[4, 8], shape=[1])}, "is corrupt: .*invalid offset for tensor `a`"),
        ({"a": entry(), "b": entry()}, "is corrupt: .*invalid offset for tensor `[ab]`"),
        ({"a": entry(), "b": entry(offsets=[8, 1 << 60], shape=[1 << 58])}, "is truncated: expected"),
        (b"[" * 100_000, "not a safetensors file"),
    ],
)
def test_bad_headers(header: object, message: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=message):
        SafetensorsFile(write_raw(tmp_path / "x.safetensors", header, bytes(8)))


@pytest.mark.parametrize(
    "content", [b"", b"1234567", b"\xff" * 8, b"\xff" * 64, (1 << 40).to_bytes(8, "little") + b"{}"]
)
def test_files_that_are_not_safetensors(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(CheckpointError, match="truncated or not a safetensors file"):
        SafetensorsFile(tmp_path / "x")


def test_an_unknown_dtype_hurts_only_when_it_is_read(tmp_path: Path) -> None:
    file = SafetensorsFile(
        write_raw(tmp_path / "x", {"a": entry("F4", shape=[16]), "b": entry(offsets=[8, 16])}, bytes(16))
    )
    assert file.view("b").tolist() == [0.0, 0.0]
    with pytest.raises(CheckpointError, match="dtype F4"):
        file.view("a")


def test_every_dtype_of_the_table_has_its_size() -> None:
    bits = {name: int("".join(filter(str.isdigit, name.split("_")[0])) or 8) for name in DTYPES}
    assert {name: dtype.itemsize * 8 for name, dtype in DTYPES.items()} == bits


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_damage_is_a_checkpoint_error_or_harmless(data: st.DataObject, tmp_path: Path) -> None:
    """Whatever bytes are changed or cut, opening raises `CheckpointError` or gives views that can be read."""
    path = tmp_path / "x.safetensors"
    save_file({"a": numbers(4), "b": np.ones((2, 3), np.float16)}, path)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))] if data.draw(st.booleans()) else content)
    try:
        file = SafetensorsFile(path)
    except CheckpointError:
        return
    for name, tensor in file.tensors.items():
        if tensor.dtype is not None:
            assert file.view(name).nbytes == tensor.nbytes
