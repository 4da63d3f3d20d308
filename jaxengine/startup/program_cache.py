"""Where an engine's programs are looked up and kept: a bundle from elsewhere, and this user's store."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxengine.options.config import EngineConfig
from jaxengine.startup.bundle import rebuild_command, rebuild_hint, refuse, shaping
from jaxengine.startup.model_plan import ModelPlan
from jaxengine.startup.native import native_linker
from jaxengine.startup.pool import SpacePlan
from jaxengine.startup.program_context import program_context
from xla_cache import (
    Bundle,
    CacheError,
    CompileRecord,
    Program,
    ProgramCache,
    Store,
    default_directory,
    require_same,
)
from xla_cache.starts import ProgramReport, StartRecord, write_start
from xla_cache.store import SMALL

logger = logging.getLogger("jaxengine")


def open_cache(config: EngineConfig, model: ModelPlan, bundle: Bundle | None) -> tuple[ProgramCache, Bundle | None]:
    """Where this engine's programs are looked up and kept, and the bundle if it is for this model, target and versions.

    A store that cannot be used is warned about and left out.

    Raises:
        BundleError: the bundle is for something else, and `bundle_policy` is require.
    """
    context = program_context(model)
    if bundle is not None:
        try:
            require_same(bundle, context, command=rebuild_command(config))
        except CacheError as error:
            refuse(config, str(error))
            bundle = None
    require = bundle is not None and config.compilation.bundle_policy == "require"
    store, rebuild = open_store(config), rebuild_hint(config)
    link = native_linker(model)
    return ProgramCache(context, store=store, bundle=bundle, require_bundle=require, rebuild=rebuild, link=link), bundle


def check_complete(config: EngineConfig, cache: ProgramCache, programs: Sequence[Program]) -> None:
    """Refuse a required bundle that lacks a program.

    Raises:
        BundleError: naming what is missing.
    """
    missing = cache.expect(programs)
    if missing and cache.bundle is not None:
        held = sorted({record.program for record in cache.bundle.records()})
        refuse(
            config,
            f"the bundle {config.compilation.bundle} lacks {len(missing)} of {len(programs)} programs "
            f"({'; '.join(missing)}); it has {', '.join(held)}. {rebuild_hint(config)}",
        )


def describe_build(config: EngineConfig, model: ModelPlan, planned: SpacePlan) -> dict[str, Any]:
    """What a manifest says of a build. A start with the bundle takes over `options` and `pool`."""
    return {
        "model": model.source.name,
        "architecture": model.model_class.__name__,
        "dtype": model.precision,
        "target": model.target.name,
        "devices": len(model.devices),
        "options": shaping(config),
        "pool": dataclasses.asdict(planned.pool),
        "grid": [str(bucket) for bucket in planned.space.grid.buckets],
        "memory": dataclasses.asdict(planned.budget),
    }


def remember_start(
    config: EngineConfig, model: ModelPlan, planned: SpacePlan, cache: ProgramCache, records: Sequence[CompileRecord]
) -> None:
    """Keep in the store what this start needed and how it went, for `jaxengine cache` and `python -m xla_cache show`."""
    if cache.store is None:
        return
    programs = [
        ProgramReport(
            record.name,
            record.origin,
            record.trace_s,
            record.lower_s,
            record.compile_s,
            record.load_s,
            record.missed,
        )
        for record in records
    ]
    keys = {name: key.digest for name, key in cache.keys.items()}
    description = describe_build(config, model, planned)
    try:
        write_start(cache.store, StartRecord(description, cache.context, keys, programs, time.time()))
    except CacheError as error:
        logger.warning("store: %s", error)


def cache_ahead(model: ModelPlan, store: Store) -> ProgramCache:
    """Programs that are compiled where nothing runs, packed as small as they get."""
    return ProgramCache(program_context(model), store=store, level=SMALL)


def open_store(config: EngineConfig) -> Store | None:
    """This user's store; None where it is turned off, or with a warning where it cannot be used."""
    path = config.compilation.xla_cache_path
    if path == "off":
        return None
    try:
        return Store.open(default_directory() if path is None else Path(path).expanduser())
    except CacheError as error:
        logger.warning("%s Compiled programs are not kept", error)
        return None
