"""Adapters (LoRA): what a request says of the one that it runs with, and how many an engine has room for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter that an engine has read.

    `name` is what users call it, `path` the directory with its files where the engine finds them. `digest` is of their contents:
    it is what an adapter is known by, so another that comes to lie under the same path is another one. `number` is the caller's.
    """

    name: str
    path: str
    digest: str
    number: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterFacts:
    """Of at most `max_loras` adapters sequences run at once; `most_on_host` are kept in memory."""

    max_loras: int
    most_on_host: int
