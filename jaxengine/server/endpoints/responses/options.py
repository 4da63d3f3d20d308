"""Options of `/v1/responses`."""

from __future__ import annotations

from dataclasses import dataclass

from jaxengine.options.option import MIB, at_least, option


@dataclass(frozen=True, kw_only=True)
class ResponsesConfig:
    """What is kept for `/v1/responses`."""

    response_store_bytes: int = option(64 * MIB, "memory for kept responses of /v1/responses", check=at_least(0))
