"""The forms in which a prompt may come, told apart by shape."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxengine.contract.adapters import Adapter
from jaxengine.contract.media import Modality, PromptMedia
from jaxengine.contract.speech import SpeechRules
from jaxengine.errors import RequestError, UnsupportedError, nearest
from jaxengine.media.embeddings import given_of, is_embeddings
from jaxengine.media.items import Shown
from jaxengine.options.names import reasons

Prompt = str | Sequence[int] | Mapping[str, Any]
"""Text, token ids, or a dict with `prompt` or `prompt_token_ids` (or both), and perhaps a `cache_salt` or what it shows."""

KEYS = ("prompt", "prompt_token_ids", "cache_salt", "multi_modal_data", "mm_processor_kwargs")


@dataclass(frozen=True, slots=True)
class ParsedPrompt:
    """`text`, `token_ids`, or both (the text is then only reported back).

    It is to run with `adapter`, where there is one.
    Of two texts in one prompt the tokens of the second begin at `second_from`, where the model tells them apart.
    `shown` are items that are not prepared yet, to be as `mm_processor_kwargs` say; `media` are those that stand in `token_ids`.
    `speech` are rules of its output, the text of a sound.

    Raises:
        RequestError: `cache_salt` is empty.
    """

    text: str | None = None
    token_ids: tuple[int, ...] | None = None
    cache_salt: str | None = None
    adapter: Adapter | None = None
    second_from: int | None = None
    shown: tuple[Shown, ...] = ()
    mm_processor_kwargs: Mapping[str, Any] | None = None
    media: PromptMedia | None = None
    speech: SpeechRules | None = None

    def __post_init__(self) -> None:
        if self.cache_salt is not None and not self.cache_salt:
            raise _salt_error(self.cache_salt)


def split_prompts(prompts: Any) -> tuple[list[Any], bool]:
    """The prompts of a call as a list, and whether it was one alone: a bare list of ids is one prompt.

    Raises:
        RequestError: neither a prompt nor a sequence of them.
    """
    if isinstance(prompts, (str, Mapping)) or _is_ids(prompts):
        return [prompts], True
    if isinstance(prompts, Sequence) and not isinstance(prompts, (bytes, bytearray)):
        return list(prompts), False
    raise RequestError(f"prompts must be text, token ids, a dict, or a list of those, got {type(prompts).__name__}")


def parse_prompt(prompt: Any) -> ParsedPrompt:
    """Tell which form a prompt has; one that is told already stays as it is.

    Raises:
        RequestError: none of them, an unknown key, or a value of the wrong type.
        UnsupportedError: a form that is known by name and not built.
    """
    if isinstance(prompt, ParsedPrompt):
        return prompt
    if isinstance(prompt, str):
        return ParsedPrompt(text=prompt)
    if isinstance(prompt, Mapping):
        return _from_mapping(prompt)
    if isinstance(prompt, Sequence) and not isinstance(prompt, (bytes, bytearray)):
        return ParsedPrompt(token_ids=_token_ids(prompt))
    raise RequestError(f"a prompt is text, a list of token ids, or a dict, got {type(prompt).__name__}", param="prompt")


def _from_mapping(prompt: Mapping[str, Any]) -> ParsedPrompt:
    for key, value in prompt.items():
        if key in KEYS:
            continue
        if (reason := reasons("prompt_keys").get(key)) is None:
            raise RequestError(f"unknown prompt key {key!r}.{nearest(str(key), KEYS)}", param=str(key))
        if value is not None:
            raise UnsupportedError(f"prompt key {key!r} is not supported: {reason}", param=key)
    text, ids, salt, data, kwargs = (prompt.get(key) for key in KEYS)
    if text is not None and not isinstance(text, str):
        raise RequestError(f"prompt must be text, got {type(text).__name__}", param="prompt")
    if text is None and ids is None:
        raise RequestError("a prompt dict needs 'prompt' or 'prompt_token_ids'", param="prompt")
    if salt is not None and not isinstance(salt, str):
        raise _salt_error(salt)
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise RequestError.of("mm_processor_kwargs", f"must map names to values, got {_shown(kwargs)}")
    return ParsedPrompt(
        text=text,
        token_ids=None if ids is None else _token_ids(ids),
        cache_salt=salt,
        shown=_items(data),
        mm_processor_kwargs=kwargs,
    )


def _items(data: Any) -> tuple[Shown, ...]:
    """What `multi_modal_data` holds: of each modality an item, or a list of them."""
    if data is None:
        return ()
    if not isinstance(data, Mapping):
        raise RequestError.of("multi_modal_data", f'must be such as {{"image": picture}}, got {_shown(data)}')
    items = []
    for name, given in data.items():
        if name not in list(Modality):
            raise RequestError.of(
                "multi_modal_data",
                f"names a modality {name!r}; it may name {', '.join(Modality)}.{nearest(name, list(map(str, Modality)))}",
            )
        modality = Modality(name)
        # A list of numbers is one sound; any other list is of items.
        several = isinstance(given, list) and not (given and isinstance(given[0], (int, float)))
        for item in given if several else [given]:
            if modality is Modality.IMAGE and (isinstance(item, Mapping) or is_embeddings(item)):
                items += [Shown(modality, one) for one in given_of(item)]
            elif isinstance(item, Mapping):
                raise UnsupportedError(
                    f"multi_modal_data: embeddings of {name} are not taken, give the item itself",
                    param="multi_modal_data",
                )
            elif item is not None:
                items.append(Shown(modality, item))
    return tuple(items)


def no_eyes(shown: Sequence[Shown]) -> RequestError:
    """The error of a prompt that shows something to a model, or an engine, for texts alone."""
    modality = shown[0].modality
    return RequestError(
        f"At most 0 {modality}(s) may be provided in one prompt: this model takes text alone, or was started so",
        param=str(modality),
    )


def _salt_error(salt: object) -> RequestError:
    return RequestError(f"cache_salt must be a non-empty string, got {salt!r}", param="cache_salt")


def _token_ids(ids: Any) -> tuple[int, ...]:
    if not _is_ids(ids) and not (isinstance(ids, Sequence) and len(ids) == 0):
        raise RequestError(f"prompt_token_ids must be a list of integers, got {_shown(ids)}", param="prompt_token_ids")
    return tuple(map(operator.index, ids))


def _is_ids(value: Any) -> bool:
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes, bytearray)) or not value:
        return False
    return all(hasattr(item, "__index__") and not isinstance(item, bool) for item in value)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
