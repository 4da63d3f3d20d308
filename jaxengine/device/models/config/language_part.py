"""The language model of a larger one, that also sees pictures or hears: text works, and whatever else it takes is refused.

Such a checkpoint has the language model's configuration in a section of its own, and its tensors under a prefix.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import COMMON_IGNORED, Ignored
from jaxengine.device.weights.rules import Ignore, Rule
from jaxengine.errors import ConfigError

SECTION = "text_config"
OUTER_KEYS = ("dtype", "torch_dtype", "tie_word_embeddings")
"""Keys that count where they stand outside of the section, whatever it says."""
PREFIX = "[model.][language_model.][model.]"
"""How transformers 4 and 5 save a language model's layers: `language_model.model.` and `model.language_model.`."""


def language_section(
    reader: ConfigReader, ignored: Mapping[str, Ignored], defaults: Mapping[str, Any] | None = None
) -> ConfigReader:
    """The language model's configuration. `ignored` are keys that its family may leave unread, `defaults` those of its class.

    Raises:
        ConfigError: there is none.
    """
    section = reader.section(SECTION, outer=OUTER_KEYS, ignored={**COMMON_IGNORED, **ignored}, defaults=defaults)
    if section is None:
        raise ConfigError(f"config.json has no {SECTION!r}, which describes the language model")
    return section


def tower_section(reader: ConfigReader, ignored: Mapping[str, Ignored], *, key: str = "vision_config") -> ConfigReader:
    """The configuration of what encodes pictures or sounds, of which `ignored` may be left unread.

    Raises:
        ConfigError: there is none.
    """
    dtypes = dict.fromkeys(("dtype", "torch_dtype"), Ignored("the whole model has one"))
    section = reader.section(key, ignored={**COMMON_IGNORED, **dtypes, **ignored})
    if section is None:
        raise ConfigError(f"config.json has no {key!r}, which describes what encodes pictures or sounds")
    return section


def language_rules(rules: Sequence[Rule | Ignore], others: Sequence[str]) -> tuple[Rule | Ignore, ...]:
    """A language model's weight table for the larger checkpoint, whose parts named `others` are left unread."""
    moved = [
        replace(row, source=_moved(row.source), also=tuple(map(_moved, row.also)))
        if isinstance(row, Rule)
        else replace(row, source=_moved(row.source))
        for row in rules
    ]
    return (*moved, *(Ignore(f"[model.]{part}.**", "pictures and sounds are refused") for part in others))


def _moved(source: str) -> str:
    if source.startswith("[model.]"):
        return PREFIX + source.removeprefix("[model.]")
    return "[language_model.]" + source
