"""Files of torch.save: what torch writes is read, and nothing but tensors is."""

from __future__ import annotations

import os
import pickle
import pickletools
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxengine.device.weights.pickled_file import PickledFile
from jaxengine.errors import CheckpointError

from .files import described_tensor, described_text, numbers, write_archive, write_pickled


def test_tensors_are_views_of_the_file(tmp_path: Path) -> None:
    tensors = {"a.weight": numbers(3, 4), "b": numbers(5, seed=1), "none": numbers(0, 2), "scalar": numbers()}
    file = PickledFile(write_pickled(tmp_path / "x.bin", tensors))
    assert file.tensors.keys() == tensors.keys()
    for name, tensor in tensors.items():
        file.expect(name)
        view = file.view(name)
        np.testing.assert_array_equal(view, tensor)
        assert not view.flags.writeable
        file.release(name)
        np.testing.assert_array_equal(view, tensor)
        assert file.tensors[name].nbytes == tensor.nbytes


def described(name: str, tensor: bytes) -> bytes:
    return b"\x80\x02}" + described_text(name) + tensor + b"s."


def test_tensors_share_numbers_in_any_order(tmp_path: Path) -> None:
    matrix = numbers(3, 4)
    content = (
        b"\x80\x02}("
        + described_text("turned")
        + described_tensor("0", (4, 3), 12, strides=(1, 4))
        + described_text("row")
        + described_tensor("0", (4,), 12, first=8)
        + described_text("repeated")
        + described_tensor("0", (5, 2), 12, strides=(0, 1))
        + b"u."
    )
    file = PickledFile(write_archive(tmp_path / "x.bin", content, {"0": matrix.tobytes()}))
    np.testing.assert_array_equal(file.view("turned"), matrix.T)
    np.testing.assert_array_equal(file.view("row"), matrix[2])
    np.testing.assert_array_equal(file.view("repeated"), [matrix[0, :2]] * 5)
    file.release("repeated")


class Canary:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self._path),)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_nothing_runs(tmp_path: Path, protocol: int) -> None:
    canary = tmp_path / "canary"
    content = pickle.dumps({"a": Canary(canary)}, protocol=protocol)
    with pytest.raises(CheckpointError, match=r"which could run code|which tensors need not"):
        PickledFile(write_archive(tmp_path / "x.bin", content, {}))
    assert not canary.exists()


@pytest.mark.parametrize(
    "code",
    [
        code.code
        for code in pickletools.opcodes
        if code.name in ("INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "EXT1", "STACK_GLOBAL")
    ],
)
def test_instructions_that_make_objects_are_unknown(tmp_path: Path, code: str) -> None:
    content = b"\x80\x02" + code.encode("latin-1") + b"os\nmkdir\n."
    with pytest.raises(CheckpointError, match="which tensors need not"):
        PickledFile(write_archive(tmp_path / "x.bin", content, {}))


ONE = described("a", described_tensor("0", (2, 2), 4))


@pytest.mark.parametrize(
    ("content", "data", "message"),
    [
        (b"", {}, "damaged"),
        (ONE[:-5], {"0": bytes(16)}, "damaged"),
        (b"\x80\x02}.", {}, "no tensors by name"),
        (b"\x80\x02].", {}, "no tensors by name"),
        (described("a", b"K\x01"), {}, "'a' is no tensor"),
        (b"\x80\x02}K\x01K\x01s.", {}, "it names no tensors"),
        (ONE, {}, "data/0' are missing"),
        (ONE, {"0": bytes(15)}, "15 bytes, too few for 4 numbers of F32"),
        (described("a", described_tensor("0", (2, 3), 4)), {"0": bytes(16)}, "reaches beyond its 4 numbers"),
        (described("a", described_tensor("0", (0,), 4, first=5)), {"0": bytes(16)}, "reaches beyond its 4 numbers"),
        (described("a", described_tensor("0", (2,), 4, strides=(-1,))), {"0": bytes(16)}, "no numbers that count"),
        (described("a", described_tensor("0", (2,), 4, strides=())), {"0": bytes(16)}, "no numbers that count"),
        (described("a", described_tensor("0", (1,), -1)), {"0": bytes(16)}, "too few for -1 numbers"),
        (
            described("a", b"(" + described_text("storage") + b"K\x01K\x01K\x01K\x01tQ"),
            {},
            "something else than numbers",
        ),
        (described("a", b"ctorch\nQInt8Storage\n"), {}, "torch.QInt8Storage, which could run code"),
    ],
)
def test_other_contents_are_refused(tmp_path: Path, content: bytes, data: dict[str, bytes], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        PickledFile(write_archive(tmp_path / "x.bin", content, data))


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    for content in (b"", b"PK", pickle.dumps(0x1950A86A20F9469CFC6C, protocol=2)):
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match=r"older than torch 1\.6"):
            PickledFile(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("other", b"")
    with pytest.raises(CheckpointError, match="no description"):
        PickledFile(path)
    with pytest.raises(CheckpointError, match="little-endian"):
        PickledFile(write_archive(path, ONE, {"0": bytes(16)}, byteorder=b"big"))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", ONE)
    with pytest.raises(CheckpointError, match="compressed"):
        PickledFile(path)


def test_a_cut_file_is_refused(tmp_path: Path) -> None:
    path = write_pickled(tmp_path / "x.bin", {"a": numbers(100)})
    whole = path.read_bytes()
    for length in range(0, len(whole), 37):
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError):
            PickledFile(path)


@pytest.mark.torch
def test_what_torch_writes_is_read(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    matrix = torch.arange(12.0).reshape(3, 4)
    dtypes = ("float32", "float16", "bfloat16", "float64", "int64", "int32", "int16", "int8", "uint8", "bool")
    state = {dtype: matrix.to(getattr(torch, dtype)) for dtype in dtypes}
    state |= {"turned": matrix.T, "row": matrix[1], "tied": state["float32"], "parameter": torch.nn.Parameter(matrix)}
    torch.save(state, tmp_path / "x.bin")
    layer = torch.nn.Linear(3, 2)
    torch.save(layer.state_dict(), tmp_path / "layer.bin")
    file = PickledFile(tmp_path / "x.bin")
    for name, tensor in state.items():
        expected = tensor.detach().float().numpy()
        np.testing.assert_array_equal(file.view(name).astype(np.float32), expected, err_msg=name)
    module = PickledFile(tmp_path / "layer.bin")
    np.testing.assert_array_equal(module.view("weight"), layer.weight.detach().numpy())
    torch.save({"epoch": 3, "model": state}, tmp_path / "training.bin")
    with pytest.raises(CheckpointError, match="is no tensor"):
        PickledFile(tmp_path / "training.bin")
