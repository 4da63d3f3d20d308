"""A bundle of programs from elsewhere: the options and the pool that it brings, and when it is refused."""

from __future__ import annotations

import dataclasses
import json
import logging
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxengine.errors import BundleError
from jaxengine.options.config import EngineConfig
from jaxengine.options.option import iter_options, parse_token_count
from jaxengine.startup.model_plan import ModelPlan
from xla_cache import Bundle, CacheError

logger = logging.getLogger("jaxengine")

SHAPING_GROUPS = {spec.name: group for group, spec in iter_options(EngineConfig) if spec.metadata["shapes"]}
"""The options that decide which programs exist, with their groups. A bundle carries them, and a start with it takes them over."""


@dataclass(frozen=True, kw_only=True)
class Pool:
    """What was decided from memory. The programs of another pool have other shapes, so a bundle's pool is taken over.

    `num_pages` are those of all pools; how they are divided follows from the options (`memory.SequencePages`).
    """

    num_pages: int
    max_model_len: int
    num_snapshots: int = 0


def open_bundle(config: EngineConfig) -> Bundle | None:
    """The bundle that was asked for, its manifest verified.

    Raises:
        BundleError: it cannot be used, and `bundle_policy` is require.
    """
    options = config.compilation
    if options.bundle is None:
        if options.bundle_key is not None:
            raise BundleError("bundle_key says who signed a bundle, and no bundle is given")
        return None
    key = None if options.bundle_key is None else Path(options.bundle_key)
    try:
        return Bundle.open(Path(options.bundle).expanduser(), public_key=key)
    except CacheError as error:
        refuse(config, f"{error}. Rebuild it: {rebuild_command(config)}")
        return None


def adopt(config: EngineConfig, bundle: Bundle | None) -> tuple[EngineConfig, Bundle | None]:
    """The options that a bundle was built with, in place of those that were left at their defaults.

    Raises:
        BundleError: an option has another value, and `bundle_policy` is require.
    """
    if bundle is None:
        return config, None
    description = bundle.manifest.description
    if not all(isinstance(description.get(name), dict) for name in ("options", "pool")):
        refuse(config, f"the bundle {bundle.path} does not say what options it was built with. {rebuild_hint(config)}")
        return config, None
    built = {name: _frozen(value) for name, value in {**description["options"], **description["pool"]}.items()}
    given = {
        name: _tokens(value) if name == "max_model_len" else _frozen(value) for name, value in shaping(config).items()
    }
    wrong = [
        f"{name}: {given[name]!r} here, {value!r} there"
        for name, value in built.items()
        if given.get(name, value) != value
    ]
    wrong += [f"{name}: {value!r} here, its default there" for name, value in given.items() if name not in built]
    wrong += [f"{name}: not an option of this version" for name in built if name not in SHAPING_GROUPS]
    if wrong:
        refuse(
            config,
            f"the bundle {bundle.path} was built with other options ({'; '.join(wrong)}). {rebuild_hint(config)}",
        )
        return config, None
    groups = {
        group: {name: built[name] for name, of in SHAPING_GROUPS.items() if of == group and name in built}
        for group in set(SHAPING_GROUPS.values())
    }
    changed = {group: dataclasses.replace(getattr(config, group), **values) for group, values in groups.items()}
    return dataclasses.replace(config, **changed), bundle


def bundle_pool(bundle: Bundle) -> Pool:
    """The KV pool that the programs of a bundle were built for."""
    return Pool(**bundle.manifest.description["pool"])


def check_context(config: EngineConfig, bundle: Bundle | None, model: ModelPlan) -> None:
    """Refuse a bundle whose context is longer than this model's: that of a sibling may be, whose programs are the same.

    Raises:
        BundleError: whatever `bundle_policy` is, as the bundle's context has been taken over.
    """
    served, longest = 0 if bundle is None else bundle_pool(bundle).max_model_len, model.config.max_position_embeddings
    if served > longest:
        raise BundleError(
            f"the bundle {config.compilation.bundle} serves {served} tokens of context, and this model has {longest} "
            f"positions; build one for it: jaxengine compile with --max-model-len {longest} or less"
        )


def shaping(config: EngineConfig) -> dict[str, Any]:
    """The options that decide which programs exist, where they do not have their defaults."""
    default = EngineConfig()
    values = {name: getattr(getattr(config, group), name) for name, group in SHAPING_GROUPS.items()}
    return {
        name: value for name, value in values.items() if value != getattr(getattr(default, SHAPING_GROUPS[name]), name)
    }


def rebuild_command(config: EngineConfig) -> str:
    """The command that builds the bundle of this start."""
    model = [] if config.model.model is None else [shlex.quote(config.model.model)]
    words = [_flag(name, value) for name, value in shaping(config).items()]
    return " ".join(["jaxengine compile", *model, "--target local", *words, f"-o {config.compilation.bundle}"])


def _flag(name: str, value: Any) -> str:
    flag = f"--{name.replace('_', '-')}"
    if isinstance(value, bool):
        return flag if value else f"--no-{flag.removeprefix('--')}"
    items = ",".join(map(str, value)) if isinstance(value, (list, tuple)) else value
    return f"{flag} {shlex.quote(json.dumps(items) if isinstance(items, Mapping) else str(items))}"


def rebuild_hint(config: EngineConfig) -> str:
    return f"Rebuild it: {rebuild_command(config)}"


def refuse(config: EngineConfig, problem: str) -> None:
    if config.compilation.bundle_policy == "require":
        raise BundleError(f"{problem}. Or start with --bundle-policy prefer, which compiles what it cannot load")
    logger.warning("%s; its programs are compiled instead", problem)


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _tokens(value: Any) -> Any:
    return parse_token_count(value) if isinstance(value, str) and value != "auto" else value
