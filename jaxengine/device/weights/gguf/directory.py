"""A GGUF file as a checkpoint directory: config.json, tokenizer and chat template out of it, weights where they are."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxengine.device.weights.formats.gguf import BLOCK_TYPES
from jaxengine.device.weights.gguf.architectures import UNREAD, Architecture, architecture_of
from jaxengine.device.weights.gguf.file import INDEX_FILE, Place, write_index
from jaxengine.device.weights.gguf.settings import Metadata, Values
from jaxengine.errors import CheckpointError, ConfigError

VERSION = 1
"""Of what is written: another one writes it again."""
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
    types = {
        re.sub(r"\{expert\}", "*", place.name.rpartition(".")[0]): place.type
        for place in places
        if place.type in BLOCK_TYPES
    }
    if types:
        config["quantization_config"] = {"quant_method": "gguf", "types": types}
    config |= _token_ids(readers[0])
    (directory / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    _write_tokenizer(directory, files[0], readers[0])
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
        raise CheckpointError(f"{path} is truncated or not a GGUF file ({error}); download it again") from None


def _metadata(readers: Sequence[Any]) -> Metadata:
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
    """Raises CheckpointError of tensors that nothing reads."""
    heads = {".attn_q.": config["num_attention_heads"]}
    heads[".attn_k."] = config.get("num_key_value_heads", heads[".attn_q."])
    places, unknown = [], []
    for number, reader in enumerate(readers):
        for tensor in reader.tensors:
            if tensor.name.rpartition(".")[0] in UNREAD:
                continue
            name = architecture.plain_name(tensor.name)
            if name is None:
                unknown.append(tensor.name)
                continue
            shape = tuple(map(int, tensor.shape[::-1]))
            if name.endswith("shared_expert_gate.weight"):
                shape = (1, *shape[-1:])  # a vector in the file
            interleaved = architecture.interleaved and any(part in tensor.name for part in heads)
            places.append(
                Place(
                    name=name,
                    file=number,
                    type=tensor.tensor_type.name,
                    shape=shape,
                    offset=int(tensor.data_offset),
                    nbytes=int(tensor.n_bytes),
                    heads=next(count for part, count in heads.items() if part in tensor.name) if interleaved else None,
                    less=architecture.norm_offset if "norm" in tensor.name else 0.0,
                )
            )
    if unknown:
        raise CheckpointError(
            f"the GGUF file has {len(unknown)} tensors that the architecture is not known to have: "
            f"{', '.join(unknown[:8])}{' ...' if len(unknown) > 8 else ''}"
        )
    return places


def _token_ids(reader: Any) -> Values:
    named = {"bos_token_id": "bos_token_id", "eos_token_id": "eos_token_id", "pad_token_id": "padding_token_id"}
    found = {key: _value(reader, f"tokenizer.ggml.{name}") for key, name in named.items()}
    return {key: int(value) for key, value in found.items() if value is not None}


def _write_tokenizer(directory: Path, path: Path, reader: Any) -> None:
    """tokenizer.json and its settings, as transformers makes them of such a file; none where the file has no tokens."""
    if reader.get_field("tokenizer.ggml.model") is None:
        return
    try:
        from transformers import PreTrainedTokenizerFast

        # by its parts: what transformers reads such files with needs torch
        from transformers.integrations.gguf.gguf_tokenizer_mapping import (
            GGUF_TOKENIZER_MAPPING,
            convert_gguf_tokenizer,
        )

        said = {group: _renamed(reader, names) for group, names in GGUF_TOKENIZER_MAPPING.items()}
        settings = said["tokenizer_config"]
        if said["tokenizer"]["tokenizer_type"] == "llama":
            settings.setdefault("add_bos_token", True)  # which llama.cpp adds where files do not say
        for name in ("bos", "eos", "unk", "pad"):
            number = said["tokenizer"].get(f"{name}_token_id")
            settings[f"{name}_token"] = None if number is None else said["tokenizer"]["tokens"][number]
        backend, _ = convert_gguf_tokenizer(str(_value(reader, "general.architecture")), said["tokenizer"])
        PreTrainedTokenizerFast(tokenizer_object=backend, **settings).save_pretrained(directory)
    except (ValueError, KeyError, TypeError, NotImplementedError, ImportError) as error:
        raise CheckpointError(
            f"{path}: transformers makes no tokenizer of it ({error}); name one with tokenizer=..."
        ) from None


def _renamed(reader: Any, names: Mapping[str, str]) -> Values:
    """What the tokenizer's fields say, by other names."""
    found = {name: _value(reader, f"tokenizer.{key}") for key, name in names.items()}
    return {name: value for name, value in found.items() if value is not None}


def is_gguf(path: Path) -> bool:
    """Whether it is named as such a file is."""
    return path.suffix == ".gguf" and path.is_file()


def only_gguf(directory: Path) -> Path | None:
    """The first file of the one model in GGUF that a directory has, if it has no other weights."""
    found = sorted(directory.glob("*.gguf"))
    first = [file for file in found if (shard := SHARD.fullmatch(file.name)) is None or int(shard["number"]) == 1]
    others = any(directory.glob("*.safetensors")) or any(directory.glob("*.bin"))
    if not first or others:
        return None
    if len(first) > 1:
        raise CheckpointError(
            f"{directory} has several models in GGUF: {', '.join(file.name for file in first)}; name one of the files"
        )
    return first[0]
