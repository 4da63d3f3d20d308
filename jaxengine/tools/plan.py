"""`jaxengine plan`: what an engine would need and reach on a target, from the compiler's own figures and the chip's."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxengine.config import EngineConfig
from jaxengine.errors import CapacityError
from jaxengine.runtime import memory
from jaxengine.runtime.forward import forward_programs
from jaxengine.runtime.programs import COPIES_PER_LAUNCH, copy_program, sample_programs, slot_programs
from jaxengine.runtime.space import ProgramSpace
from jaxengine.runtime.target import DEFAULTS, device_memory_bytes, find_target
from jaxengine.startup.limits import EngineLimits
from jaxengine.startup.model_plan import ModelPlan, plan_model
from jaxengine.startup.pool import compile_threads, plain_tokens, plan_space, sequence_pages
from jaxengine.startup.progress import Progress
from jaxengine.startup.roofline import Roofline
from jaxengine.tools.plan_report import EnginePlan, PoolPlan, ProgramPlan
from xla_cache import CompileRecord, Program, compile_programs
from xla_cache.cycles import estimated_cycles
from xla_cache.payload import pack
from xla_cache.record import Memory
from xla_cache.store import SMALL, compress
from xla_cache.target import Target, targets


def plan_engine(config: EngineConfig, target_name: str, *, measure_all: bool = False) -> EnginePlan:
    """Plan a model on a target, without its weights and without the hardware.

    The largest and the smallest program of each kind are compiled, or with `measure_all` every one.

    Raises:
        ConfigError: the target or the model cannot be planned for. That it does not fit is part of the plan.
    """
    progress = Progress()
    target = find_target(target_name)
    model = plan_model(config, weights=False, target=target)
    defaults = DEFAULTS[model.platform]
    limits = EngineLimits.resolve(config, model_max_len=model.config.max_position_embeddings, defaults=defaults)
    progress.say("resolve", model.describe(random_weights=False))
    if quantised := model.describe_matrices():
        progress.say("resolve", quantised)
    device_bytes = device_memory_bytes(model.devices[0], target)
    common: dict[str, Any] = {
        "model": model.source.name,
        "target": target.name,
        "device": model.devices[0].device_kind,
        "num_devices": len(model.devices),
        "num_hosts": target.num_hosts,
        "dtype": model.precision,
        "kv_dtype": str(model.kv_dtype),
        "num_parameters": model.num_parameters,
        "max_num_seqs": limits.max_num_seqs,
        "max_num_batched_tokens": limits.max_num_batched_tokens,
        "page_size": limits.page_size,
        "device_bytes": device_bytes,
        "limit_bytes": int(device_bytes * config.cache.memory_utilization),
        "weight_bytes": memory.parameter_bytes(model.parameters),
    }
    try:
        planned = plan_space(model, config, limits, defaults, progress)
    except CapacityError as error:
        problem = f"{error}{_larger_target(model, target, config)}"
        return EnginePlan(**common, max_model_len=limits.max_model_len, fits=False, problem=problem)
    subjects, threads = _subjects(planned.space), compile_threads(config)
    chosen = subjects if measure_all else _representatives(subjects)
    progress.say("plan", f"compiling {len(chosen)} of {len(subjects)} programs on {threads} threads")
    measured = _measure([subject.program for subject in chosen], threads)
    roofline = None if target.chip is None else model.roofline(target.chip)
    rows = tuple(
        _row(subject, [other for other in chosen if other.kind == subject.kind], measured, roofline)
        for subject in subjects
    )
    pages, length = sequence_pages(model, planned.limits), planned.limits.max_model_len
    pools = zip(
        pages.layout.pools,
        planned.space.num_pages,
        planned.budget.page_bytes,
        pages.of(length),
        pages.without_windows(length),
        strict=True,
    )
    return EnginePlan(
        **common,
        max_model_len=length,
        fits=True,
        slot_bytes=planned.budget.slot_bytes,
        workspace_bytes=planned.budget.workspace_bytes if planned.measured else _workspace(measured, len(subjects)),
        pools=tuple(PoolPlan(pool.num_kv_heads, pool.head_dim, *numbers) for pool, *numbers in pools),
        kv_tokens=pages.tokens_held(planned.space.num_pages),
        plain_kv_tokens=plain_tokens(model, planned),
        programs=rows,
        compile_threads=threads,
        compile_s=sum(row.compile_s for row in rows) / threads,
        bundle_bytes=sum(row.packed_bytes for row in rows),
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
    for program, sample in zip(sample_programs(space), space.sample_shapes, strict=True):
        found.append(_Subject(program, f"sample {sample.variant}", sample.rows, None, sample.rows))
    for program in slot_programs(space):
        rows, *_ = program.arguments[1].shape
        found.append(_Subject(program, program.name, rows, None, rows))
    copy = copy_program(space)
    return [*found, _Subject(copy, "copy", COPIES_PER_LAUNCH, None, COPIES_PER_LAUNCH * space.page_size)]


def _representatives(subjects: Sequence[_Subject]) -> list[_Subject]:
    """The largest and the smallest forward pass of each kind; of the others the largest: size hardly tells there."""
    kinds: dict[str, list[_Subject]] = {}
    for subject in subjects:
        kinds.setdefault(subject.kind, []).append(subject)
    chosen: list[_Subject] = []
    for members in kinds.values():
        ordered = sorted(members, key=lambda subject: subject.tokens)
        chosen.append(ordered[-1])
        if len(ordered) > 1 and members[0].kind.startswith("forward"):
            chosen.append(ordered[0])
    return chosen


@dataclass(frozen=True)
class _Measured:
    memory: Memory
    cycles: int | None
    packed: int
    seconds: float


def _measure(programs: Sequence[Program], threads: int) -> dict[str, _Measured]:
    found: dict[str, _Measured] = {}
    by_name = {program.name: program for program in programs}

    def on_done(record: CompileRecord, compiled: Any) -> None:
        begun = time.perf_counter()
        packed = len(compress(pack(compiled, by_name[record.name])[0], level=SMALL))
        seconds = record.wall_s + time.perf_counter() - begun
        found[record.name] = _Measured(Memory.of(compiled), estimated_cycles(compiled), packed, seconds)

    compile_programs(programs, threads=threads, on_done=on_done)
    return found


def _workspace(measured: Mapping[str, _Measured], num_programs: int) -> int:
    return memory.workspace_bytes([found.memory for found in measured.values()], num_programs=num_programs)


def _row(
    subject: _Subject, like: Sequence[_Subject], measured: Mapping[str, _Measured], roofline: Roofline | None
) -> ProgramPlan:
    nearest = min(like, key=lambda other: abs(math.log(subject.tokens / other.tokens)))
    figures, name = measured[nearest.program.name], subject.program.name
    sampling = not subject.kind.startswith("forward")
    seconds, limit = (
        (None, None)
        if roofline is None or subject.kind.startswith(("copy", "write"))
        else roofline.floor(subject.tokens, sampling=sampling)
    )
    return ProgramPlan(
        name=name,
        rows=subject.rows,
        seq=subject.seq,
        tokens=subject.tokens,
        measured=name in measured,
        temp_bytes=figures.memory.temp,
        code_bytes=figures.memory.code,
        packed_bytes=figures.packed,
        compile_s=figures.seconds,
        cycles=figures.cycles if name in measured else None,
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
            hosts = f" ({other.num_hosts} hosts, and this engine runs on one so far)" if other.num_hosts > 1 else ""
            return f" The smallest target of {target.chip.name} with room for weights and a KV cache is {other.name}{hosts}."
    return f" No target of {target.chip.name} is large enough."
