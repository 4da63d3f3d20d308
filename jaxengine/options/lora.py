"""Options of LoRA adapters: how many there may be, and how large."""

from __future__ import annotations

import dataclasses
import logging
from dataclasses import dataclass
from typing import Any

from jaxengine.errors import ConfigError
from jaxengine.options.option import at_least, option

logger = logging.getLogger("jaxengine")

RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""vLLM's: what `max_lora_rank` may be."""


def _rank(value: Any) -> str | None:
    allowed = isinstance(value, int) and not isinstance(value, bool) and value in RANKS
    return None if allowed else f"one of {', '.join(map(str, RANKS))}"


@dataclass(frozen=True, kw_only=True)
class LoraConfig:
    """Adapters beside the model's weights (LoRA, in PEFT's format)."""

    enable_lora: bool = option(
        False, "serve LoRA adapters: requests name one, and those of many run in one step", shapes=True
    )
    max_loras: int = option(
        1, "most adapters that run in one step: slots on the device", check=at_least(1), shapes=True
    )
    max_lora_rank: int = option(16, "largest rank of an adapter", check=_rank, shapes=True)
    max_cpu_loras: int | None = option(
        None,
        "most adapters in the host's memory, at least max_loras; others are read from their files again when they are asked for "
        "(default: max_loras)",
        check=at_least(1),
    )
    lora_dtype: str = option(
        "auto",
        "what adapters are kept in; auto is the model's dtype",
        choices=("auto", "float16", "bfloat16", "float32"),
        shapes=True,
    )

    lora_target_modules: tuple[str, ...] | None = option(
        None,
        "matrices that adapters may train, by the last part of their names in the checkpoint (q_proj, embed_tokens, lm_head), or "
        "experts for those of experts; each costs memory (default: all of layers but experts)",
        shapes=True,
    )

    def __post_init__(self) -> None:
        for spec in () if self.enable_lora else dataclasses.fields(self):
            if (value := getattr(self, spec.name)) != spec.default:  # vLLM's command lines may have it
                logger.warning("%s=%r has no effect: without enable_lora there are no adapters", spec.name, value)
        if self.max_cpu_loras is not None and self.max_cpu_loras < self.max_loras:
            raise ConfigError(
                f"max_cpu_loras={self.max_cpu_loras} must be at least max_loras ({self.max_loras}): what is on the device is in "
                "the host's memory first"
            )

    @property
    def most_on_host(self) -> int:
        """Adapters that the host's memory has room for."""
        return self.max_loras if self.max_cpu_loras is None else self.max_cpu_loras
