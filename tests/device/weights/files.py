"""Small checkpoints on disk."""

from __future__ import annotations

import json
import pickle
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from jaxengine.device.weights.rules import Array

INDEX = "model.safetensors.index.json"


def shard_name(number: int, count: int) -> str:
    return f"model-{number + 1:05}-of-{count:05}.safetensors"


def write_single(directory: Path, tensors: Mapping[str, Array]) -> Path:
    """`model.safetensors` in `directory`."""
    directory.mkdir(parents=True, exist_ok=True)
    save_file(dict(tensors), directory / "model.safetensors")
    return directory


def write_shards(directory: Path, parts: Sequence[Mapping[str, Array]]) -> Path:
    """Several files and their index."""
    directory.mkdir(parents=True, exist_ok=True)
    weight_map = {}
    for number, part in enumerate(parts):
        name = shard_name(number, len(parts))
        save_file(dict(part), directory / name)
        weight_map |= dict.fromkeys(part, name)
    (directory / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return directory


def write_raw(path: Path, header: object, data: bytes = b"") -> Path:
    """A file in the safetensors layout with any header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def write_pickled(path: Path, tensors: Mapping[str, Array]) -> Path:
    """What `torch.save` writes of float32 tensors."""
    described = b"".join(
        described_text(name) + described_tensor(str(number), tensor.shape, tensor.size)
        for number, (name, tensor) in enumerate(tensors.items())
    )
    content = b"\x80\x02}(" + described + b"u."
    return write_archive(
        path, content, {str(number): tensor.tobytes() for number, tensor in enumerate(tensors.values())}
    )


def write_archive(path: Path, description: bytes, data: Mapping[str, bytes], **others: bytes) -> Path:
    """A zip archive around a pickle, as torch's."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", description)
        for key, content in data.items():
            archive.writestr(f"archive/data/{key}", content)
        for name, content in others.items():
            archive.writestr(f"archive/{name}", content)
    return path


def described_tensor(
    key: str, shape: Sequence[int], count: int, *, strides: Sequence[int] | None = None, first: int = 0
) -> bytes:
    """The instructions of a pickle that leave a float32 tensor on its stack."""
    if strides is None:
        strides = [int(np.prod(shape[axis + 1 :], dtype=np.int64)) for axis in range(len(shape))]
    storage = b"(" + described_text("storage") + b"ctorch\nFloatStorage\n" + described_text(key) + described_text("cpu")
    storage += _number(count) + b"tQ"
    sizes = [b"(" + b"".join(map(_number, axis)) + b"t" for axis in (shape, strides)]
    hooks = b"ccollections\nOrderedDict\n)R"
    return (
        b"ctorch._utils\n_rebuild_tensor_v2\n("
        + storage
        + _number(first)
        + sizes[0]
        + sizes[1]
        + b"\x89"
        + hooks
        + b"tR"
    )


def described_text(text: str) -> bytes:
    """The instruction of a pickle that leaves a text on its stack."""
    return pickle.BINUNICODE + len(text.encode()).to_bytes(4, "little") + text.encode()


def _number(value: int) -> bytes:
    return pickle.BININT + value.to_bytes(4, "little", signed=True)


def numbers(*shape: int, dtype: np.typing.DTypeLike = np.float32, seed: int = 0) -> Array:
    """Distinct values that bfloat16 cannot all hold, so that a wrong cast shows."""
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)
