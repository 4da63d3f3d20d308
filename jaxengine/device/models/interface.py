"""What the runtime needs of a model, whatever its family."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from jaxengine.device.models.config.decoder_config import DecoderConfig
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.weights.rules import Ignore, Rule

if TYPE_CHECKING:
    import jax

    from jaxengine.contract.media import Modality
    from jaxengine.contract.pooling import Pooling
    from jaxengine.device.layers.alignment import Alignment
    from jaxengine.device.layers.context import ModelContext
    from jaxengine.device.layers.cross_attention import CrossShape
    from jaxengine.device.layers.keeps import Keeps
    from jaxengine.device.layers.pooler import ProjectionShape
    from jaxengine.device.layers.stack import Layer
    from jaxengine.device.layers.step import Shared
    from jaxengine.device.models.towers.tower import Tower, TowerConfig
    from pallas_kernels import AdapterRows


class Purpose(StrEnum):
    """What a checkpoint is for, by the head it has."""

    GENERATE = "generate"
    EMBED = "embed"
    CLASSIFY = "classify"
    CLASSIFY_TOKENS = "classify tokens"
    REWARD = "reward"
    PROCESS_REWARD = "process reward"


@dataclass(frozen=True, kw_only=True)
class TokenHeads:
    """A projection to each token's vector, for late interaction, and one to its weights (lexical ones, of sparse embeddings).

    With `alone` there is nothing that stands for a whole text. Of a text's first token, where it is the token `first`, nothing
    is kept, nor of its last one's weights where it is `last`.
    """

    vector: ProjectionShape | None = None
    weights: ProjectionShape | None = None
    alone: bool = False
    first: int | None = None
    last: int | None = None


LOGITS, POOLED = "logits", "pooled"
Head = Callable[..., Any]
"""What is made of hidden states."""


@dataclass(frozen=True, kw_only=True)
class MediaTraits:
    """What the runtime has to know of a model that sees or hears.

    A tower of this class and `config` encodes items of these `modalities`; an embedding has `width` numbers of `dtype`, of all
    levels side by side. Positions have `num_axes` axes, 0 being the usual one; with `sight` the tokens of an item see each other.
    Where layers are `crossed` with the encoder, what they read of it takes the place of embeddings; heads of theirs, if it says
    which, tell by `alignment` when a text is said.
    """

    tower: type[Tower]
    config: TowerConfig
    modalities: tuple[Modality, ...]
    width: int
    dtype: Any
    num_axes: int = 0
    sight: bool = False
    crossed: CrossShape | None = None
    alignment: Alignment | None = None

    @property
    def taps(self) -> tuple[int, ...]:
        """Layers of the tower behind which the stream is read beside the end."""
        return self.config.taps

    @property
    def levels(self) -> int:
        """Parts of an embedding, of `config.out_size` numbers each."""
        return 1 + len(self.taps)


class Model(Protocol):
    """A model as a Flax NNX module.

    `WEIGHTS` maps checkpoint tensors to parameters, `IGNORED` names the keys of config.json that may be left unread, `POOLING`
    says which token stands for a prompt where the checkpoint's files do not.
    A forward pass is `embed_tokens`, each of `layers`, `final_norm`, in one program or in several
    (`device/runtime/forward_programs.py`).
    Letters: N tokens of the step (all rows, flat), E embedding size, V vocabulary size, R rows.
    """

    WEIGHTS: ClassVar[Sequence[Rule | Ignore]]
    IGNORED: ClassVar[Mapping[str, Ignored]]
    POOLING: ClassVar[Pooling]
    layers: Sequence[Layer]

    def __init__(self, config: DecoderConfig, context: ModelContext) -> None:
        """`config` is what the family's `read_config` returned."""
        ...

    @classmethod
    def read_config(cls, reader: ConfigReader) -> DecoderConfig:
        """The family's frozen configuration; `registry.read_config` is the door to it."""
        ...

    @classmethod
    def classifier(
        cls, config: DecoderConfig, purpose: Purpose, num_labels: int
    ) -> tuple[tuple[ProjectionShape, ...], int]:
        """The projections of a checkpoint with a head for this purpose, and how many of the last ones a token goes through."""
        ...

    @classmethod
    def token_heads(cls, config: DecoderConfig) -> TokenHeads:
        """What a checkpoint of this class makes of each token, beside or instead of an embedding of the text."""
        ...

    @property
    def cache(self) -> tuple[Keeps, ...]:
        """What each layer keeps of a sequence."""
        ...

    def embed_tokens(
        self, tokens: jax.Array, positions: jax.Array, adapters: AdapterRows | None = None
    ) -> tuple[jax.Array, Shared]:
        """`tokens [N]`, `positions [N]` -> the residual stream `[N, E]`, and what all layers are given beside it.

        `adapters` says which one each of the N places goes through.
        """
        ...

    @property
    def media(self) -> MediaTraits | None:
        """Of a model that sees or hears, which is `shared.seeing.Seeing`."""
        ...

    def final_norm(self, x: jax.Array) -> jax.Array:
        """The residual stream `[N, E]` after the last layer -> hidden `[N, E]` for `heads`. Each row stands for itself."""
        ...

    @property
    def heads(self) -> Mapping[str, Head]:
        """What can be made of hidden states, by name: one of two.

        `LOGITS`, for sampling: `hidden [R, E]` of some tokens, and which adapter each goes through (None: through none) ->
        float32 `[R, V]`, split over the vocabulary on a mesh that divides it. `POOLED`: `hidden [N, E]` of a step and
        `offsets int32 [B + 1]` of its rows -> `Pooled`.
        """
        ...
