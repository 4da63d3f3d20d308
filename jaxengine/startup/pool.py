"""How many KV pages an engine gets, and with that the shapes of all its programs."""

from __future__ import annotations

import dataclasses
import logging
import os
from contextlib import suppress
from dataclasses import dataclass

import jax

from jaxengine.config import EngineConfig
from jaxengine.errors import CapacityError
from jaxengine.layers.sharding import shards
from jaxengine.runtime import memory
from jaxengine.runtime.cache_layout import lay_out
from jaxengine.runtime.executables import Executables
from jaxengine.runtime.programs import all_programs
from jaxengine.runtime.space import ProgramSpace
from jaxengine.runtime.target import PlatformDefaults, device_memory_bytes
from jaxengine.startup.grid import plan_grid
from jaxengine.startup.limits import EngineLimits
from jaxengine.startup.model_plan import ModelPlan
from jaxengine.startup.progress import Progress
from pallas_kernels import kv_storage_dtype
from xla_cache import CacheError, Program, ProgramCache, build_programs
from xla_cache.record import Memory

logger = logging.getLogger(__name__)

CODE_BYTES = {"tpu": 8 << 20}
"""Device memory that a program's code takes on average: what programs of Llama-3.1-8B take."""
UNUSED_SHARE = 1 / 32
"""Of the device's memory: as much may lie idle for having expected more workspace than is needed."""


@dataclass(frozen=True, kw_only=True)
class Pool:
    """What was decided from memory. The programs of another pool have other shapes, so a bundle's pool is taken over.

    `num_pages` are those of all pools; how they are divided follows from the options (`memory.SequencePages`).
    """

    num_pages: int
    max_model_len: int


@dataclass(frozen=True, kw_only=True)
class SpacePlan:
    """All shapes of an engine, and what they were decided from.

    `measured` is False where no program was compiled to know that the pool fits: `budget` leaves out the workspace then, or has
    an estimate of it (`estimate_space`).
    """

    space: ProgramSpace
    limits: EngineLimits
    budget: memory.MemoryBudget
    measured: bool

    @property
    def pool(self) -> Pool:
        return Pool(num_pages=sum(self.space.num_pages), max_model_len=self.limits.max_model_len)


def plan_space(
    model: ModelPlan,
    config: EngineConfig,
    limits: EngineLimits,
    defaults: PlatformDefaults,
    progress: Progress,
    *,
    cache: ProgramCache | None = None,
    pool: Pool | None = None,
) -> SpacePlan:
    """Size the KV pool, or take over the `pool` of a bundle. A context that has to shrink for it is told in the log.

    Raises:
        CapacityError: not even one sequence fits, or not the pool that was asked for.
    """
    planned = _plan_space(model, config, limits, defaults, progress, cache, pool)
    if pool is None and planned.limits.max_model_len < limits.max_model_len:
        logger.info(
            "context bounded by memory to %d of the model's %d tokens; --max-model-len insists on a length, or the start fails",
            planned.limits.max_model_len,
            limits.max_model_len,
        )
    return planned


def estimate_space(
    model: ModelPlan, config: EngineConfig, limits: EngineLimits, defaults: PlatformDefaults
) -> SpacePlan:
    """Size the KV pool by what workspace is expected: nothing is compiled.

    Raises:
        CapacityError: as `plan_space`.
    """
    pages = sequence_pages(model, limits)
    probe = _space(model, config, limits, num_pages=pages.for_sequences(1))
    budget = _budget(model, config, limits, probe, workspace_bytes=_expected_workspace(probe, model))
    if limits.fit_context:
        limits = _as_asked(config, limits, defaults, pages, budget.page_bytes)
    return dataclasses.replace(_fitted(model, config, limits, defaults, budget), measured=False)


