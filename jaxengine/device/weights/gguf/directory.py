"""A GGUF file as a checkpoint directory: config.json, tokenizer and chat template out of it, weights where they are."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxengine.device.weights.formats.gguf import BLOCK_TYPES
from jaxengine.device.weights.gguf.architecture import LOGARITHMS, UNREAD, Architecture, TensorName
from jaxengine.device.weights.gguf.architectures import architecture_of
from jaxengine.device.weights.gguf.file import INDEX_FILE, PLAIN, Place, write_index
from jaxengine.device.weights.gguf.order import Order
from jaxengine.device.weights.gguf.settings import Metadata, Values
from jaxengine.device.weights.gguf.tokenizer import write_tokenizer
from jaxengine.errors import CheckpointError, ConfigError

VERSION = 2
"""Of what is written: another one writes it again."""
BESIDE = re.compile(r"mmproj|imatrix")
"""How files begin that lie beside a model: what shows it pictures, and what its quantisation was chosen by."""
SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


def directory_of(path: Path) -> Path:
    """The directory with what is in a GGUF file (the first one, of several), which is written where it is not there yet.

    Raises:
        CheckpointError: it is damaged, or of an architecture that is not read.
        ConfigError: the libraries that read such files are not installed.
    """
    from xla_cache.location import cache_home  # loads JAX: what checks names only does without

    files = shards(path)
    place = cache_home() / "gguf" / _digest(files)
    if (place / INDEX_FILE).is_file():
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent) as aside:
        fresh = Path(aside) / "fresh"
        fresh.mkdir()
        _write(fresh, files)
        try:
            fresh.rename(place)
        except OSError:  # somebody else was faster, or an older one is incomplete
            if not (place / INDEX_FILE).is_file():
                shutil.rmtree(place)
                fresh.rename(place)
    return place


def shards(path: Path) -> list[Path]:
    """The files that `path`, the first of them, names.

    Raises:
        CheckpointError: one is missing, or `path` is not the first.
    """
    found = SHARD.fullmatch(path.name)
    if found is None:
        return [path]
    if int(found["number"]) != 1:
        raise CheckpointError(
            f"{path} is not the first of the files of its model; name the one that ends in 00001-of-..."
        )
    names = [f"{found['stem']}-{number:05}-of-{found['count']}.gguf" for number in range(1, int(found["count"]) + 1)]
    files = [path.with_name(name) for name in names]
    if missing := [file.name for file in files if not file.is_file()]:
        raise CheckpointError(f"{path.parent} lacks {', '.join(missing)}; download them again")
    return files


def _digest(files: Sequence[Path]) -> str:
    """Of where files are and which they are: their contents are not read."""
    parts: list[Any] = [VERSION]
    for file in files:
        state = file.stat()
        parts.append((str(file.resolve()), state.st_size, state.st_mtime_ns))
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def _write(directory: Path, files: Sequence[Path]) -> None:
    readers = [_reader(file) for file in files]
    metadata = _metadata(readers)
    architecture = architecture_of(metadata)
    config = architecture.config(metadata)
    places = _places(readers, architecture, config)
    types = {re.sub(r"\{expert\}", "*", place.name.rpartition(".")[0]): place.type for place in places if place.blocks}
    if types:
        config["quantization_config"] = {"quant_method": "gguf", "types": types}
    config |= _token_ids(readers[0])
    (directory / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    write_tokenizer(directory, files[0], _said_of_tokens(readers[0]))
    write_index(directory, [file.resolve() for file in files], places)


def _reader(path: Path) -> Any:
    try:
        from gguf import GGUFReader
    except ImportError:
        raise ConfigError(
            f"{path} is a GGUF file, which the gguf library reads; install it with pip install 'jaxengine[gguf]'"
        ) from None
    try:
        return GGUFReader(path)
    except (ValueError, IndexError, KeyError, OSError, UnicodeDecodeError) as error:
        if "GGMLQuantizationType" in str(error):
            raise CheckpointError(
                f"{path} has tensors of a type of ggml's that the installed gguf library does not know ({error}); a newer one "
                "may, or take a file of another type"
            ) from None
        raise CheckpointError(f"{path} is truncated or not a GGUF file ({error}); download it again") from None


def _metadata(readers: Sequence[Any]) -> Metadata:
    kind = _value(readers[0], "general.type")
    if kind not in (None, "model"):
        raise CheckpointError(
            f"the GGUF file is of the type {kind!r} and has no model; name the file that has type 'model'"
        )
    architecture = _value(readers[0], "general.architecture")
    if not isinstance(architecture, str):
        raise CheckpointError("the GGUF file names no general.architecture; convert or download it again")
    prefix = f"{architecture}."
    values = {key.removeprefix(prefix): _value(readers[0], key) for key in readers[0].fields if key.startswith(prefix)}
    tensors = {tensor.name: tensor for reader in readers for tensor in reader.tensors}
    if "token_embd.weight" not in tensors:
        raise CheckpointError("the GGUF file has no embeddings (token_embd.weight); is it a model's?")
    return Metadata(
        architecture=architecture,
        values=values,
        num_tokens=int(tensors["token_embd.weight"].shape[1]),
        tensors=frozenset(tensors),
        factors={
            name: np.asarray(tensors[f"{name}.weight"].data, np.float32)
            for name in UNREAD
            if f"{name}.weight" in tensors
        },
    )


def _value(reader: Any, key: str) -> Any:
    """A field's value. Floats, which are single ones, are the shortest decimals that round to them."""
    found = reader.get_field(key)
    value = None if found is None else found.contents()
    return float(str(np.float32(value))) if isinstance(value, float) else value


