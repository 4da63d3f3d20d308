"""What the runtime needs of a model, whatever its family."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import jax.numpy as jnp

from jaxengine.device.models.config.decoder_config import DecoderConfig
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.weights.rules import Ignore, Rule

if TYPE_CHECKING:
    import jax

    from jaxengine.device.layers.context import ModelContext
    from jaxengine.device.layers.stack import Layer
    from jaxengine.device.layers.step import Angles


WHOLE_CHUNKS = 128


@dataclass(frozen=True, slots=True)
class Paged:
    """Keys and values, in pages, of the layers with these numbers; a model declares one for each kind of layer.

    `num_kv_heads` already counts repeats for meshes with more chips than KV heads. `keep` is how many positions back a token of
    these layers sees, itself included: what lies before goes back while the sequence runs. None is all. Of `latent` layers a
    token keeps one vector of `head_dim` numbers that all heads share, whole on every device. `readers` are further layers, which
    keep nothing and see what one of these keeps: pairs of their number and the other's.
    """

    layers: tuple[int, ...]
    num_kv_heads: int
    head_dim: int
    keep: int | None = None
    latent: bool = False
    readers: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class PerSlot:
    """An array that the layers with these numbers keep of each running sequence: `shape` and `dtype` of one layer's.

    `axes` names the axes of `shape` (`layers/sharding.py`). A row of a step goes on from what the row before it left, and a
    sequence's first from zeros; so a step has one row of a sequence at most, and no prefix is shared. A prompt that is cut into
    rows at multiples of `cut` positions is summed in the same order as whole: the device goes through a row in chunks, from its
    beginning, and of every recurrence and platform so many tokens are whole chunks.
    """

    layers: tuple[int, ...]
    shape: tuple[int, ...]
    axes: tuple[str, ...]
    dtype: jnp.dtype[Any]
    cut: int = WHOLE_CHUNKS


@dataclass(frozen=True, slots=True)
class Nothing:
    """The layers with these numbers keep nothing of a sequence: each token is worked on alone."""

    layers: tuple[int, ...]


Kept = Paged | PerSlot | Nothing
"""What some layers of a model keep; every layer is in one that keeps pages or nothing, or in some that keep states."""


class CausalLM(Protocol):
    """A decoder-only language model as a Flax NNX module.

    `WEIGHTS` maps checkpoint tensors to parameters, `IGNORED` names the keys of config.json that may be left unread.
    A forward pass is `enter`, each of `layers`, `leave`, in one program or in several (`device/runtime/forward.py`).
    Letters: N tokens of the step (all rows, flat), E embedding size, V vocabulary size, R rows.
    """

    WEIGHTS: ClassVar[Sequence[Rule | Ignore]]
    IGNORED: ClassVar[Mapping[str, Ignored]]
    layers: Sequence[Layer]

    def __init__(self, config: DecoderConfig, context: ModelContext) -> None:
        """`config` is what the family's `read_config` returned."""
        ...

    @classmethod
    def read_config(cls, reader: ConfigReader) -> DecoderConfig:
        """The family's frozen configuration; `registry.read_config` is the door to it."""
        ...

    @property
    def cache(self) -> tuple[Kept, ...]: ...

    def enter(self, tokens: jax.Array, positions: jax.Array) -> tuple[jax.Array, tuple[Angles, ...]]:
        """`tokens [N]`, `positions [N]` -> the residual stream `[N, E]`, and the angles of the step."""
        ...

    def leave(self, x: jax.Array) -> jax.Array:
        """The residual stream `[N, E]` after the last layer -> hidden `[N, E]` for `logits`. Each row stands for itself."""
        ...

    def logits(self, hidden: jax.Array) -> jax.Array:
        """`hidden [R, E]` -> float32 logits `[R, V]`, split over the vocabulary on a mesh that divides it."""
        ...
