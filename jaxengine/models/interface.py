"""What the runtime needs of a model, whatever its family."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from jaxengine.weights.rules import Ignore, Rule

if TYPE_CHECKING:
    import jax

    from jaxengine.layers.step import Step
    from jaxengine.models.hf import ConfigReader
from jaxengine.models.ignored import Ignored


@dataclass(frozen=True, slots=True)
class Paged:
    """Keys and values, in pages, of the layers with these numbers; a model declares one for each kind of layer.

    `num_kv_heads` already counts repeats for meshes with more chips than KV heads. `keep` is how many positions back a token of
    these layers sees, itself included: what lies before goes back while the sequence runs. None is all.
    """

    layers: tuple[int, ...]
    num_kv_heads: int
    head_dim: int
    keep: int | None = None


class CausalLM(Protocol):
    """A decoder-only language model as a Flax NNX module, built as `Model(config, context)`.

    `WEIGHTS` maps checkpoint tensors to parameters, `IGNORED` names the keys of config.json that may be left unread. `config` is
    a `models.decoder_config.DecoderConfig`.
    Letters: N tokens of the step (all rows, flat), E embedding size, V vocabulary size, R rows.
    """

    WEIGHTS: ClassVar[Sequence[Rule | Ignore]]
    IGNORED: ClassVar[Mapping[str, Ignored]]
    config: Any

    @classmethod
    def read_config(cls, reader: ConfigReader) -> Any:
        """The family's frozen configuration; `models.hf.read_config` is the door to it."""
        ...

    @property
    def cache(self) -> tuple[Paged, ...]: ...

    def __call__(self, tokens: jax.Array, cache: jax.Array, step: Step) -> tuple[jax.Array, jax.Array]:
        """`tokens [N]`, pages `[layers*pages, T, 2K, H]` of all layers -> hidden `[N, E]` after the final norm, pages."""
        ...

    def logits(self, hidden: jax.Array) -> jax.Array:
        """`hidden [R, E]` -> float32 logits `[R, V]`, split over the vocabulary on a mesh that divides it."""
        ...