def _places(readers: Sequence[Any], architecture: Architecture, config: Values) -> list[Place]:
    """Raises CheckpointError of tensors that nothing reads, and of types that nothing reads."""
    orders, num_layers = architecture.orders(config), config["num_hidden_layers"]
    places, unknown = [], []
    for number, reader in enumerate(readers):
        for tensor in reader.tensors:
            found = TensorName.of(tensor.name)
            if found.stem in UNREAD or (
                found.layer is not None and found.layer >= num_layers
            ):  # which predict several tokens
                continue
            name = architecture.plain_name(found)
            if name is None:
                unknown.append(tensor.name)
                continue
            kind = tensor.tensor_type.name
            if kind not in (*PLAIN, *BLOCK_TYPES) and not _is_read(tensor.tensor_type):
                raise CheckpointError(
                    f"tensor {tensor.name} of the GGUF file is in {kind}, which is not read; those of {', '.join(BLOCK_TYPES)}, "
                    "F32, F16, BF16 and others that the gguf library dequantises are"
                )
            order = orders.get(found.stem)
            places.append(
                Place(
                    name=name,
                    file=number,
                    type=kind,
                    shape=found.whole(tuple(map(int, tensor.shape[::-1]))),
                    offset=int(tensor.data_offset),
                    nbytes=int(tensor.n_bytes),
                    order=order,
                    logarithm=found.stem in LOGARITHMS,
                    less=architecture.norm_offset if architecture.is_offset(found) else 0.0,
                    dense=order is not None
                    and order.columns
                    and not _in_whole_blocks(kind, order, int(tensor.shape[0])),
                )
            )
    if unknown:
        raise CheckpointError(
            f"the GGUF file has {len(unknown)} tensors that the architecture is not known to have: "
            f"{', '.join(unknown[:8])}{' ...' if len(unknown) > 8 else ''}"
        )
    return places


def _in_whole_blocks(kind: str, order: Order, columns: int) -> bool:
    """Whether no block has columns that go to different places."""
    together = columns // (order.outer * order.first * order.second)
    return kind not in BLOCK_TYPES or together % BLOCK_TYPES[kind].inputs == 0


def _is_read(kind: Any) -> bool:
    """Whether the library says what numbers of a type stand for."""
    from gguf import GGML_QUANT_SIZES, dequantize

    try:
        dequantize(np.zeros((1, GGML_QUANT_SIZES[kind][1]), np.uint8), kind)
    except (NotImplementedError, KeyError):
        return False
    return True


def _said_of_tokens(reader: Any) -> Values:
    """The fields of the tokenizer without what they all begin with, and the architecture."""
    fields = {key.removeprefix("tokenizer."): key for key in reader.fields if key.startswith("tokenizer.")}
    return {name: _value(reader, key) for name, key in {**fields, "architecture": "general.architecture"}.items()}


def _token_ids(reader: Any) -> Values:
    named = {"bos_token_id": "bos_token_id", "eos_token_id": "eos_token_id", "pad_token_id": "padding_token_id"}
    found = {key: _value(reader, f"tokenizer.ggml.{name}") for key, name in named.items()}
    return {key: int(value) for key, value in found.items() if value is not None}


def is_gguf(path: Path) -> bool:
    """Whether it is named as such a file is."""
    return path.suffix == ".gguf" and path.is_file()


def only_gguf(directory: Path) -> Path | None:
    """The first file of the one model in GGUF that a directory has, if it has no other weights."""
    found = sorted(file for file in directory.glob("*.gguf") if not BESIDE.match(file.name))
    first = [file for file in found if (shard := SHARD.fullmatch(file.name)) is None or int(shard["number"]) == 1]
    others = any(directory.glob("*.safetensors")) or any(directory.glob("*.bin"))
    if not first or others:
        return None
    if len(first) > 1:
        raise CheckpointError(
            f"{directory} has several models in GGUF: {', '.join(file.name for file in first)}; name one of the files"
        )
    return first[0]
