"""Request fields of OpenAI's and vLLM's that a protocol file does not declare: without effect on an answer, or refused by name.

Every field of their schemas is either declared by its endpoint or in `options/names.toml`; a test compares. Others are ignored
with a warning.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

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
        asks = value not in taken[name] if name in taken else bool(value)
        if name in absent and value is not None and asks:
            raise UnsupportedError(f"{name} is not supported: {absent[name]}", param=name)
    harmless = reasons("request_fields_harmless")["names"]
    unknown = sorted(name for name in extra if name not in absent and name not in harmless)
    if unknown:
        _warn(repr(unknown)[:300])


@lru_cache(maxsize=256)
def _warn(names: str) -> None:
    # Once per set of names: clients repeat themselves.
    logger.warning("request fields that mean nothing here are ignored: %s", names)
