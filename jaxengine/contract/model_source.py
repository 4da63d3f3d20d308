"""Where the front finds what a model's files say of text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxengine.options.config import EngineConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """A model's files on this machine, as an engine that starts has found them, and how many ids it has embeddings for.

    `path` is their directory and `config_json` what config.json came to, with what replaces its keys. The tokenizer's files are
    in `tokenizer_path`, None where they are the model's own. `config` are the engine's options, those of its bundle among them.
    """

    path: Path
    config_json: Mapping[str, Any]
    vocab_size: int
    tokenizer_path: Path | None
    config: EngineConfig
