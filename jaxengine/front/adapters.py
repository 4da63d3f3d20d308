"""The adapters that callers name, as the engine knows them, and prompts that are to run with them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from jaxengine.contract.adapters import Adapter
from jaxengine.contract.facts import EngineFacts
from jaxengine.contract.lora_request import LoRARequest
from jaxengine.errors import RequestError
from jaxengine.front.intake import naming
from jaxengine.front.prompts import parse_prompt

LoRARequests = LoRARequest | Sequence[LoRARequest | None] | None
"""The adapter of all prompts, or one each, or None of those that have none."""


class KnownAdapters:
    """Digests of adapters that the engine has read, by the paths of their directories.

    Args:
        facts: of the engine.
    """

    def __init__(self, facts: EngineFacts) -> None:
        self._facts = facts
        self._digests: dict[str, str] = {}

    def check(self, given: object) -> None:
        """Accept what is an adapter, of an engine that has some.

        Raises:
            RequestError: it is something else, or the engine has none.
        """
        if not isinstance(given, LoRARequest):
            raise RequestError.of("lora_request", f"must be LoRARequest or None, got {type(given).__name__}")
        if self._facts.adapters is None:
            raise RequestError.of("lora_request", "needs an engine that was started with enable_lora=True")

    def find(self, request: LoRARequest) -> Adapter | None:
        """An adapter that was read; None if it has to be."""
        path = self.path(request)
        digest = None if request.load_inplace else self._digests.get(path)
        return None if digest is None else Adapter(request.lora_name, path, digest, request.lora_int_id)

    def path(self, request: LoRARequest) -> str:
        """Where an adapter lies, from wherever the engine runs."""
        return os.path.abspath(os.path.expanduser(request.lora_path))

    def note(self, request: LoRARequest, digest: str) -> Adapter:
        """The adapter, which was read."""
        path = self.path(request)
        self._digests[path] = digest
        return Adapter(request.lora_name, path, digest, request.lora_int_id)


def requests_for(given: LoRARequests, count: int) -> list[LoRARequest | None]:
    """What each of so many prompts is to run with.

    Raises:
        RequestError: neither one adapter nor as many as there are prompts.
    """
    if isinstance(given, Sequence) and not isinstance(given, str):
        if len(given) != count:
            raise RequestError.of("lora_request", f"must be one LoRARequest or a list of {count}, got {len(given)}")
        return list(given)
    return [given] * count


def with_adapters(prompts: Sequence[Any], adapters: Sequence[Adapter | None]) -> list[Any]:
    """The prompts, each to run with its adapter.

    Raises:
        RequestError: one is no prompt.
    """
    if not any(adapters):
        return list(prompts)
    parsed = []
    for index, (prompt, adapter) in enumerate(zip(prompts, adapters, strict=True)):
        with naming(index, several=len(prompts) > 1):
            parsed.append(replace(parse_prompt(prompt), adapter=adapter))
    return parsed
