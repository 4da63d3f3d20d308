"""How numbers are written in an answer: as JSON, or their bytes in base64."""

from __future__ import annotations

import base64

import numpy as np
import orjson

from jaxengine.contract.arrays import Floats
from jaxengine.errors import RequestError, UnsupportedError

ABSENT_FORMATS = ("bytes", "bytes_only")


def written(data: Floats, encoding_format: str | None, endianness: str | None) -> orjson.Fragment | str:
    """Numbers as JSON: the shortest that give the same float32 again; or in base64, one after the other."""
    if encoding_format == "base64":
        order = ">" if endianness == "big" else "<"
        return base64.b64encode(data.astype(f"{order}f4").tobytes()).decode("ascii")
    return orjson.Fragment(orjson.dumps(np.ascontiguousarray(data), option=orjson.OPT_SERIALIZE_NUMPY))


def check_encoding(encoding_format: str | None, embed_dtype: str | None) -> None:
    """Accept the forms of numbers that are built.

    Raises:
        RequestError: another one.
    """
    if encoding_format in ABSENT_FORMATS:
        raise UnsupportedError.of("encoding_format", f"{encoding_format!r} is not supported: use float or base64")
    if encoding_format not in (None, "float", "base64"):
        raise RequestError.of("encoding_format", f"must be float or base64, got {encoding_format[:50]!r}")
    if embed_dtype not in (None, "float32"):
        raise UnsupportedError.of("embed_dtype", "is not supported: embeddings are sent as float32")
