"""How many KV pages an engine gets, and with that the shapes of all its programs."""

from __future__ import annotations

import dataclasses
import os

import jax

from buckets import Grid, Limits, plan, plan_deterministic
from jaxengine.config import EngineConfig
from jaxengine.engine.limits import EngineLimits
from jaxengine.engine.model_plan import ModelPlan
from jaxengine.engine.progress import Progress
from jaxengine.errors import CapacityError, ConfigError
from jaxengine.runtime import memory
from jaxengine.runtime.executables import Executables
from jaxengine.runtime.programs import ProgramSpace, all_programs
from jaxengine.runtime.target import PlatformDefaults, device_memory_bytes
from pallas_kernels import kv_storage_dtype
from xla_cache import Program

RANGED = ("linear", "exponential")
PLANNERS_WITH = {
    "prefill_batch_range": RANGED,
    "prefill_seq_range": RANGED,
    "decode_batch_range": RANGED,
    "buckets": ("explicit",),
}
"""Which planners read which option."""


def plan_space(
    model: ModelPlan, config: EngineConfig, limits: EngineLimits, defaults: PlatformDefaults, progress: Progress
) -> tuple[ProgramSpace, EngineLimits]:
    """Size the KV pool.

    Where all that can ever be used takes less than half of what the weights leave, no program can be in the way and nothing is
    measured; else the largest programs are compiled first, to learn what workspace they need.
    """
    probe = _space(model, config, limits, num_pages=-(-limits.max_model_len // limits.page_size) + 1)
    unmeasured = _budget(model, config, limits, probe, workspace_bytes=0)
    roomy = dataclasses.replace(unmeasured, workspace_bytes=unmeasured.available_bytes // 2)
    if not limits.fit_context:
        try:
            return _space(model, config, limits, num_pages=_plan_pages(roomy, config, limits, defaults)), limits
        except CapacityError:
            pass  # not roomy: measure
    progress.say("plan", "measuring the workspace of the largest programs")
    budget = _measure(model, config, limits, unmeasured)
    if limits.fit_context:
        limits = limits.with_context(min(limits.max_model_len, max(1, (budget.max_pages - 1) * limits.page_size)))
    return _space(model, config, limits, num_pages=_plan_pages(budget, config, limits, defaults)), limits


def _measure(
    model: ModelPlan, config: EngineConfig, limits: EngineLimits, budget: memory.MemoryBudget
) -> memory.MemoryBudget:
    """Compile the largest programs on two pools, of half and a quarter of what is free: workspace may grow with the pool."""
    large = max(4, budget.available_bytes // 2 // budget.page_bytes)
    small = large // 2
    workspace = {}
    for num_pages in (small, large):
        programs = _largest_programs(all_programs(_space(model, config, limits, num_pages=num_pages)))
        measured, _ = Executables.compile(programs, threads=compile_threads(config))
        workspace[num_pages] = memory.workspace_bytes(compiled for _, compiled in measured.items())
    per_page = max(0, workspace[large] - workspace[small]) // (large - small)
    return dataclasses.replace(
        budget,
        workspace_bytes=max(0, workspace[small] - small * per_page),
        page_bytes=budget.page_bytes + per_page,
    )


def _plan_pages(
    budget: memory.MemoryBudget, config: EngineConfig, limits: EngineLimits, defaults: PlatformDefaults
) -> int:
    requested = config.cache.num_pages
    if requested is None and config.cache.kv_cache_memory_bytes is not None:
        requested = config.cache.kv_cache_memory_bytes // budget.page_bytes
    return memory.plan_pages(
        budget,
        max_model_len=limits.max_model_len,
        max_num_seqs=limits.max_num_seqs,
        requested=requested,
        max_kv_bytes=defaults.max_kv_bytes,
    )


def _largest_programs(programs: list[Program]) -> list[Program]:
    """The forward pass and the sampling that need the most memory: the largest of each kind."""
    kinds: dict[str, Program] = {}
    for program in programs:
        kind = program.name.split()[0]
        if kind != "copy" and (kind not in kinds or program.weight > kinds[kind].weight):
            kinds[kind] = program
    return list(kinds.values())


def _budget(
    model: ModelPlan, config: EngineConfig, limits: EngineLimits, space: ProgramSpace, *, workspace_bytes: int
) -> memory.MemoryBudget:
    device_bytes = device_memory_bytes(model.devices[0])
    return memory.MemoryBudget(
        device_bytes=device_bytes,
        limit_bytes=int(device_bytes * config.cache.memory_utilization),
        weight_bytes=memory.parameter_bytes(model.parameters),
        workspace_bytes=workspace_bytes,
        page_bytes=memory.page_bytes(
            space.cache, page_size=limits.page_size, itemsize=space.kv_dtype.itemsize, shards=len(model.devices)
        ),
        page_size=limits.page_size,
    )


def plan_grid(config: EngineConfig, limits: EngineLimits) -> Grid:
    """The shapes that will exist.

    Raises:
        ConfigError: ranges or buckets that the planner cannot use.
    """
    options = config.compilation
    planner = "deterministic" if config.scheduler.deterministic else options.bucket_planner
    for name in ("prefill_batch_range", "prefill_seq_range", "decode_batch_range", "buckets"):
        if getattr(options, name) is not None and planner not in PLANNERS_WITH[name]:
            raise ConfigError(
                f"{name} says nothing to the {planner} planner; leave it out, "
                f"or choose bucket_planner {' or '.join(PLANNERS_WITH[name])} (without deterministic)"
            )
    bounds = Limits(
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        max_model_len=limits.max_model_len,
        page_size=limits.page_size,
        prefill_batch_range=options.prefill_batch_range,
        prefill_seq_range=options.prefill_seq_range,
        decode_batch_range=options.decode_batch_range,
        buckets=options.buckets,
    )
    try:
        return plan_deterministic(bounds) if config.scheduler.deterministic else plan(options.bucket_planner, bounds)
    except ValueError as error:
        raise ConfigError(f"bucket_planner {options.bucket_planner}: {error}") from error


def compile_threads(config: EngineConfig) -> int:
    return config.compilation.compile_threads or os.cpu_count() or 1


def _space(model: ModelPlan, config: EngineConfig, limits: EngineLimits, *, num_pages: int) -> ProgramSpace:
    backend = config.compilation.attention_backend
    vocab_size = model.config.vocab_size
    max_logprobs = config.model.max_logprobs
    return ProgramSpace(
        graph=model.graph,
        parameters=model.parameters,
        cache=model.config.cache,
        vocab_size=vocab_size,
        grid=plan_grid(config, limits),
        page_size=limits.page_size,
        num_pages=num_pages,
        kv_dtype=jax.numpy.dtype(kv_storage_dtype(model.dtype, platform=model.platform)),
        max_model_len=limits.max_model_len,
        max_logprobs=vocab_size if max_logprobs == -1 else min(max_logprobs, vocab_size),
        attention_backend=backend,
        platform=model.platform,
        mesh=model.mesh,
    )
