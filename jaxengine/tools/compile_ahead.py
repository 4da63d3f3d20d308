"""`jaxengine compile`: every program of an engine, built for a target that need not be here, as a bundle."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jaxengine.device.runtime.programs import all_programs
from jaxengine.device.runtime.target import find_target
from jaxengine.errors import BundleError, CapacityError
from jaxengine.options.config import EngineConfig
from jaxengine.startup.pool import plan_space
from jaxengine.startup.prepare import prepare
from jaxengine.startup.program_cache import cache_ahead, describe_build
from jaxengine.startup.progress import Countdown, Progress
from jaxengine.startup.start import describe, expected_cost
from jaxengine.startup.workspace import compile_threads
from xla_cache import CacheError, CompileRecord, Manifest, Program, ProgramCache, Store, build_programs, write_bundle


def compile_ahead(config: EngineConfig, target_name: str, output: Path) -> Manifest:
    """Build the bundle `output`: a directory, or a single file if it ends in `.zip`. Neither weights nor devices are needed.

    Programs are written as they are done, so a build that was killed goes on where it was, and two may write to one place.

    Raises:
        ConfigError: the target is unknown, cannot be compiled for here, or does not suit the model.
        CapacityError: the model does not fit the target.
        BundleError: the place cannot be written.
    """
    progress = Progress()
    target = find_target(target_name)
    prepared = prepare(config, progress, target=target)
    if target.num_hosts > 1:
        progress.say("resolve", f"{target.name} is {target.num_hosts} hosts, all of which start with these programs")
    threads = compile_threads(config)
    try:
        # a single file is written at the end; what it is made of stays beside it for the next build
        store = Store.open(output if output.suffix != ".zip" else output.with_suffix(".building"))
        cache = cache_ahead(prepared.model, store)
        with progress.phase("plan"):
            planned = plan_space(prepared, cache=cache)
        with progress.phase("compile"):
            records = _build(all_programs(planned.space), cache, threads, progress)
        kept = [done.kept for done in records if done.kept is not None]
        description = describe_build(config, prepared.model, planned)
        manifest = write_bundle(output, store, kept, context=cache.context, description=description)
    except CacheError as error:
        raise BundleError(str(error)) from error
    except RuntimeError as error:
        if "RESOURCE_EXHAUSTED" in str(error):
            raise CapacityError(f"{error}. See `jaxengine plan` for what fits {target.name}") from error
        raise
    size = sum(record.packed for record in {record.file: record for record in manifest.records}.values())
    progress.say("compile", f"{describe(records)} in {progress.phases['compile']:.1f} s on {threads} threads")
    progress.say("bundle", f"{output}: {len(manifest.records)} programs, {size / 1e6:.1f} MB for {target.name}")
    return manifest


def _build(programs: Sequence[Program], cache: ProgramCache, threads: int, progress: Progress) -> list[CompileRecord]:
    costs = {program.name: expected_cost(program) for program in programs}
    countdown = Countdown(progress, "compile", total=len(programs), total_cost=sum(costs.values()))

    def on_done(record: CompileRecord) -> None:
        there = ", was there" if record.origin == "store" else ""
        countdown.done(f"{record.name} {record.wall_s:.1f} s{there}", costs[record.name])

    return build_programs(programs, cache, threads=threads, on_done=on_done)
