"""What the runtime needs of a model, whatever its family."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Protocol

from jaxengine.device.models.config.decoder_config import DecoderConfig
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.weights.rules import Ignore, Rule

if TYPE_CHECKING:
    import jax

    from jaxengine.device.layers.context import ModelContext
    from jaxengine.device.layers.keeps import Keeps
    from jaxengine.device.layers.stack import Layer
    from jaxengine.device.layers.step import Shared


LOGITS = "logits"
Head = Callable[["jax.Array"], "jax.Array"]
"""`hidden [R, E]` of some tokens -> `[R, ...]`."""


class Model(Protocol):
    """A model as a Flax NNX module.

    `WEIGHTS` maps checkpoint tensors to parameters, `IGNORED` names the keys of config.json that may be left unread.
    A forward pass is `embed_tokens`, each of `layers`, `final_norm`, in one program or in several (`device/runtime/forward.py`).
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
    def cache(self) -> tuple[Keeps, ...]:
        """What each layer keeps of a sequence."""
        ...

    def embed_tokens(self, tokens: jax.Array, positions: jax.Array) -> tuple[jax.Array, Shared]:
        """`tokens [N]`, `positions [N]` -> the residual stream `[N, E]`, and what all layers are given beside it."""
        ...

    def final_norm(self, x: jax.Array) -> jax.Array:
        """The residual stream `[N, E]` after the last layer -> hidden `[N, E]` for `heads`. Each row stands for itself."""
        ...

    @property
    def heads(self) -> Mapping[str, Head]:
        """What can be made of hidden states, by name. Sampling needs `LOGITS`: float32 `[R, V]`, split over the vocabulary on a
        mesh that divides it."""
        ...