def _plan_space(
    model: ModelPlan,
    config: EngineConfig,
    limits: EngineLimits,
    defaults: PlatformDefaults,
    progress: Progress,
    cache: ProgramCache | None,
    pool: Pool | None,
) -> SpacePlan:
    """Where all that can ever be used takes less than half of what the weights leave, no program can be in the way and nothing is
    measured. Else the largest programs are compiled first (or found in `cache`) to learn what workspace they need, on the pool
    that an estimate of it leaves: if that was about right the pool stays, and these programs need not be compiled again.
    """
    pages = sequence_pages(model, limits)
    probe = _space(model, config, limits, num_pages=pages.for_sequences(1))
    unmeasured = _budget(model, config, limits, probe, workspace_bytes=0)
    if pool is not None:
        return _take_over(model, config, limits, unmeasured, pool)
    if limits.fit_context:
        limits = _as_asked(config, limits, defaults, pages, unmeasured.page_bytes)
        pages = sequence_pages(model, limits)
    # What cannot fit even without any workspace is refused here, before anything is compiled.
    least = limits.with_context(1) if limits.fit_context else limits
    _plan_pages(unmeasured, sequence_pages(model, least), config, least, defaults)
    with suppress(CapacityError):
        most = _plan_pages(unmeasured, pages, config, limits, defaults)
        if memory.pool_bytes(pages.divide(most), unmeasured.page_bytes) <= unmeasured.available_bytes // 2:
            space = _space(model, config, limits, num_pages=most)
            return SpacePlan(space=space, limits=limits, budget=unmeasured, measured=False)
    progress.say("plan", "measuring the workspace of the largest programs")
    expected = dataclasses.replace(unmeasured, workspace_bytes=_expected_workspace(probe, model))
    try:
        trial = _fitted(model, config, limits, defaults, expected)
    except CapacityError:
        half = max(4 * len(unmeasured.page_bytes), pages.most(unmeasured.available_bytes // 2, unmeasured.page_bytes))
        space = _space(model, config, limits, num_pages=half)
        trial = SpacePlan(space=space, limits=limits, budget=unmeasured, measured=True)
    budget = _measure(model, config, trial, unmeasured, cache)
    unused = trial.budget.workspace_bytes - budget.workspace_bytes
    if budget.page_bytes == unmeasured.page_bytes and 0 <= unused <= UNUSED_SHARE * unmeasured.device_bytes:
        return trial
    return _fitted(model, config, limits, defaults, budget)


def _as_asked(
    config: EngineConfig,
    limits: EngineLimits,
    defaults: PlatformDefaults,
    pages: memory.SequencePages,
    page_bytes: tuple[int, ...],
) -> EngineLimits:
    """The longest context that a pool of the size that was asked for holds; and where none was, one of `defaults.max_kv_bytes`,
    which only `--max-model-len` goes beyond."""
    cache, most = config.cache, limits.max_model_len
    if cache.num_pages is not None:
        longest = pages.longest(cache.num_pages, (1,) * len(page_bytes), most=most)
    elif cache.kv_cache_memory_bytes is not None:
        longest = pages.longest(cache.kv_cache_memory_bytes, page_bytes, most=most)
    elif config.model.max_model_len is None and defaults.max_kv_bytes is not None:
        longest = pages.longest(defaults.max_kv_bytes, page_bytes, most=most)
    else:
        return limits
    return limits.with_context(longest) if longest > 0 else limits


def plain_tokens(model: ModelPlan, planned: SpacePlan) -> int:
    """Tokens that as many bytes of cache would hold in the model's dtype."""
    space, pages = planned.space, sequence_pages(model, planned.limits)
    held = dataclasses.replace(space, kv_dtype=jax.numpy.dtype(kv_storage_dtype(model.dtype, platform=model.platform)))
    own, plain = (tuple(map(memory.page_bytes, each.kv_pages, each.num_pages)) for each in (space, held))
    return pages.tokens_held(pages.divide(pages.most(memory.pool_bytes(space.num_pages, own), plain)))


def describe_cache(model: ModelPlan, planned: SpacePlan) -> str | None:
    """One line for the log, of what a cache of another type than the model's gains; None where it is of that."""
    if model.kv_dtype == model.dtype:
        return None
    tokens, plain = (
        sequence_pages(model, planned.limits).tokens_held(planned.space.num_pages),
        plain_tokens(model, planned),
    )
    return f"KV cache in {model.kv_dtype}: {tokens:,} tokens, where as many bytes would hold {plain:,} in {model.dtype}"


def _fitted(
    model: ModelPlan,
    config: EngineConfig,
    limits: EngineLimits,
    defaults: PlatformDefaults,
    budget: memory.MemoryBudget,
) -> SpacePlan:
    """The most pages, and with `fit_context` the longest context, that the budget leaves room for."""
    if limits.fit_context:
        pages = sequence_pages(model, limits)
        longest = pages.longest(budget.available_bytes, budget.page_bytes, most=limits.max_model_len)
        limits = limits.with_context(max(1, longest))
    num_pages = _plan_pages(budget, sequence_pages(model, limits), config, limits, defaults)
    space = _space(model, config, limits, num_pages=num_pages)
    return SpacePlan(space=space, limits=limits, budget=budget, measured=True)


def _expected_workspace(space: ProgramSpace, model: ModelPlan) -> int:
    """About what the largest program needs, and the code of all.

    Programs hold the outputs of one layer's products, or the logits, and about as much besides.
    """
    tokens = space.grid.max_tokens
    itemsize = model.dtype.itemsize  # of activations, whatever matrices and caches are kept in
    experts = model.config.experts

    def outputs_of(struct: jax.ShapeDtypeStruct) -> int:
        """Numbers that a parameter makes of a token."""
        shape = memory.shard_shape(struct)
        if len(shape) == 3 and experts is not None:
            return int(experts.routing.chosen * shape[2])
        return shape[0] if len(shape) == 2 else 0

    layers = {space.parts.layers[first] for first in space.parts.alike}
    outputs = max(itemsize * sum(map(outputs_of, space.structs(layer))) for layer in layers)
    logits = 4 * space.kept * -(-space.vocab_size // shards("vocab", space.mesh))
    code = CODE_BYTES.get(space.platform, 0) * len(all_programs(space))
    return 2 * (tokens * outputs + logits) + code


def _take_over(
    model: ModelPlan, config: EngineConfig, limits: EngineLimits, budget: memory.MemoryBudget, pool: Pool
) -> SpacePlan:
    limits = limits.with_context(pool.max_model_len)
    room = sequence_pages(model, limits).most(budget.available_bytes, budget.page_bytes)
    if pool.num_pages > room:
        raise CapacityError(
            f"the bundle was compiled for {pool.num_pages} KV pages, and beside the weights this device has room for "
            f"{room}; compile it again with --num-pages {room}, or raise memory_utilization"
        )
    space = _space(model, config, limits, num_pages=pool.num_pages)
    return SpacePlan(space=space, limits=limits, budget=budget, measured=False)


def _measure(
    model: ModelPlan, config: EngineConfig, trial: SpacePlan, budget: memory.MemoryBudget, cache: ProgramCache | None
) -> memory.MemoryBudget:
    """Compile the largest programs of `trial`; where one copies its pool, on a smaller pool too.

    Workspace that grows with the pool is counted with the pages.
    """
    large = memory.pool_bytes(trial.space.num_pages, budget.page_bytes)
    workspace = _workspace_on(trial.space, config, cache)
    beside = (0,) * len(budget.page_bytes)
    if workspace > large // 2:
        smaller = _space(model, config, trial.limits, num_pages=sum(trial.space.num_pages) // 2)
        growth = max(0, workspace - _workspace_on(smaller, config, cache))
        grown = large - memory.pool_bytes(smaller.num_pages, budget.page_bytes)
        beside = tuple(page * growth // grown for page in budget.page_bytes)
    return dataclasses.replace(
        budget,
        workspace_bytes=max(0, workspace - memory.pool_bytes(trial.space.num_pages, beside)),
        page_bytes=tuple(map(sum, zip(budget.page_bytes, beside, strict=True))),
    )


def _workspace_on(space: ProgramSpace, config: EngineConfig, cache: ProgramCache | None) -> int:
    programs = all_programs(space)
    largest, threads = _largest_programs(programs), compile_threads(config)
    if cache is not None and cache.store is not None:
        try:  # kept programs are read of, not loaded: their devices need not be here
            records = build_programs(largest, cache, threads=threads)
            measured = [record.kept.memory for record in records if record.kept is not None]
            return memory.workspace_bytes(measured, num_programs=len(programs))
        except CacheError as error:
            logger.warning("%s", error)
    executables, _ = Executables.compile(largest, threads=threads)
    measured = [Memory.of(compiled) for _, compiled in executables.items()]
    return memory.workspace_bytes(measured, num_programs=len(programs))


def sequence_pages(model: ModelPlan, limits: EngineLimits) -> memory.SequencePages:
    """How many pages the sequences of this model take."""
    layout = lay_out(model.graph.cache, max_model_len=limits.max_model_len)
    return memory.SequencePages(
        layout=layout,
        page_size=limits.page_size,
        ahead=limits.max_num_batched_tokens,
        max_model_len=limits.max_model_len,
    )


def _plan_pages(
    budget: memory.MemoryBudget,
    pages: memory.SequencePages,
    config: EngineConfig,
    limits: EngineLimits,
    defaults: PlatformDefaults,
) -> int:
    requested = config.cache.num_pages
    if requested is None and config.cache.kv_cache_memory_bytes is not None:
        requested = pages.most(config.cache.kv_cache_memory_bytes, budget.page_bytes)
    return memory.plan_pages(
        budget,
        pages,
        max_num_seqs=limits.max_num_seqs,
        requested=requested,
        max_kv_bytes=defaults.max_kv_bytes,
    )


def _largest_programs(programs: list[Program]) -> list[Program]:
    """The forward pass and the sampling that need the most memory: the largest of each kind."""
    kinds: dict[str, Program] = {}
    for program in programs:
        kind = program.name.split()[0]
        if kind in ("forward", "sample") and (kind not in kinds or program.weight > kinds[kind].weight):
            kinds[kind] = program
    return list(kinds.values())


def _budget(
    model: ModelPlan, config: EngineConfig, limits: EngineLimits, space: ProgramSpace, *, workspace_bytes: int
) -> memory.MemoryBudget:
    device_bytes = device_memory_bytes(model.devices[0], model.target)
    return memory.MemoryBudget(
        device_bytes=device_bytes,
        limit_bytes=int(device_bytes * config.cache.memory_utilization),
        weight_bytes=memory.parameter_bytes(model.parameters),
        slot_bytes=memory.slot_bytes((space.slots, space.states)),
        workspace_bytes=workspace_bytes,
        page_bytes=tuple(map(memory.page_bytes, space.kv_pages, space.num_pages)),
        page_size=limits.page_size,
    )


def compile_threads(config: EngineConfig) -> int:
    return config.compilation.compile_threads or os.cpu_count() or 1


def _space(model: ModelPlan, config: EngineConfig, limits: EngineLimits, *, num_pages: int) -> ProgramSpace:
    backend = config.compilation.attention_backend
    vocab_size = model.config.vocab_size
    max_logprobs = config.model.max_logprobs
    speculation = config.scheduler.speculation
    pages = sequence_pages(model, limits)
    return ProgramSpace(
        graph=model.graph,
        parameters=model.parameters,
        cache=pages.layout,
        vocab_size=vocab_size,
        grid=plan_grid(config, limits, model),
        max_num_seqs=limits.max_num_seqs,
        num_drafts=0 if speculation is None else speculation.num_tokens,
        page_size=limits.page_size,
        num_pages=pages.divide(num_pages),
        kv_dtype=jax.numpy.dtype(kv_storage_dtype(model.kv_dtype, platform=model.platform)),
        max_model_len=limits.max_model_len,
        max_logprobs=vocab_size if max_logprobs == -1 else min(max_logprobs, vocab_size),
        attention_backend=backend,
        platform=model.platform,
        mesh=model.mesh,
        products=model.products,
    )
