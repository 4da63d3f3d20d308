"""What a launch of an encoder is for its layers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import jax

from jaxengine.device.layers.step import Shared


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TowerStep:
    """`Places` on the device, and what the tower gives to all layers. Of `N` places the first `used` have to be computed."""

    offsets: jax.Array
    windows: jax.Array
    positions: jax.Array
    table: jax.Array
    shares: jax.Array
    taken: jax.Array
    weights: jax.Array | None = None
    used: jax.Array | None = None
    shared: Shared = field(default_factory=Shared)

    @property
    def adapters(self) -> None:
        """None: those of texts do not go through towers."""
        return

    def sharing(self, shared: Shared) -> TowerStep:
        """The step with what the tower gives to all layers."""
        return replace(self, shared=shared)

    def within_windows(self) -> TowerStep:
        """The step of layers whose places see their window alone."""
        return replace(self, offsets=self.windows)
