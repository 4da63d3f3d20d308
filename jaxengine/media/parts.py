"""What messages show is taken out of them: parts of OpenAI's, vLLM's and transformers' forms become items, and marks of them."""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxengine.contract.media import Modality
from jaxengine.errors import RequestError, UnsupportedError
from jaxengine.media.embeddings import ALLOWED, EMBEDS, GRIDS, Given
from jaxengine.media.items import Shown

DETAILS = ("auto", "low", "high", "original")
LOW_DETAIL = 512
"""The longest side of a picture of which little detail is asked."""
EMBEDDINGS = ("audio_embeds", "prompt_embeds")


def lift(messages: Any) -> tuple[Any, tuple[Shown, ...]]:
    """Messages in which `{"type": "image"}` and the like stand for what they show, and that, in order.

    What is no list of messages comes back as it is: whoever reads it says what is wrong.

    Raises:
        RequestError: a part that is malformed.
        UnsupportedError: a part of a kind that is known by name and not taken.
    """
    shown: list[Shown] = []
    if not isinstance(messages, Sequence) or isinstance(messages, (str, bytes)):
        return messages, ()
    lifted = [_message(index, message, shown) for index, message in enumerate(messages)]
    return (lifted, tuple(shown)) if shown else (messages, ())


def _message(index: int, message: Any, shown: list[Shown]) -> Any:
    content = message.get("content") if isinstance(message, Mapping) else None
    if not isinstance(content, (list, tuple)):
        return message
    parts = []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind in EMBEDDINGS:
            raise UnsupportedError(
                f"message {index} has a part of type {kind}, and embeddings are not taken: give the item itself",
                param="messages",
            )
        read = PARTS.get(kind) if isinstance(kind, str) else None
        if read is None:
            parts.append(part)
            continue
        item = read(f"message {index}", part)
        shown.append(item)
        parts.append({"type": str(item.modality)})
    return {**message, "content": parts}


def _named(modality: Modality, key: str) -> Callable[[str, Mapping[str, Any]], Shown]:
    """A part such as `{"type": "image_url", "image_url": {"url": ...}}`, or with the URL alone."""

    def read(where: str, part: Mapping[str, Any]) -> Shown:
        given = part.get(key)
        url = given.get("url") if isinstance(given, Mapping) else given
        if not isinstance(url, str):
            raise RequestError(f"a part of {where} needs {key}, a URL or {{'url': ...}}", param="messages")
        detail = (given if isinstance(given, Mapping) else part).get("detail")
        return Shown(modality, url, _largest(where, detail))

    return read


def _data(where: str, part: Mapping[str, Any]) -> Shown:
    """`{"type": "input_audio", "input_audio": {"data": base64, "format": ...}}`: the file says its format itself."""
    given = part.get("input_audio")
    data = given.get("data") if isinstance(given, Mapping) else None
    if not isinstance(data, str):
        raise RequestError(f"a part of {where} needs input_audio, {{'data': base64, 'format': ...}}", param="messages")
    try:
        return Shown(Modality.AUDIO, b64decode(data, validate=True))
    except (binascii.Error, ValueError) as error:
        raise RequestError(f"the data of input_audio of {where} are not base64: {error}", param="messages") from error


def _own(modality: Modality, *keys: str) -> Callable[[str, Mapping[str, Any]], Shown]:
    """A part with the item itself, or its URL, under one of these names."""

    def read(where: str, part: Mapping[str, Any]) -> Shown:
        source = next((part[key] for key in keys if part.get(key) is not None), None)
        if source is None:
            raise RequestError(f"a part of {where} of type {part['type']} needs {' or '.join(keys)}", param="messages")
        return Shown(modality, source)

    return read


def _embeddings(where: str, part: Mapping[str, Any]) -> Shown:
    """`{"type": "image_embeds", "image_embeds": file in base64}`, or a dict of such as Qwen's models need it."""
    given = part.get(EMBEDS)
    if isinstance(given, Mapping) and EMBEDS in given and not given.keys() - {EMBEDS, GRIDS}:
        return Shown(Modality.IMAGE, Given(given[EMBEDS], given.get(GRIDS)))
    if given is None or isinstance(given, Mapping):
        raise RequestError(
            f"a part of {where} needs {EMBEDS}, {ALLOWED}, or {{'{EMBEDS}': ..., '{GRIDS}': ...}}", param="messages"
        )
    return Shown(Modality.IMAGE, Given(given))


PARTS: Mapping[str, Callable[[str, Mapping[str, Any]], Shown]] = {
    "image_url": _named(Modality.IMAGE, "image_url"),
    "input_image": _named(Modality.IMAGE, "image_url"),
    "video_url": _named(Modality.VIDEO, "video_url"),
    "audio_url": _named(Modality.AUDIO, "audio_url"),
    "input_audio": _data,
    EMBEDS: _embeddings,
    "image_pil": _own(Modality.IMAGE, "image_pil"),
    "image": _own(Modality.IMAGE, "image", "url"),
    "video": _own(Modality.VIDEO, "video", "url"),
    "audio": _own(Modality.AUDIO, "audio", "url"),
}
"""Of each type of part how it is read."""


def _largest(where: str, detail: Any) -> int | None:
    if detail is not None and detail not in DETAILS:
        raise RequestError(
            f"detail of a part of {where} must be one of {', '.join(DETAILS)}, got {detail!r}", param="messages"
        )
    return LOW_DETAIL if detail == "low" else None
