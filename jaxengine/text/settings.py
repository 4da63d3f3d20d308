"""What the small files beside a tokenizer say: special tokens, whether BOS and EOS are added, chat templates."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jaxengine.errors import CheckpointError

SPECIAL_TOKEN_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
LISTS_OF_SPECIAL_TOKENS = ("additional_special_tokens", "extra_special_tokens")

ChatTemplates = str | Mapping[str, str] | None
"""The one chat template of a model, or several by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerSettings:
    """`special_tokens` maps `bos_token` and its like to their text; `extra_special_tokens` have no such role.

    `add_bos` and `add_eos` count only where there is no tokenizer.json, whose post-processor says it otherwise.
    `added_tokens` are id, text and whether it is special.
    """

    special_tokens: Mapping[str, str] = field(default_factory=dict)
    extra_special_tokens: tuple[str, ...] = ()
    added_tokens: tuple[tuple[int, Mapping[str, Any]], ...] = ()
    add_bos: bool = False
    add_eos: bool = False
    add_prefix_space: bool | None = None
    legacy: bool = False
    tokenizer_class: str | None = None
    model_type: str | None = None
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    chat_templates: ChatTemplates = None

    @classmethod
    def read(cls, directory: Path, model: Mapping[str, Any] | None = None) -> TokenizerSettings:
        """Read tokenizer_config.json, special_tokens_map.json and the chat template files, where they exist.

        `model` is the contents of config.json where the caller knows them; else they are read too.

        Raises:
            CheckpointError: one of them is not a JSON object.
        """
        config = read_json_object(directory / "tokenizer_config.json")
        legacy_map = read_json_object(directory / "special_tokens_map.json")
        model = read_json_object(directory / "config.json") if model is None else model
        merged = {**legacy_map, **{key: value for key, value in config.items() if value is not None}}
        named = {name: _text(merged[name]) for name in SPECIAL_TOKEN_NAMES if merged.get(name)}
        extra = [_text(token) for name in LISTS_OF_SPECIAL_TOKENS for token in _values(merged.get(name))]
        added = sorted((int(key), value) for key, value in (config.get("added_tokens_decoder") or {}).items())
        return cls(
            special_tokens=named,
            extra_special_tokens=tuple(extra),
            added_tokens=tuple(added),
            add_bos=bool(config.get("add_bos_token", False)),
            add_eos=bool(config.get("add_eos_token", False)),
            add_prefix_space=config.get("add_prefix_space"),
            legacy=bool(config.get("legacy", False)),
            tokenizer_class=(config.get("tokenizer_class") or model.get("tokenizer_class") or "").removesuffix("Fast")
            or None,
            model_type=model.get("model_type"),
            bos_token_id=_first_id(model.get("bos_token_id")),
            eos_token_id=_first_id(model.get("eos_token_id")),
            chat_templates=_chat_templates(directory, config.get("chat_template")),
        )


def read_json_object(path: Path) -> dict[str, Any]:
    """The object that a JSON file holds; empty when there is no such file.

    Raises:
        CheckpointError: the file does not hold a JSON object.
    """
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise CheckpointError(f"{path} is not valid JSON ({error}); download the file again") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} must hold a JSON object, got {type(value).__name__}")
    return value


def _chat_templates(directory: Path, configured: Any) -> ChatTemplates:
    """Template files win over tokenizer_config.json, as they do for transformers."""
    files = {path.stem: path for path in sorted((directory / "chat_templates").glob("*.jinja"))}
    main = directory / "chat_template.jinja"
    if main.is_file():
        files["default"] = main
    if files:
        templates = {name: path.read_text(encoding="utf-8") for name, path in files.items()}
        return templates["default"] if templates.keys() == {"default"} else templates
    if isinstance(configured, list):
        return {entry["name"]: entry["template"] for entry in configured}
    if configured is None or isinstance(configured, (str, dict)):
        return configured
    raise CheckpointError(f"chat_template in tokenizer_config.json must be text or a list, got {configured!r}")


def _text(token: Any) -> str:
    return str(token["content"]) if isinstance(token, Mapping) else str(token)


def _values(tokens: Any) -> list[Any]:
    if isinstance(tokens, Mapping):
        return list(tokens.values())
    return list(tokens or ())


def _first_id(ids: Any) -> int | None:
    """config.json gives one id or a list of them."""
    if isinstance(ids, list):
        ids = ids[0] if ids else None
    return ids if isinstance(ids, int) else None
