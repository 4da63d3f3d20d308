"""`jaxengine plan`: what an engine would need and reach on a target, from the compiler's own figures and the chip's."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from jaxengine.device.runtime import memory
from jaxengine.device.runtime.adapter_slots import adapter_programs
from jaxengine.device.runtime.alignment import lengths as alignment_lengths
from jaxengine.device.runtime.alignment import programs_of as alignment_programs_of
from jaxengine.device.runtime.block_moves import block_bytes, move_programs
from jaxengine.device.runtime.encoder_programs import programs_of
from jaxengine.device.runtime.forward_programs import forward_programs, hidden_struct
from jaxengine.device.runtime.program_kinds import ProgramKind
from jaxengine.device.runtime.programs import programs_of_shape, slot_programs
from jaxengine.device.runtime.space import ProgramSpace
from jaxengine.device.runtime.target import find_target
from jaxengine.errors import CapacityError, ConfigError
from jaxengine.options.config import EngineConfig
from jaxengine.startup.model_plan import ModelPlan
from jaxengine.startup.pool import SpacePlan, plain_tokens, plan_space, sequence_pages
from jaxengine.startup.prepare import Prepared, prepare
from jaxengine.startup.program_cache import cache_ahead, open_store
from jaxengine.startup.progress import Progress
from jaxengine.startup.roofline import Roofline
from jaxengine.startup.workspace import compile_threads, expected_workspace
from jaxengine.tools.plan_hosts import plan_hosts
from jaxengine.tools.plan_media import encoder_rooflines, plan_media
from jaxengine.tools.plan_pipeline import plan_pipeline
from jaxengine.tools.plan_report import EnginePlan, PoolPlan, ProgramPlan
from xla_cache import CacheError, Program, ProgramCache, Record, Store, build_programs
from xla_cache.chips import Chip
from xla_cache.target import Target, targets

Compiling = Literal["nothing", "largest", "all"]


def plan_engine(config: EngineConfig, target_name: str, *, compiling: Compiling = "nothing") -> EnginePlan:
    """Plan a model on a target, without its weights and without the hardware.

    Args:
        config: the engine's options.
        target_name: of the table of targets.
        compiling: `nothing`, and the workspace is an estimate and times are of the chip's figures alone; `largest`: the largest
            and the smallest program of each kind; or `all`. Programs come from the user's store where they were compiled before,
            and are kept there.

    Raises:
        ConfigError: the target or the model cannot be planned for. That it does not fit is part of the plan.
    """
    progress = Progress()
    target = find_target(target_name, compiles=compiling != "nothing")
    prepared = prepare(config, progress, target=target)
    model = prepared.model
    _check_devices(target, config.parallel.replicas_here, len(model.devices))
    common = _common(config, prepared, target)
    threads = compile_threads(config)
    with TemporaryDirectory() as nowhere:
        cache = None
        if compiling != "nothing":
            cache = cache_ahead(model, open_store(config) or Store.open(Path(nowhere)))
        try:
            planned = plan_space(prepared, cache=cache, measure=cache is not None)
        except CapacityError as error:
            problem = f"{error}{_larger_target(model, target, config)}"
            return EnginePlan(**common, max_model_len=prepared.limits.max_model_len, fits=False, problem=problem)
        subjects = _subjects(planned.space)
        chosen = {"nothing": [], "largest": _representatives(subjects), "all": subjects}[compiling]
        measured = {} if cache is None else _compile(chosen, planned.records, cache, threads, progress)
    rooflines = {} if target.chip is None else _rooflines(model, planned.space, target.chip)
    clock = None if target.chip is None else target.chip.clock_hz
    rows = tuple(_row(subject, subjects, measured, rooflines, clock) for subject in subjects)
    return EnginePlan(
        **common,
        **_sizes(model, planned),
        fits=True,
        pipeline=plan_pipeline(planned.space),
        media=plan_media(planned.space, config),
        workspace_bytes=_workspace_bytes(model, planned, measured, num_programs=len(subjects)),
        workspace_measured=bool(measured),
        programs=rows,
        compile_threads=threads,
        compile_s=sum(row.compile_s for row in rows if row.compile_s is not None) / threads,
        bundle_bytes=sum(row.packed_bytes for row in rows if row.packed_bytes is not None),
    )


def _common(config: EngineConfig, prepared: Prepared, target: Target) -> dict[str, Any]:
    """What an `EnginePlan` says whether the model fits or not."""
    model, limits, device_bytes = prepared.model, prepared.limits, prepared.device_bytes
    return {
        "model": model.source.name,
        "target": target.name,
        "device": model.devices[0].device_kind,
        "num_devices": len(model.devices),
        "num_replicas": config.parallel.replicas_here,
        "hosts": plan_hosts(config, model, limits),
        "dtype": model.precision,
        "kv_dtype": str(model.kv_dtype),
        "num_parameters": model.num_parameters,
        "max_num_seqs": limits.max_num_seqs,
        "max_num_batched_tokens": limits.max_num_batched_tokens,
        "page_size": limits.page_size,
        "device_bytes": device_bytes,
        "limit_bytes": int(device_bytes * config.cache.memory_utilization),
        "weight_bytes": _weight_bytes(model),
        "adapter_slots": 0 if model.adapters is None else model.adapters.slots,
        "adapter_rank": 0 if model.adapters is None else model.adapters.rank,
        "adapter_bytes": memory.parameter_bytes(model.graph.adapters),
    }


def _sizes(model: ModelPlan, planned: SpacePlan) -> dict[str, Any]:
    """What an `EnginePlan` says of pages, blocks and slots: how many there are, and their bytes."""
    space, length = planned.space, planned.limits.max_model_len
    pages = sequence_pages(model, planned.limits)
    pools = zip(
        pages.layout.pools,
        space.num_pages,
        planned.budget.page_bytes,
        pages.of(length),
        pages.without_windows(length),
        strict=True,
    )
    sizes, snapshots = block_bytes(space), space.num_snapshots
    return {
        "max_model_len": length,
        "slot_bytes": planned.budget.slot_bytes - memory.slot_bytes((space.snapshots, space.encoded)),
        "num_snapshots": snapshots,
        "snapshot_bytes": memory.slot_bytes(space.snapshots) // (1 + snapshots),
        "pools": tuple(PoolPlan(pool.heads, pool.key, *numbers) for pool, *numbers in pools),
        "host_blocks": sum(space.host_blocks[: len(sizes) - bool(snapshots)]),
        "host_snapshots": sum(space.host_blocks[-1:]) if snapshots else 0,
        "host_bytes": sum(count * size for count, size in zip(space.host_blocks, sizes, strict=False)),
        "kv_tokens": pages.tokens_held(space.num_pages),
        "plain_kv_tokens": plain_tokens(model, planned),
    }


def _workspace_bytes(model: ModelPlan, planned: SpacePlan, measured: Mapping[str, Record], *, num_programs: int) -> int:
    """The workspace of programs: what the pool was planned with, or of those that were compiled, or as expected."""
    if planned.workspace != "unneeded":
        return planned.budget.workspace_bytes
    figures = [found.memory for found in measured.values()]
    if figures:
        return memory.workspace_bytes(figures, num_programs=num_programs)
    return expected_workspace(planned.space, model)


def _weight_bytes(model: ModelPlan) -> int:
    """Of one device; of several stages that of the one that has most."""
    parts = () if model.pipeline is None else model.pipeline.parts
    return max([memory.parameter_bytes(part.own) for part in parts] or [memory.parameter_bytes(model.parameters)])


def _check_devices(target: Target, replicas: int, each: int) -> None:
    """Accept replicas for which the target has devices.

    Raises:
        ConfigError: it has too few.
    """
    devices = target.num_devices
    if devices is not None and replicas * each > devices:
        raise ConfigError(
            f"{replicas} replicas of {each} devices (tensor_parallel_size x pipeline_parallel_size) need {replicas * each} "
            f"devices, and target {target.name} has "
            f"{devices}. Use data_parallel_size={max(1, devices // each)} or fewer"
        )


@dataclass(frozen=True)
class _Subject:
    """A program and its extents; programs of one `kind` are alike but for these."""

    program: Program
    kind: str
    rows: int
    seq: int | None
    tokens: int


def _subjects(space: ProgramSpace) -> list[_Subject]:
    found = []
    for bucket in space.grid.buckets:
        for program in forward_programs(space, bucket):
            kind = f"forward{program.name.removeprefix(f'forward {bucket}')}"
            found.append(_Subject(program, kind, bucket.batch, bucket.seq, bucket.tokens))
    hidden = hidden_struct(space)
    of_sampling = {
        program.name: _Subject(program, f"{program.kind} {shape.variant}", shape.rows, None, shape.rows)
        for shape in space.sampling.shapes
        for program in programs_of_shape(space, shape, hidden)
    }
    found += of_sampling.values()
    for program in slot_programs(space):
        rows, *_ = program.arguments[1].shape
        found.append(_Subject(program, program.name, rows, None, rows))
    found += [_Subject(program, program.name, 1, None, 1) for program in adapter_programs(space)]
    for program in move_programs(space):
        count, *_ = program.arguments[1].shape
        found.append(_Subject(program, program.name, count, None, count))
    for bucket in () if space.media is None else space.media.buckets:
        for program in programs_of(space, bucket):
            kind = f"encode{program.name.removeprefix(f'encode {bucket}')}"
            found.append(_Subject(program, kind, bucket.batch, bucket.seq, bucket.tokens))
    for length in alignment_lengths(space):
        for program in alignment_programs_of(space, length):
            kind = f"align{program.name.removeprefix(f'align {length}')}"
            found.append(_Subject(program, kind, 1, length, length))
    return found


def _rooflines(model: ModelPlan, space: ProgramSpace, chip: Chip) -> dict[str, Roofline]:
    """Of programs that have weights, by their kind, encoders' by that of their subjects."""
    of_texts = model.roofline(chip)
    of_encoders = encoder_rooflines(space, chip, num_devices=len(model.devices))
    return {ProgramKind.FORWARD: of_texts, ProgramKind.SAMPLE: of_texts, **of_encoders}


