"""A checkpoint directory: which weight files it holds, and what is wrong with it before anything is read.

model.safetensors                        one file
model.safetensors.index.json + shards    several
pytorch_model.bin (.index.json)          the same in torch's format, read where there are no safetensors
jaxengine_weights.json + orbax/          written by `jaxengine convert`
model.gguf.json                          written for a GGUF file (`weights/gguf`), which it names
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from jaxengine.device.weights.gguf.file import INDEX_FILE, GgufFile, open_gguf
from jaxengine.device.weights.mapped_file import StoredTensor
from jaxengine.device.weights.pickled_file import PickledFile
from jaxengine.device.weights.rules import Array
from jaxengine.device.weights.safetensors_file import SafetensorsFile
from jaxengine.errors import CheckpointError

MANIFEST_FILE = "jaxengine_weights.json"
ORBAX_DIRECTORY = "orbax"
MANIFEST_FORMAT = 1


class TensorCheckpoint(Protocol):
    """Tensors by name, which are read when they are looked at."""

    @property
    def path(self) -> Path: ...

    @property
    def tensors(self) -> Mapping[str, StoredTensor]: ...

    def view(self, name: str) -> Array:
        """The tensor, read-only. Each time another object: what is found of one holds as long as that lives."""
        ...

    def release(self, name: str) -> None:
        """Give up the host memory of a tensor that has been consumed."""
        ...


@dataclass(frozen=True, slots=True)
class Layout:
    """How the files of a format are called, and what opens one. `index` names several by their tensors."""

    format: str
    single: str
    index: str
    suffix: str
    open: Callable[[Path], SafetensorsFile | PickledFile]


SAFETENSORS = Layout(
    "safetensors", "model.safetensors", "model.safetensors.index.json", ".safetensors", SafetensorsFile
)
PICKLED = Layout("pt", "pytorch_model.bin", "pytorch_model.bin.index.json", ".bin", PickledFile)


def layouts(load_format: str) -> tuple[Layout, ...]:
    """Those that a load format admits, the preferred first."""
    return tuple(layout for layout in (SAFETENSORS, PICKLED) if load_format in ("auto", layout.format))


class FileCheckpoint:
    """The tensors of one or several files, by name: a `TensorCheckpoint`."""

    def __init__(self, path: Path, files: Mapping[str, SafetensorsFile | PickledFile | GgufFile]) -> None:
        self.path = path
        self._files = files
        self.tensors: Mapping[str, StoredTensor] = {name: file.tensors[name] for name, file in files.items()}

    def view(self, name: str) -> Array:
        """A read-only view of the mapped file."""
        self._files[name].expect(name)
        return self._files[name].view(name)

    def release(self, name: str) -> None:
        """Give up the host memory of a tensor that has been consumed."""
        self._files[name].release(name)


class WithFolders:
    """A `TensorCheckpoint` of one and of those in `folders` of its directory, whose tensors' names begin with the folder's.

    A file `FOLDER.pt` is as good as a folder, and neither is needed of what the checkpoint has itself.
    """

    def __init__(self, checkpoint: TensorCheckpoint, folders: Sequence[str], *, load_format: str) -> None:
        self.path = checkpoint.path
        self._places: dict[str, tuple[TensorCheckpoint, str]] = {
            name: (checkpoint, name) for name in checkpoint.tensors
        }
        for folder in folders:
            if any(name.startswith(f"{folder}.") for name in checkpoint.tensors):
                continue
            inner = _beside(self.path / folder, load_format)
            if isinstance(inner, OrbaxCheckpoint):
                raise CheckpointError(f"{self.path / folder} is converted, and the model beside it is not")
            self._places |= {f"{folder}.{name}": (inner, name) for name in inner.tensors}
        self.tensors: Mapping[str, StoredTensor] = {name: of.tensors[own] for name, (of, own) in self._places.items()}

    def view(self, name: str) -> Array:
        """The tensor, read-only."""
        checkpoint, own = self._places[name]
        return checkpoint.view(own)

    def release(self, name: str) -> None:
        """Give up the host memory of a tensor that has been consumed."""
        checkpoint, own = self._places[name]
        checkpoint.release(own)


def _beside(path: Path, load_format: str) -> TensorCheckpoint | OrbaxCheckpoint:
    file = path.with_name(f"{path.name}.pt")
    if not file.is_file():
        return open_checkpoint(path, load_format=load_format)
    opened = PickledFile(file)
    return FileCheckpoint(path.parent, dict.fromkeys(opened.tensors, opened))


@dataclass(frozen=True, slots=True)
class OrbaxCheckpoint:
    """Parameters in the engine's own layout. `parameters` maps the dotted path to `(shape, dtype name)`."""

    path: Path
    parameters: Mapping[str, tuple[tuple[int, ...], str]]


