"""Which weights made the tokens of a choice, as answers tell it."""

from __future__ import annotations

from collections.abc import Iterable

from typing_extensions import TypedDict

from jaxengine.contract.outputs import VersionedTokens


class TokensOfVersion(TypedDict):
    """So many tokens in a row were made by the weights of one version."""

    version: str
    num_tokens: int


class TokenVersions:
    """Those of all tokens of one choice, which come part by part."""

    def __init__(self) -> None:
        self._runs: list[TokensOfVersion] = []

    def add(self, gained: Iterable[VersionedTokens]) -> None:
        """Count what the choice gained."""
        for version, num_tokens in gained:
            if self._runs and self._runs[-1]["version"] == version:
                self._runs[-1]["num_tokens"] += num_tokens
            else:
                self._runs.append({"version": version, "num_tokens": num_tokens})

    def whole(self) -> list[TokensOfVersion]:
        """All of them."""
        return self._runs
