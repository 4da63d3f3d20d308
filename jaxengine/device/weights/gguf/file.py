"""Tensors of GGUF files under the names of a plain checkpoint, read where they lie."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jaxengine.device.weights.formats.gguf import BLOCK_TYPES, BLOCKS
from jaxengine.device.weights.gguf.order import Order
from jaxengine.device.weights.mapped_file import MappedFile, StoredTensor
from jaxengine.device.weights.rules import Array
from jaxengine.errors import CheckpointError

INDEX_FILE = "model.gguf.json"
"""Names the files and what is in them; it lies beside the config.json that was made of them."""
FORMAT = 2

PLAIN = {"F32": "F32", "F16": "F16", "BF16": "BF16", "F64": "F64"}
"""Types of ggml's that are NumPy's, by the names that safetensors has for them."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """A tensor of a GGUF file: `nbytes` at `offset` in file number `file`, rows of bytes where its `type` has blocks.

    `name` is the plain checkpoint's, with `{expert}` where the first axis of `shape` counts experts. `order` is that in which it
    lies. With `logarithm` the number -x stands for the logarithm of x; then `less` is taken from each number. `dense`: read as
    what its blocks stand for, whatever they are.
    """

    name: str
    file: int
    type: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    order: Order | None = None
    logarithm: bool = False
    less: float = 0.0
    dense: bool = False

    @property
    def blocks(self) -> bool:
        """Whether its matrix stays quantised."""
        return self.type in BLOCK_TYPES and not self.dense


def write_index(directory: Path, files: Sequence[Path], places: Sequence[Place]) -> None:
    """Say in `directory` which tensors there are, and where."""
    content = {"format": FORMAT, "files": list(map(str, files)), "tensors": [asdict(place) for place in places]}
    (directory / INDEX_FILE).write_text(json.dumps(content), encoding="utf-8")


def open_gguf(index: Path) -> dict[str, GgufFile]:
    """The files by the names of their tensors.

    Raises:
        CheckpointError: the index cannot be read, or one of the files is gone or shorter than it was.
    """
    try:
        content: dict[str, Any] = json.loads(index.read_text(encoding="utf-8"))
        if content["format"] != FORMAT:
            raise CheckpointError(f"{index} has format {content['format']}, this version reads {FORMAT}; remove it")
        files = list(map(Path, content["files"]))
        of_file: dict[int, list[Place]] = defaultdict(list)
        for entry in content["tensors"]:
            order = None if entry["order"] is None else Order(**entry["order"])
            place = Place(**{**entry, "shape": tuple(entry["shape"]), "order": order})
            of_file[place.file].append(place)
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{index} cannot be read ({error!r}); remove it, and it is made again") from None
    opened: dict[str, GgufFile] = {}
    for number, places in of_file.items():
        path, end = files[number], max(place.offset + place.nbytes for place in places)
        size = path.stat().st_size if path.is_file() else -1
        if size < end:
            state = "is gone" if size < 0 else f"is truncated: expected {end:,} bytes, found {size:,}"
            raise CheckpointError(f"{path} {state}; download it again")
        file = GgufFile(path, places)
        opened.update(dict.fromkeys(file.tensors, file))
    return opened


class GgufFile(MappedFile):
    """A mapped GGUF file: matrices whose type stays are `<module>.blocks`, others what they stand for."""

    def __init__(self, path: Path, places: Sequence[Place]) -> None:
        self._places: dict[str, Place] = {}
        tensors: dict[str, StoredTensor] = {}
        for place in places:
            for name, stored in _tensors(place).items():
                self._places[name], tensors[name] = place, stored
        super().__init__(path, tensors)

    def view(self, name: str) -> Array:
        """The tensor in the order of the plain checkpoint: a read-only view where that is the file's, else a copy."""
        place = self._places[name]
        as_stored = place.type in PLAIN or place.blocks
        tensor = super().view(name) if as_stored else self._stood_for(name, place.type)
        if place.logarithm:
            tensor = np.log(-tensor)
        if place.less:
            tensor = tensor - np.float32(place.less)
        return tensor if place.order is None else place.order.restore(tensor)

    def _stood_for(self, name: str, type_name: str) -> Array:
        from gguf import GGMLQuantizationType, dequantize

        *rows, _ = shape = self.tensors[name].shape
        found: Array = dequantize(self.bytes_of(name).reshape(*rows, -1), GGMLQuantizationType[type_name])
        return found.reshape(shape)


def _tensors(place: Place) -> Mapping[str, StoredTensor]:
    """Those that a plain checkpoint has for it: several of stacked experts."""
    name, shape, kind = place.name, place.shape, PLAIN.get(place.type, "F32")
    if place.blocks:
        own = BLOCK_TYPES[place.type]
        name, kind = f"{name.rpartition('.')[0]}.{BLOCKS}", "U8"
        shape = (*shape[:-1], shape[-1] // own.inputs * own.bytes)
    if "{expert}" not in name:
        return {name: StoredTensor(kind, shape, place.offset, place.nbytes)}
    count, each = shape[0], place.nbytes // shape[0]
    return {
        name.replace("{expert}", str(expert)): StoredTensor(kind, shape[1:], place.offset + expert * each, each)
        for expert in range(count)
    }