def open_checkpoint(path: Path, *, load_format: str = "auto") -> TensorCheckpoint | OrbaxCheckpoint:
    """Open the weights in the directory `path`. Headers are read and checked; tensors are not read yet.

    Args:
        path: A model directory.
        load_format: `safetensors`, `pt`, `orbax`, `gguf`, or `auto` for whichever is there (Orbax first: it was converted
            for this).

    Raises:
        CheckpointError: no weights of that format, a shard that is missing, truncated or corrupt, a tensor that the index
            names and its file has not. Where other formats are present the message says how to convert them.
    """
    if load_format in ("auto", "orbax") and (path / MANIFEST_FILE).is_file():
        return _open_orbax(path)
    if load_format in ("auto", "gguf") and (path / INDEX_FILE).is_file():
        return FileCheckpoint(path, open_gguf(path / INDEX_FILE))
    for layout in layouts(load_format):
        if (path / layout.single).is_file():
            file = layout.open(path / layout.single)
            return FileCheckpoint(path, dict.fromkeys(file.tensors, file))
        if (path / layout.index).is_file():
            return _open_shards(path, layout)
    raise CheckpointError(_nothing_found(path, load_format))


def shard_names(index: Path, *, suffix: str = SAFETENSORS.suffix) -> dict[str, str]:
    """Tensor name to file name, as an index such as `model.safetensors.index.json` says.

    Raises:
        CheckpointError: not such an index, or the name of something else than a file with `suffix` beside it.
    """
    try:
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        names = {str(tensor): str(file) for tensor, file in weight_map.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{index} is not an index of weight files: {error!r}") from None
    for file in set(names.values()):
        if Path(file).name != file or "\\" in file or not file.endswith(suffix):
            raise CheckpointError(f"{index} names the file {file!r}; shards are {suffix} files beside their index")
    return names


def _open_shards(path: Path, layout: Layout) -> FileCheckpoint:
    where = shard_names(path / layout.index, suffix=layout.suffix)
    shards = sorted(set(where.values()))
    missing = [name for name in shards if not (path / name).is_file()]
    if missing:
        raise CheckpointError(
            f"{path} lacks {len(missing)} of {len(shards)} weight files that {layout.index} names: {', '.join(missing)}; "
            "download them again"
        )
    opened = {name: layout.open(path / name) for name in shards}
    absent = [f"{tensor} ({shard})" for tensor, shard in where.items() if tensor not in opened[shard].tensors]
    if absent:
        raise CheckpointError(f"{path}: {layout.index} names tensors that their files have not: {', '.join(absent)}")
    # A tensor that the index forgot still counts: the weight table decides whether it may be there.
    files = {tensor: file for file in opened.values() for tensor in file.tensors}
    return FileCheckpoint(path, files | {tensor: opened[shard] for tensor, shard in where.items()})


def _open_orbax(path: Path) -> OrbaxCheckpoint:
    manifest = path / MANIFEST_FILE
    try:
        content: dict[str, Any] = json.loads(manifest.read_text(encoding="utf-8"))
        if content["format"] != MANIFEST_FORMAT:
            raise CheckpointError(
                f"{manifest} has format {content['format']}, this version reads {MANIFEST_FORMAT}; convert the model again"
            )
        parameters = {name: (tuple(entry["shape"]), entry["dtype"]) for name, entry in content["parameters"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{manifest} cannot be read ({error!r}); convert the model again") from None
    if not (path / ORBAX_DIRECTORY).is_dir():
        raise CheckpointError(
            f"{path} has a {MANIFEST_FILE} but no {ORBAX_DIRECTORY}/ beside it; convert the model again"
        )
    return OrbaxCheckpoint(path / ORBAX_DIRECTORY, parameters)


def _nothing_found(path: Path, load_format: str) -> str:
    if not path.is_dir():
        return f"{path} is not a directory"
    files = sorted(entry.name for entry in path.iterdir())
    pickled = [name for name in files if name.endswith((".bin", ".pt", ".pth", ".bin.index.json"))]
    wanted = {
        "auto": f"{SAFETENSORS.single}, {SAFETENSORS.index}, {PICKLED.single} or a converted checkpoint ({MANIFEST_FILE})",
        "safetensors": f"{SAFETENSORS.single} or {SAFETENSORS.index}",
        "pt": f"{PICKLED.single} or {PICKLED.index}",
        "orbax": f"a converted checkpoint ({MANIFEST_FILE}); `jaxengine convert` writes one",
        "gguf": "one .gguf file, or the first of several",
    }[load_format]
    if pickled and load_format != "orbax":
        return f"{path} holds pickled weights ({', '.join(pickled)}), and not as {wanted}.{conversion_hint(path)}"
    if "adapter_model.safetensors" in files:
        return f"{path} holds a LoRA adapter, not a model; merge it into its base model first (peft: merge_and_unload)"
    return f"{path} holds no weights: expected {wanted}; found {', '.join(files) or 'an empty directory'}"


def conversion_hint(model: object) -> str:
    """How to turn pickled weights into safetensors, as text for an error message."""
    return (
        " Convert it once, where torch is installed and you trust the file:\n"
        "    from transformers import AutoModelForCausalLM, AutoTokenizer\n"
        f"    AutoModelForCausalLM.from_pretrained({str(model)!r}, dtype='auto').save_pretrained('converted')\n"
        f"    AutoTokenizer.from_pretrained({str(model)!r}).save_pretrained('converted')"
    )