def _representatives(subjects: Sequence[_Subject]) -> list[_Subject]:
    """The largest and the smallest forward pass and encoder of each kind; of the others the largest: size hardly tells there."""
    kinds: dict[str, list[_Subject]] = {}
    for subject in subjects:
        kinds.setdefault(subject.kind, []).append(subject)
    chosen: list[_Subject] = []
    for members in kinds.values():
        ordered = sorted(members, key=lambda subject: subject.tokens)
        chosen.append(ordered[-1])
        if len(ordered) > 1 and members[0].program.kind in (ProgramKind.FORWARD, ProgramKind.ENCODE):
            chosen.append(ordered[0])
    return chosen


def _compile(
    chosen: Sequence[_Subject], known: Mapping[str, Record], cache: ProgramCache, threads: int, progress: Progress
) -> dict[str, Record]:
    """What is kept of the chosen programs, by name. Those that are `known` are not built again for another pool."""
    programs = [subject.program for subject in chosen if subject.program.name not in known]
    progress.say("plan", f"{len(programs)} programs to compile, or in the store, on {threads} threads")
    try:
        built = build_programs(programs, cache, threads=threads)
    except CacheError as error:
        raise ConfigError(f"{error}. Use --xla-cache-path off, or another path") from error
    return {**known, **{record.name: record.kept for record in built if record.kept is not None}}


