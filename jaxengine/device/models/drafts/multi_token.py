"""Layers of a checkpoint that predict the token after the next one (MTP), of whatever family the checkpoint is.

At place i such a layer reads the state that the model has there and the embedding of token i + 1, each normalised and both
together projected to one stream, which goes through a block like one of the model's own; the model's head then says token i + 2.
Of what it has computed it goes on itself: with that as the state, and token i + 2. (DeepSeek V3's report, section 2.2. Where a
checkpoint has several such layers the first is used for all tokens, as in vLLM.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from jaxengine.device.layers.context import ModelContext
from jaxengine.device.layers.linear import Linear
from jaxengine.device.layers.stack import Layer
from jaxengine.device.layers.step import Shared
from jaxengine.device.models.shared.decoder import Decoder
from jaxengine.device.weights.rules import Ignore, Rule

JOINED: Mapping[str, str] = {"token_norm.scale": "enorm", "state_norm.scale": "hnorm", "join.weight": "eh_proj"}
"""What most checkpoints call what joins a token and a state."""


class Predictor(Decoder):
    """A `Draft` with blocks, norms and head of a target's family, which a subclass inherits behind this.

    Parameters that begin with one of `SHARED` are the target's own arrays of the same path. `STATE_FIRST`: states stand before
    embeddings where both are joined.
    `HANDS_NORMED`: what the next guess is given is what the head reads, not the stream before the norm.
    """

    STATE_FIRST: ClassVar[bool] = False
    HANDS_NORMED: ClassVar[bool] = False
    SHARED: ClassVar[tuple[str, ...]] = ("embed", "head")
    ahead: bool = True
    config: Any
    norm: Any
    if TYPE_CHECKING:  # the family's
        make_norm: Any
        block: Any
        attention_shape: Any
        feed_forward: Any

    def __init__(self, config: Any, context: ModelContext) -> None:
        """`config` is the target's."""
        Decoder.__init__(self, config, context)
        width = config.hidden_size
        self.token_norm, self.state_norm = self.make_norm(), self.make_norm()
        self.join = Linear(2 * width, width, axes=("embed", "inputs"), bias=False, context=context)
        self.layers = nnx.List(self.blocks())
        self.norm = self.make_norm()

    @property
    def taps(self) -> tuple[int, ...]:
        """None: it reads what the target's head reads."""
        return ()

    def blocks(self) -> Sequence[Layer]:
        """What the joined stream goes through: one block like the target's last."""
        return (self.block(self.config.num_layers - 1),)

    @classmethod
    def rules(cls, config: Any) -> tuple[Rule, ...]:
        """Which tensors of the target's checkpoint make the parameters that are not the target's."""
        raise NotImplementedError

    def take_in(self, states: jax.Array) -> jax.Array:
        """The states as they are."""
        return states

    def begin(self, tokens: jax.Array, states: jax.Array | None, positions: jax.Array) -> tuple[jax.Array, Shared]:
        """As the interface says."""
        assert states is not None
        embedded, shared = self.embed_tokens(tokens, positions)
        parts = self.token_norm(embedded), self.state_norm(states)
        joined = jnp.concatenate(parts[::-1] if self.STATE_FIRST else parts, axis=-1)
        return self.join(joined, None), shared

    def end(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """As the interface says."""
        hidden = self.final_norm(x)
        return hidden, hidden if self.HANDS_NORMED else x


def block_rules(
    rows: Sequence[Rule | Ignore], *, named: str, source: str, number: int = 0, renamed: Mapping[str, str] | None = None
) -> tuple[Rule, ...]:
    """A family's rows of layers, `named` like that in its checkpoints, for the block `number`, named `source` there.

    `renamed` are parts of names that are others there.
    """

    def own(name: str) -> str:
        assert name.startswith(named), name
        rest = name.removeprefix(named)
        for usual, other in (renamed or {}).items():
            rest = rest.replace(usual, other)
        return source + rest

    return tuple(
        replace(
            row, target=row.target.replace("*", str(number), 1), source=own(row.source), also=tuple(map(own, row.also))
        )
        for row in rows
        if isinstance(row, Rule) and row.target.startswith("layers.*.")
    )


def named(source: str, rows: Mapping[str, str]) -> tuple[Rule, ...]:
    """Rules of parameters and what they are called behind `source`."""
    return tuple(Rule(target, f"{source}{name}.weight") for target, name in rows.items())
