"""Request fields of OpenAI's and vLLM's that a protocol file does not declare: without effect on an answer, or refused by name.

Every field of their schemas is either declared by its endpoint or in `options/names.toml`; a test compares. Others are ignored
with a warning.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from pydantic import BaseModel

from jaxengine.errors import UnsupportedError
from jaxengine.options.names import reasons

logger = logging.getLogger("jaxengine")


def check_unknown(extra: Mapping[str, Any] | None) -> None:
    """Look at the fields of a request that its protocol does not declare.

    Raises:
        UnsupportedError: one asks for something that is not built; its neutral values pass.
    """
    if not extra:
        return
    absent, taken = reasons("request_fields"), reasons("request_fields_taken")
    for name, value in extra.items():
        if name in absent and value is not None and _asks(value, taken.get(name)):
            raise UnsupportedError(f"{name} is not supported: {absent[name]}", param=name)
    harmless = reasons("request_fields_harmless")["names"]
    unknown = sorted(name for name in extra if name not in absent and name not in harmless)
    if unknown:
        _warn(repr(unknown)[:300])


def note_unknown(name: str, value: BaseModel | None) -> None:
    """Tell the log what an object within a request has that its protocol does not declare."""
    if value is not None and (unknown := sorted(value.model_extra or ())):
        _warn(repr([f"{name}.{key}" for key in unknown])[:300])


def _asks(value: Any, taken: Sequence[Any] | None) -> bool:
    """Whether a value asks for anything: all do but those that are `taken`, where these are named."""
    if taken is None:
        return bool(value)
    # False is no 0 here, as it is to Python: no log probabilities are not those of the tokens alone.
    return not any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in taken)


@lru_cache(maxsize=256)
def _warn(names: str) -> None:
    # Once per set of names: clients repeat themselves.
    logger.warning("request fields that mean nothing here are ignored: %s", names)
