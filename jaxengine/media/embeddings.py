"""Embeddings that a prompt gives instead of a picture: arrays, or the files that hold them, read without torch."""

from __future__ import annotations

import binascii
import io
import json
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxengine.media.errors import MediaError
from jaxengine.media.items import digest_of

EMBEDS, GRIDS = "image_embeds", "image_grid_thw"
"""vLLM's names."""
MOST_HEADER = 1 << 20
MOST_PATCHES = 1 << 12
"""Along one axis of a picture."""
NPY, ZIP, PICKLE = b"\x93NUMPY", b"PK", b"\x80"
SAFETENSORS = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4"}
"""Of the names of types in a file of safetensors, NumPy's."""
ALLOWED = "a .npy or a .safetensors file, in base64"


@dataclass(frozen=True, slots=True, eq=False)
class Embeddings:
    """`values float32 [n, W]` that stand for one picture; `grid` are its frames, rows and columns of patches, where said."""

    values: NDArray[np.float32]
    grid: tuple[int, int, int] | None
    digest: bytes


@dataclass(frozen=True, slots=True, eq=False)
class Given:
    """Embeddings of one picture as a caller names them: `[n, W]` or `[1, n, W]`, and the three numbers of its grid."""

    values: Any
    grid: Any = None


def is_embeddings(source: Any) -> bool:
    """Whether an array is of embeddings: of real numbers, where pictures are of bytes."""
    return _is_array(source) and np.dtype(_kind(source)).kind == "f" and len(source.shape) in (2, 3)


def given_of(source: Any) -> list[Given]:
    """Embeddings in one of vLLM's forms: an array `[n, W]`, `[pictures, n, W]`, or `{"image_embeds": [n, W], "image_grid_thw":
    [pictures, 3]}` with those of all pictures one after the other. Arrays may be in a file (`ALLOWED`).

    Raises:
        MediaError: none of these.
    """
    if not isinstance(source, Mapping):
        values = array_of(source)
        return [Given(one) for one in values] if values.ndim == 3 else [Given(values)]
    if EMBEDS not in source or source.keys() - {EMBEDS, GRIDS}:
        raise MediaError(
            f"embeddings of pictures are {{'{EMBEDS}': [n, W], '{GRIDS}': [pictures, 3]}}, got {[*source]}"
        )
    values = array_of(source[EMBEDS])
    if source.get(GRIDS) is None:
        return given_of(values)
    values = values.reshape(-1, values.shape[-1])
    grids = _grids(source[GRIDS])
    patches = np.prod(grids, axis=1)
    ends = np.cumsum(patches) * len(values)
    if (ends % patches.sum()).any():
        raise MediaError(f"{len(values)} embeddings are not those of pictures of {GRIDS} {grids.tolist()}")
    ends //= patches.sum()
    return [Given(one, grid) for one, grid in zip(np.split(values, ends[:-1]), grids, strict=True)]


def embeddings_of(given: Given, width: int) -> Embeddings:
    """Embeddings of one picture, `width` numbers each.

    Raises:
        MediaError: they are not such, or not finite.
    """
    values = array_of(given.values)
    values = values[0] if values.ndim == 3 and len(values) == 1 else values
    if values.ndim != 2 or not len(values) or values.shape[1] != width:
        raise MediaError(f"embeddings of a picture are [n, {width}] for this model, got {list(values.shape)}")
    with np.errstate(over="ignore", invalid="ignore"):
        values = np.ascontiguousarray(values, np.float32)
    if not np.isfinite(values).all():
        raise MediaError("embeddings must be finite numbers")
    grids = None if given.grid is None else _grids(given.grid)
    if grids is not None and len(grids) != 1:
        raise MediaError(f"{GRIDS} is of one picture here, got {len(grids)}")
    grid = None if grids is None else tuple(grids[0].tolist())
    digest = digest_of("embeddings", np.asarray(values.shape).tobytes(), values.data.cast("B"), repr(grid).encode())
    return Embeddings(values, grid, digest)


def _grids(source: Any) -> NDArray[np.int64]:
    """Of each picture its frames, rows and columns of patches."""
    given = array_of(source)
    if given.dtype.kind not in "iu" or given.size % 3 or given.min() < 1 or given.max() > MOST_PATCHES:
        raise MediaError(f"{GRIDS} has three integers from 1 to {MOST_PATCHES} of each picture")
    return given.reshape(-1, 3).astype(np.int64)


def array_of(source: Any) -> NDArray[Any]:
    """An array, the bytes of a file that holds one, or such in base64.

    Raises:
        MediaError: it is none.
    """
    if isinstance(source, str):
        try:
            source = b64decode(source, validate=True)
        except (binascii.Error, ValueError) as error:
            raise MediaError(f"embeddings are no base64: {error}; they are {ALLOWED}") from error
    if isinstance(source, (bytes, bytearray)):
        values = _of_file(bytes(source))
    elif _is_array(source):
        values = _floats(source)
    elif isinstance(source, (list, tuple)) and all(type(number) is int for number in source) and source:
        values = np.asarray(source)
    else:
        raise MediaError(f"embeddings must be an array, or {ALLOWED}, got {type(source).__name__}")
    if values.dtype.kind not in "fiu" or not 1 <= values.ndim <= 3 or 0 in values.shape:
        raise MediaError(f"embeddings are real numbers of one to three axes, got {values.dtype} {list(values.shape)}")
    return values


def _of_file(data: bytes) -> NDArray[Any]:
    if data.startswith((ZIP, PICKLE)):
        raise MediaError(
            "embeddings that torch.save wrote are not read: a pickle can run code, and torch is not needed here. Give "
            f"{ALLOWED} (numpy.save, safetensors.torch.save)"
        )
    try:
        if data.startswith(NPY):
            return np.asarray(np.load(io.BytesIO(data), allow_pickle=False))
        return _of_safetensors(data)
    except (ValueError, KeyError, TypeError, EOFError, MemoryError, RecursionError, SyntaxError) as error:
        raise MediaError(f"embeddings cannot be read as {ALLOWED}: {error}") from error


def _of_safetensors(data: bytes) -> NDArray[Any]:
    """The one tensor of a file: eight bytes that say how long the header is, the header in JSON, the bytes of tensors."""
    size = int.from_bytes(data[:8], "little")
    if len(data) < 8 or not 2 <= size <= min(MOST_HEADER, len(data) - 8):
        raise ValueError("it begins as neither does")
    header = json.loads(data[8 : 8 + size])
    [entry] = [entry for name, entry in header.items() if name != "__metadata__"]
    begin, end = entry["data_offsets"]
    kind = SAFETENSORS[entry["dtype"]]
    values = np.frombuffer(data[8 + size :][begin:end], kind).reshape(entry["shape"])
    return (values.astype(np.uint32) << 16).view(np.float32) if entry["dtype"] == "BF16" else values


def _floats(source: Any) -> NDArray[Any]:
    """As NumPy has it; of bfloat16, which it has not, as float32."""
    values = source.float() if str(source.dtype) == "torch.bfloat16" else source
    values = np.asarray(values)
    return values.astype(np.float32) if values.dtype.name == "bfloat16" else values


def _is_array(value: Any) -> bool:
    return hasattr(value, "__array__") and hasattr(value, "shape") and hasattr(value, "dtype")


def _kind(source: Any) -> str:
    name = str(source.dtype).removeprefix("torch.")
    return "float32" if name == "bfloat16" else name
