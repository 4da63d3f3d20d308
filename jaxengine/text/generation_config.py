"""What a model's generation_config.json asks for: default sampling, end-of-sequence ids, a cap on the output."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jaxengine.contract.sampling_options import OPTIONS
from jaxengine.errors import ConfigError, nearest
from jaxengine.text.settings import read_json_object

logger = logging.getLogger("jaxengine")

SAMPLING_KEYS = tuple(option.name for option in OPTIONS)
HONOURED = (*SAMPLING_KEYS, "eos_token_id", "max_new_tokens")
SILENT = ("_from_model_config", "transformers_version", "bos_token_id", "pad_token_id", "do_sample", "use_cache")
"""Keys that say nothing about what vLLM's users expect; `do_sample: false` without temperature is common and not meant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationDefaults:
    """Defaults for requests that name no sampling parameters.

    `eos_token_ids` end a sequence besides the tokenizer's own. `max_new_tokens` bounds every request's output.
    """

    sampling: Mapping[str, float] = field(default_factory=dict)
    eos_token_ids: tuple[int, ...] = ()
    max_new_tokens: int | None = None

    @classmethod
    def load(
        cls,
        model_directory: str | Path,
        config_json: Mapping[str, Any],
        *,
        hf_overrides: Mapping[str, Any] | None = None,
        source: str = "auto",
        override: Mapping[str, Any] | None = None,
    ) -> GenerationDefaults:
        """Read the defaults of a model.

        Args:
            model_directory: where generation_config.json is.
            config_json: the contents of config.json as the model is built of them. Its `eos_token_id` counts where
                generation_config.json has none.
            hf_overrides: what of them the user has set. An `eos_token_id` among it counts in any case.
            source: `auto` is the model's file, `vllm` leaves the sampling defaults of `SamplingParams`, anything else is a
                directory (or the file itself).
            override: keys that replace those of the file.

        Raises:
            ConfigError: an override that is not honoured, or a value that is not a number.
            CheckpointError: the file is not valid JSON.
        """
        directory = Path(model_directory)
        values = _read(directory, source)
        values.setdefault("eos_token_id", config_json.get("eos_token_id"))
        for key in override or {}:
            if key not in HONOURED:
                raise ConfigError(f"override_generation_config: {key!r} is not honoured.{nearest(key, HONOURED)}")
        ignored = sorted(key for key in values if key not in HONOURED and key not in SILENT and values[key] is not None)
        if ignored:
            logger.info("generation_config.json: %s ignored (known: %s)", ", ".join(ignored), ", ".join(HONOURED))
        values.update(override or {})
        return cls(
            sampling={key: _number(key, values[key]) for key in SAMPLING_KEYS if values.get(key) is not None},
            eos_token_ids=_ids((hf_overrides or {}).get("eos_token_id"), values["eos_token_id"]),
            max_new_tokens=_count(values.get("max_new_tokens")),
        )


def _read(directory: Path, source: str) -> dict[str, Any]:
    own = read_json_object(directory / "generation_config.json")
    if source == "auto":
        return own
    if source == "vllm":
        return {"eos_token_id": own["eos_token_id"]} if "eos_token_id" in own else {}
    path = Path(source)
    path = path / "generation_config.json" if path.is_dir() else path
    if not path.is_file():
        raise ConfigError(
            f"generation_config={source!r}: there is no {path}. Give auto, vllm, or a directory that holds the file"
        )
    return read_json_object(path)


def _number(key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ConfigError(f"generation config: {key} must be a number, got {value!r}")
    return value


def _ids(*values: Any) -> tuple[int, ...]:
    ids: list[int] = []
    for value in values:
        ids += value if isinstance(value, list) else [] if value is None else [value]
        if not all(isinstance(token_id, int) and not isinstance(token_id, bool) for token_id in ids):
            raise ConfigError(f"generation config: eos_token_id must be an id or a list of ids, got {value!r}")
    return tuple(dict.fromkeys(ids))


def _count(value: Any) -> int | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise ConfigError(f"generation config: max_new_tokens must be an integer of at least 1, got {value!r}")
    return value
