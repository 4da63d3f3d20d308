"""Options of a server's LoRA adapters: which there are from the start, and whence others may come."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jaxengine.errors import ConfigError
from jaxengine.options.media import check_modality
from jaxengine.options.option import option

KEYS = ("name", "path", "base_model_name")


@dataclass(frozen=True, slots=True)
class LoraModule:
    """An adapter that is served under a name. `base` is its base model as /v1/models tells it; None: what is served."""

    name: str
    path: str
    base: str | None = None


@dataclass(frozen=True, kw_only=True)
class AdaptersConfig:
    """The server's adapters (LoRA)."""

    lora_modules: tuple[str, ...] = option(
        (),
        'adapters to serve, each under a model name of its own: name=path, or JSON {"name": ..., "path": ..., '
        '"base_model_name": ...}; needs enable_lora',
        split=False,
    )
    default_mm_loras: Mapping[str, Any] = option(
        {},
        'adapters of requests that show something and name no adapter, as JSON such as {"image": path, "audio": path}: each is '
        "served under its modality's name, too",
    )
    allow_runtime_lora_updating: bool = option(
        False,
        "serve /v1/load_lora_adapter and /v1/unload_lora_adapter, with which whoever may use the server has it read directories "
        "(VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 is the same)",
    )
    lora_resolver_cache_dir: str | None = option(
        None,
        "directory of adapters, a directory each: a request whose model is none that is served gets the adapter of that name in "
        "there (VLLM_LORA_RESOLVER_CACHE_DIR is the same)",
    )

    def __post_init__(self) -> None:
        for modality, path in self.default_mm_loras.items():
            check_modality("default_mm_loras", modality)
            if not isinstance(path, str) or not path:
                raise ConfigError(f"default_mm_loras: {modality} must be the path of an adapter, got {path!r}")
        names = [module.name for module in self.modules]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ConfigError(
                f"lora_modules has two adapters of the name {twice!r}, or one that default_mm_loras has, too; each needs its own"
            )

    @property
    def modules(self) -> tuple[LoraModule, ...]:
        """What `lora_modules` and `default_mm_loras` ask for."""
        defaults = (LoraModule(modality, path) for modality, path in self.default_mm_loras.items())
        return (*(_read(given) for given in self.lora_modules), *defaults)

    @property
    def needs_lora(self) -> str | None:
        """An option that was given and means nothing without adapters."""
        given = (name for name, value in vars(self).items() if value)
        return next(given, None)


def _read(given: object) -> LoraModule:
    """One of `lora_modules`.

    Raises:
        ConfigError: it is none.
    """
    wrong = ConfigError(
        f'lora_modules must be name=path, or JSON {{"name": ..., "path": ..., "base_model_name": ...}}, got {given!r}'
    )
    if isinstance(given, str) and not given.lstrip().startswith("{"):
        name, equals, path = given.partition("=")
        if not (name and equals and path):
            raise wrong
        return LoraModule(name, path)
    try:
        fields = json.loads(given) if isinstance(given, str) else given
    except json.JSONDecodeError:
        raise wrong from None
    if not isinstance(fields, Mapping) or not {"name", "path"} <= fields.keys() <= set(KEYS):
        raise wrong
    if not all(
        isinstance(value, str) and value for key, value in fields.items() if value is not None or key != KEYS[2]
    ):
        raise wrong
    return LoraModule(fields["name"], fields["path"], fields.get("base_model_name"))
