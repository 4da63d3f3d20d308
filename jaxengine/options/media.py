"""Options about what prompts show: pictures, videos and sounds, with vLLM's names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jaxengine.errors import ConfigError, nearest
from jaxengine.options.option import at_least, not_negative, option

MODALITIES = ("image", "video", "audio")
MOST = 999
"""vLLM's limit where none is given."""
IO_KEYS: Mapping[str, tuple[str, ...]] = {
    "image": ("rgba_background_color",),
    "video": ("num_frames", "fps"),
    "audio": (),
}


@dataclass(frozen=True, kw_only=True)
class MediaConfig:
    """What prompts may show, from where, and how it is prepared."""

    limit_mm_per_prompt: Mapping[str, Any] = option(
        {},
        'most items of a prompt by modality, as JSON such as {"image": 4, "video": 0}; 999 of what is not named. With 0 of all '
        "a model that sees starts as one for text alone, without its encoder",
        shapes=True,
    )
    mm_processor_kwargs: Mapping[str, Any] = option(
        {},
        'what the model\'s processor is told instead of what its files say, as JSON such as {"max_pixels": 1003520}',
        shapes=True,
    )
    media_io_kwargs: Mapping[str, Any] = option(
        {},
        'how files are decoded, as JSON by modality: {"video": {"num_frames": 32, "fps": -1}, '
        '"image": {"rgba_background_color": [255, 255, 255]}}',
    )
    allowed_local_media_path: str | None = option(
        None, "folder of which prompts may name files (file:///...); without it none are read"
    )
    allowed_media_domains: tuple[str, ...] | None = option(
        None, "the only hosts that media are fetched from, which may then be private ones; any public one when left out"
    )
    interleave_mm_strings: bool = option(
        False,
        "with a chat template that reads text alone: leave placeholders where the items are in a message, not before its text",
    )
    enable_mm_embeds: bool = option(
        False,
        "take embeddings of pictures instead of pictures (image_embeds); only for those who are trusted: the model can be shown "
        "anything at all by them",
    )
    mm_processor_cache_gb: float = option(
        4.0, "GiB of prepared items that are kept for prompts that show them again; 0 keeps none", check=not_negative
    )
    max_num_encoder_tokens: int | None = option(
        None,
        "most patches that are encoded beside one step (default: 8192; an item that has more goes alone)",
        check=at_least(1),
    )

    def __post_init__(self) -> None:
        for name, value in self.limit_mm_per_prompt.items():
            check_modality("limit_mm_per_prompt", name)
            count = value.get("count") if isinstance(value, Mapping) and value.keys() == {"count"} else value
            if isinstance(count, bool) or not isinstance(count, int) or count < 0:
                raise ConfigError(f"limit_mm_per_prompt: {name} must be an integer of at least 0, got {value!r}")
        for name, value in self.media_io_kwargs.items():
            check_modality("media_io_kwargs", name)
            check_io("media_io_kwargs", name, value)

    def most_of(self, modality: str) -> int:
        """The most items of a modality in a prompt."""
        limit = self.limit_mm_per_prompt.get(modality, MOST)
        return int(limit["count"] if isinstance(limit, Mapping) else limit)


def check_io(option_name: str, modality: str, value: Any) -> None:
    """Accept what is said of decoding one modality.

    Raises:
        ConfigError: an unknown key, or no such value.
    """
    if not isinstance(value, Mapping):
        raise ConfigError(f"{option_name}: {modality} must map names to values, got {value!r}")
    allowed = IO_KEYS[modality]
    for key, given in value.items():
        if key not in allowed:
            raise ConfigError(
                f"{option_name}: {modality} has an unknown key {key!r}; it takes {', '.join(allowed) or 'none'}."
            )
        if key == "rgba_background_color":
            valid = isinstance(given, (list, tuple)) and len(given) == 3
            if not valid or not all(type(part) is int and 0 <= part <= 255 for part in given):
                raise ConfigError(f"{option_name}: {key} must be three integers from 0 to 255, got {given!r}")
        elif isinstance(given, bool) or not isinstance(given, (int, float)) or (given <= 0 and given != -1):
            raise ConfigError(f"{option_name}: {key} must be a number above 0, or -1 for no limit, got {given!r}")
        elif key == "num_frames" and not isinstance(given, int):
            raise ConfigError(f"{option_name}: {key} must be an integer, got {given!r}")


def check_modality(option_name: str, name: str) -> None:
    """Accept the name of a modality.

    Raises:
        ConfigError: there is none of it.
    """
    if name not in MODALITIES:
        raise ConfigError(
            f"{option_name} names a modality {name!r}; it may name {', '.join(MODALITIES)}.{nearest(name, MODALITIES)}"
        )