def _row(
    subject: _Subject,
    subjects: Sequence[_Subject],
    measured: Mapping[str, Record],
    rooflines: Mapping[str, Roofline],
    clock_hz: float | None,
) -> ProgramPlan:
    """What is known of a program, or of the nearest one of its kind that was compiled."""
    alike = [other for other in subjects if other.kind == subject.kind and other.program.name in measured]
    nearest = min(alike, key=lambda other: abs(math.log(subject.tokens / other.tokens)), default=None)
    figures = None if nearest is None else measured[nearest.program.name]
    name = subject.program.name
    cycles = measured[name].cycles if name in measured else None
    limits: list[tuple[float, str]] = []
    kind = subject.program.kind
    if (roofline := rooflines.get(subject.kind if kind == ProgramKind.ENCODE else kind)) is not None:
        limits.append(roofline.floor(subject.tokens, sampling=kind == ProgramKind.SAMPLE))
    if cycles is not None and clock_hz is not None:
        limits.append((cycles / clock_hz, "estimate"))
    seconds, limit = max(limits, default=(None, None))
    return ProgramPlan(
        name=name,
        rows=subject.rows,
        seq=subject.seq,
        tokens=subject.tokens,
        measured=name in measured,
        temp_bytes=None if figures is None else figures.memory.temp,
        code_bytes=None if figures is None else figures.memory.code,
        packed_bytes=None if figures is None else figures.packed,
        compile_s=None if figures is None else sum(dataclasses.astuple(figures.seconds)),
        cycles=cycles,
        seconds=seconds,
        limited_by=limit,
    )


def _larger_target(model: ModelPlan, target: Target, config: EngineConfig) -> str:
    """The smallest target of the same chip whose memory holds the weights, where this one's does not."""
    if target.chip is None:
        return ""
    whole = sum(math.prod(struct.shape) * struct.dtype.itemsize for struct in model.parameters.values())
    usable = target.chip.memory_bytes * config.cache.memory_utilization
    for other in targets():
        if other.chip != target.chip or (other.num_devices or 0) <= len(model.devices):
            continue
        if whole / (other.num_devices or 1) < 0.9 * usable:
            hosts = f" ({other.num_hosts} hosts)" if other.num_hosts > 1 else ""
            return f" The smallest target of {target.chip.name} with room for weights and a KV cache is {other.name}{hosts}."
    return f" No target of {target.chip.name} is large enough."
