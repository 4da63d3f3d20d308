"""A small model of any family that drafts for a larger one with the same tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxengine.device.models.interface import LOGITS, Model

if TYPE_CHECKING:
    import jax

    from jaxengine.device.layers.keeps import Keeps
    from jaxengine.device.layers.step import Shared


class WholeModel:
    """A `Model` as a `Draft`: it reads the tokens of a step as the target does, and nothing of the target."""

    ahead = False
    taps: tuple[int, ...] = ()

    def __init__(self, model: Model) -> None:
        self._model = model
        self.layers = model.layers

    @property
    def cache(self) -> tuple[Keeps, ...]:
        return self._model.cache

    def take_in(self, states: jax.Array) -> jax.Array:
        """Never called: it is not ahead."""
        return states

    def begin(self, tokens: jax.Array, states: jax.Array | None, positions: jax.Array) -> tuple[jax.Array, Shared]:
        return self._model.embed_tokens(tokens, positions)

    def end(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        hidden = self._model.final_norm(x)
        return hidden, hidden

    def logits(self, hidden: jax.Array) -> jax.Array:
        found: jax.Array = self._model.heads[LOGITS](hidden)
        return found
