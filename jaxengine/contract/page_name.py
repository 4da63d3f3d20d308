"""What the content of a full page is known by, on both sides of the contract and outside the process."""

from __future__ import annotations

from typing import NamedTuple


class PageName(NamedTuple):
    """A page of cache group `group` that holds exactly `tokens`, after everything that `parent` stands for.

    `digest` and `parent` are those of the prefix's chain (`host/kvcache/prefix.py`), `tokens` the bytes that it was made of.
    A digest alone is never trusted: whoever takes a page compares all of its name.
    """

    group: int
    digest: bytes
    parent: bytes
    tokens: bytes
