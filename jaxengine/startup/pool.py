"""How many KV pages an engine gets, and with that the shapes of all its programs."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal

import jax

from jaxengine.device.runtime import memory
from jaxengine.device.runtime.cache_layout import lay_out
from jaxengine.device.runtime.space import ProgramSpace
from jaxengine.device.runtime.target import PlatformDefaults, device_memory_bytes
from jaxengine.errors import CapacityError
from jaxengine.options.config import EngineConfig
from jaxengine.startup.grid import plan_grid
from jaxengine.startup.limits import EngineLimits
from jaxengine.startup.model_plan import ModelPlan
from jaxengine.startup.progress import Progress
from jaxengine.startup.workspace import expected_workspace, measured_workspace
from pallas_kernels import kv_storage_dtype
from xla_cache import ProgramCache, Record

logger = logging.getLogger(__name__)

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

    `workspace` says where that of `budget` is from: `unneeded` if the pool fits whatever it is (and the budget leaves it out),
    `expected`, or `measured` of programs that were compiled. `records` are those, by name, where they were kept; their pool may
    have been another.
    """

    space: ProgramSpace
    limits: EngineLimits
    budget: memory.MemoryBudget
    workspace: Literal["unneeded", "expected", "measured"]
    records: Mapping[str, Record] = field(default_factory=dict)

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
    measure: bool = True,
) -> SpacePlan:
    """Size the KV pool, or take over the `pool` of a bundle. A context that has to shrink for it is told in the log.

    Without `measure` nothing is compiled, and the workspace is what `expected_workspace` says.

    Raises:
        CapacityError: not even one sequence fits, or not the pool that was asked for.
    """
    planned = _plan_space(model, config, limits, defaults, progress, cache, pool, measure)
    if pool is None and planned.limits.max_model_len < limits.max_model_len:
        logger.info(
            "context bounded by memory to %d of the model's %d tokens; --max-model-len insists on a length, or the start fails",
            planned.limits.max_model_len,
            limits.max_model_len,
        )
    return planned


def _plan_space(
    model: ModelPlan,
    config: EngineConfig,
    limits: EngineLimits,
    defaults: PlatformDefaults,
    progress: Progress,
    cache: ProgramCache | None,
    pool: Pool | None,
    measure: bool,
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
    _plan_pages(model, unmeasured, sequence_pages(model, least), config, least, defaults)
    with suppress(CapacityError):
        most = _plan_pages(model, unmeasured, pages, config, limits, defaults)
        if memory.pool_bytes(pages.divide(most), unmeasured.page_bytes) <= unmeasured.available_bytes // 2:
            space = _space(model, config, limits, num_pages=most)
            return SpacePlan(space=space, limits=limits, budget=unmeasured, workspace="unneeded")
    expected = dataclasses.replace(unmeasured, workspace_bytes=expected_workspace(probe, model))
    if measure:
        progress.say("plan", "measuring the workspace of the largest programs")
    try:
        trial = _fitted(model, config, limits, defaults, expected)
    except CapacityError:
        if not measure:
            raise
        half = max(4 * len(unmeasured.page_bytes), pages.most(unmeasured.available_bytes // 2, unmeasured.page_bytes))
        space = _space(model, config, limits, num_pages=half)
        trial = SpacePlan(space=space, limits=limits, budget=unmeasured, workspace="unneeded")
    if not measure:
        return trial
    budget, records = _measure(model, config, trial, unmeasured, cache)
    unused = trial.budget.workspace_bytes - budget.workspace_bytes
    if budget.page_bytes == unmeasured.page_bytes and 0 <= unused <= UNUSED_SHARE * unmeasured.device_bytes:
        found = dataclasses.replace(trial, budget=budget)
    else:
        found = _fitted(model, config, limits, defaults, budget)
    return dataclasses.replace(found, workspace="measured", records=records)


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
    num_pages = _plan_pages(model, budget, sequence_pages(model, limits), config, limits, defaults)
    space = _space(model, config, limits, num_pages=num_pages)
    return SpacePlan(space=space, limits=limits, budget=budget, workspace="expected")


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
    return SpacePlan(space=space, limits=limits, budget=budget, workspace="unneeded")


def _measure(
    model: ModelPlan, config: EngineConfig, trial: SpacePlan, budget: memory.MemoryBudget, cache: ProgramCache | None
) -> tuple[memory.MemoryBudget, Mapping[str, Record]]:
    """Compile the largest programs of `trial`; where one copies its pool, on a smaller pool too. With what was kept of them.

    Workspace that grows with the pool is counted with the pages.
    """
    large = memory.pool_bytes(trial.space.num_pages, budget.page_bytes)
    workspace, records = measured_workspace(trial.space, config, cache)
    beside = (0,) * len(budget.page_bytes)
    if workspace > large // 2:
        smaller = _space(model, config, trial.limits, num_pages=sum(trial.space.num_pages) // 2)
        growth = max(0, workspace - measured_workspace(smaller, config, cache)[0])
        grown = large - memory.pool_bytes(smaller.num_pages, budget.page_bytes)
        beside = tuple(page * growth // grown for page in budget.page_bytes)
    measured = dataclasses.replace(
        budget,
        workspace_bytes=max(0, workspace - memory.pool_bytes(trial.space.num_pages, beside)),
        page_bytes=tuple(map(sum, zip(budget.page_bytes, beside, strict=True))),
    )
    return measured, records


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
    model: ModelPlan,
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
        fewer_bytes=model.fewer_bytes,
    )


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
        device_layout=model.layout,
        native=model.native,
    )
