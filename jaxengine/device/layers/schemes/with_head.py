"""The vocabulary's matrix kept in a way of its own."""

from __future__ import annotations

from dataclasses import dataclass

from jaxengine.device.layers.schemes import Scheme, Schemes


@dataclass(frozen=True)
class WithHead:
    """`Schemes`: the table `path`, by which hidden states are multiplied, is made by `head`; all else is as `layers` says.

    With tied embeddings it is looked up in, too: there is one table, and `head` has rows of it (`layers.embedding`).
    """

    layers: Schemes
    path: str
    head: Scheme

    @property
    def name(self) -> str | None:
        return self.layers.name

    def of(self, path: str) -> Scheme:
        return self.head if path == self.path else self.layers.of(path)

    def stored(self, path: str) -> bool:
        return path != self.path and self.layers.stored(path)
