"""How hosts come to have the same plan, the same programs and the same weights, before the first step."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from jaxengine.device.runtime.programs import all_programs
from jaxengine.device.weights.digest import array_digests
from jaxengine.options.config import EngineConfig
from jaxengine.startup.bundle import Pool
from jaxengine.startup.group.group import Group, agree, differences, least
from jaxengine.startup.pool import SpacePlan, plan_space
from jaxengine.startup.prepare import Prepared
from jaxengine.startup.progress import Progress
from jaxengine.startup.start import Start, obtain_programs, runs_here
from xla_cache import CacheError, Program, ProgramCache
from xla_cache.record import Record


def plan_alike(group: Group, prepared: Prepared, *, cache: ProgramCache, pool: Pool | None) -> SpacePlan:
    """The first host's plan, for devices with as little memory as those of any."""
    prepared = dataclasses.replace(prepared, device_bytes=least(group, "device memory", prepared.device_bytes))
    if group.rank:
        pool = Pool(**group.share("pool", None))
    planned = plan_space(prepared, cache=cache, pool=pool)
    if not group.rank:
        group.share("pool", dataclasses.asdict(planned.pool))
    return planned


def obtain_alike(
    group: Group, planned: SpacePlan, config: EngineConfig, progress: Progress, cache: ProgramCache
) -> Start:
    """The programs, which one host compiles or loads; the others get from it what their stores do not have.

    A host that runs others, of another stage, compiles or loads them at the same time.

    Raises:
        ConfigError: the programs would not be the same everywhere.
        CapacityError, BundleError: as `obtain_programs`.
    """
    if group.size == 1:
        return obtain_programs(planned, config, progress, cache=cache)
    programs = all_programs(planned.space)
    keys = json.dumps([cache.key(program).digest for program in programs])
    names = {**cache.context, "programs": hashlib.sha256(keys.encode()).hexdigest()}
    agree(group, "programs", names, differences)
    if group.rank and planned.space.views[-1].here:
        spread(group, programs, cache, progress)
        return obtain_programs(planned, config, progress, cache=cache)
    start = obtain_programs(planned, config, progress, cache=cache)
    spread(group, programs, cache, progress)
    return start


def spread(group: Group, programs: Sequence[Program], cache: ProgramCache, progress: Progress) -> None:
    """Send executables of the first host's store to the stores that lack them; a host without a store compiles for itself."""
    by_name = {program.name: program for program in programs if runs_here(program)}
    group.share("programs are there", True)  # in a cache that hosts share they can be found from here on
    missing = [name for name, program in by_name.items() if cache.store is not None and cache.find(program) is None]
    asked = group.gather("programs that are missing", missing)
    common = {name for names in asked.values() for name in names} & by_name.keys()
    wanted = sorted(name for name in common if cache.find(by_name[name]) is not None)
    names: Sequence[str] = group.share("programs to come", wanted)
    received = 0
    for name in names:
        sent = group.share(name, None if group.rank else _packed(cache, by_name[name]))
        if name in missing and sent is not None and cache.store is not None and group.rank:
            values, packed = sent
            try:
                cache.store.write(Record.from_json(values, name=name), packed)
                received += len(packed)
            except CacheError as error:
                cache.problem("store", error)
    if received:
        progress.say("hosts", f"{len(names)} programs from the first host, {received / 1e6:.1f} MB")


def agree_on_weights(group: Group, arrays: Mapping[str, jax.Array]) -> None:
    """See that hosts have read the same weights, as far as two of them have the same numbers.

    Of arrays that devices share each host has parts of its own, so they are compared by shape; of those that all have whole, such
    as norms, by every number. What lies on other hosts alone is not looked at.

    Raises:
        ConfigError: they have not.
    """
    if group.size == 1:
        return
    here = {path: array for path, array in arrays.items() if array.addressable_shards}
    whole = {path: array for path, array in here.items() if array.is_fully_replicated}
    digests = {path: digest.hex() for path, digest in array_digests(whole).items()}
    shapes = {path: f"{array.dtype} {array.shape}" for path, array in here.items() if path not in whole}

    def of_both(first: Mapping[str, str], other: Mapping[str, str]) -> str | None:
        common = first.keys() & other.keys()
        return differences({path: first[path] for path in common}, {path: other[path] for path in common})

    agree(group, "weights", {**digests, **shapes}, of_both)


def _packed(cache: ProgramCache, program: Program) -> tuple[dict[str, Any], bytes] | None:
    found = cache.find(program)
    if found is None:
        return None
    try:
        return found.record.to_json(), found.source.packed(found.record)
    except CacheError as error:
        cache.problem(found.place, error)
        return None
