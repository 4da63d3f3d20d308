"""JSON that carries its own digest: any changed byte is found before anything is parsed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from xla_cache.errors import CorruptError

_HEAD = b'{"sha256": "'
_MIDDLE = b'", "body": '
_TAIL = b"}\n"
_DIGEST_END = len(_HEAD) + 64
_BODY_START = _DIGEST_END + len(_MIDDLE)


def seal(body: Mapping[str, Any]) -> bytes:
    """`{"sha256": ..., "body": ...}`, where the digest covers the text of the body as it stands in the file."""
    text = json.dumps(body, indent=1, sort_keys=True, allow_nan=False).encode()
    return b"".join((_HEAD, hashlib.sha256(text).hexdigest().encode(), _MIDDLE, text, _TAIL))


def unseal(data: bytes, *, name: str) -> dict[str, Any]:
    """The body of a sealed file.

    Raises:
        CorruptError: a byte differs from what was written; the message begins with `name`.
    """
    text = data[_BODY_START : -len(_TAIL)]
    framed = (
        data.startswith(_HEAD)
        and data[_DIGEST_END:_BODY_START] == _MIDDLE
        and data.endswith(_TAIL)
        and len(data) > _BODY_START + len(_TAIL)
    )
    if not framed:
        raise CorruptError(f"{name} is truncated or not a file of this cache")
    written, found = data[len(_HEAD) : _DIGEST_END].decode("ascii", "replace"), hashlib.sha256(text).hexdigest()
    if written != found:
        raise CorruptError(f"{name} has the digest {found}, and {written} was written: it was changed or damaged")
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:  # sealed by somebody who had something else in mind
        raise CorruptError(f"{name} does not hold JSON: {error}") from error
    if not isinstance(body, dict):
        raise CorruptError(f"{name} must hold a JSON object")
    return body
