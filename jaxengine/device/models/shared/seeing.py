"""A decoder that sees or hears: a tower beside it encodes items, and placeholder tokens take their embeddings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from jaxengine.contract.media import Modality
from jaxengine.device.layers.context import ModelContext
from jaxengine.device.layers.schemes.by_path import TOWER as TOWER_PREFIX
from jaxengine.device.layers.step import Shared
from jaxengine.device.models.config.decoder_config import DecoderConfig
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.config.language_part import language_rules, language_section, tower_section
from jaxengine.device.models.config.rotary_config import RotaryDecoderConfig
from jaxengine.device.models.interface import MediaTraits
from jaxengine.device.models.shared.decoder import Decoder
from jaxengine.device.models.shared.rotary_decoder import RotaryDecoder
from jaxengine.device.models.towers.tower import Tower
from jaxengine.device.weights.rules import Array, Ignore, KvHeads, Made, Rule, Transform
from pallas_kernels import AdapterRows


class Seen(NamedTuple):
    """What the pool has for the places of a step: `rows [N, W]`, where there is something (`here bool [N]`)."""

    rows: jax.Array
    here: jax.Array


class Seeing(Decoder):
    """Makes a `Model` that sees of the family's decoder: `class ...(Seeing, TheDecoder)`. Without a tower it reads texts only.

    Positions are `[N]`, or where they have `NUM_AXES` axes `[A, N]`.
    """

    TOWER: ClassVar[type[Tower]]
    MODALITIES: ClassVar[tuple[Modality, ...]] = (Modality.IMAGE,)
    NUM_AXES: ClassVar[int] = 0
    SIGHT: ClassVar[bool] = False

    def __init__(self, config: DecoderConfig, context: ModelContext) -> None:
        super().__init__(config, context)
        if config.tower is None:
            self.tower = None
        else:
            layout = config.tower.shared_by(context.layout)
            self.tower = self.TOWER(config.tower, replace(context, layout=layout))

    @property
    def media(self) -> MediaTraits | None:
        tower = self.config.tower
        if tower is None:
            return None
        return MediaTraits(
            tower=self.TOWER,
            config=tower,
            modalities=self.MODALITIES,
            width=tower.out_size * (1 + len(tower.taps)),
            dtype=self.context.activation_dtype,
            num_axes=self.NUM_AXES,
            sight=self.SIGHT,
        )

    def embed_prompt(
        self, tokens: jax.Array, positions: jax.Array, seen: Seen, adapters: AdapterRows | None = None
    ) -> tuple[jax.Array, Shared]:
        """`embed_tokens` of a step whose places may show something."""
        x, shared = self.embed_tokens(tokens, positions, adapters)
        return jnp.where(seen.here[:, None], seen.rows[:, : x.shape[1]].astype(x.dtype), x), shared


def language_and_tower(
    reader: ConfigReader,
    language: type[RotaryDecoder],
    tower: Any,
    kind: str,
    *,
    defaults: Mapping[str, Any] | None = None,
    beside: tuple[Mapping[str, Ignored], Mapping[str, Ignored]] = ({}, {}),
    **said: Any,
) -> RotaryDecoderConfig:
    """The configuration of a model whose file has a section for each of both.

    Args:
        reader: of the whole file.
        language: the family of the language model, whose `model_type` is `kind`.
        tower: the class of what encodes pictures, which is given what the whole file has `said` of it.
        defaults: of the language model's section, where transformers documents others than its family's.
        beside: keys of both sections that may be left unread beside those of their classes.
    """
    of_language, of_tower = beside
    section = language_section(reader, {**language.IGNORED, **of_language}, defaults)
    section.choice("model_type", kind, (kind,))
    text = language.read_config(section)
    assert isinstance(text, RotaryDecoderConfig)
    seen = tower.read_config(tower_section(reader, {**tower.IGNORED, **of_tower}), out_size=text.hidden_size, **said)
    return replace(text, tower=seen)


def seeing_rules(text: Sequence[Rule | Ignore], tower: Sequence[Rule | Ignore]) -> tuple[Rule | Ignore, ...]:
    """The weight table of a model that sees: its language model's, and its tower's, which a start for texts alone leaves out."""
    return (*language_rules(text, ()), *map(of_tower, tower))


def of_tower(row: Rule | Ignore) -> Rule | Ignore:
    """A tower's row in the table of the whole."""
    if isinstance(row, Ignore):
        return row
    transform = None if row.transform is None else _with_its_config(row.transform)
    return replace(row, target=TOWER_PREFIX + row.target, transform=transform, absent_if="blind")


def _with_its_config(transform: Transform) -> Transform:
    def converted(tensor: Array, config: KvHeads, shape: tuple[int, ...]) -> Array | Made:
        assert isinstance(config, DecoderConfig)
        return transform(tensor, config.tower, shape)

    return converted
