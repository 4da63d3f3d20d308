"""Small checkpoints on disk."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from jaxengine.weights.rules import Array

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


def numbers(*shape: int, dtype: np.typing.DTypeLike = np.float32, seed: int = 0) -> Array:
    """Distinct values that bfloat16 cannot all hold, so that a wrong cast shows."""
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)
