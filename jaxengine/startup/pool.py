"""How many KV pages an engine gets, and with that the shapes of all its programs."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Literal

import jax

from jaxengine.device.runtime import memory
from jaxengine.device.runtime.alignment import alignment_bytes
from jaxengine.device.runtime.block_moves import transit_bytes
from jaxengine.device.runtime.cache_layout import lay_out
from jaxengine.device.runtime.encoder_programs import stream_bytes
from jaxengine.device.runtime.programs import standing_bytes
from jaxengine.device.runtime.space import ProgramSpace
from jaxengine.errors import CapacityError
from jaxengine.startup.bundle import Pool
from jaxengine.startup.encoder_plan import plan_encoder
from jaxengine.startup.grid import plan_grid
from jaxengine.startup.limits import EngineLimits
from jaxengine.startup.model_plan import ModelPlan
from jaxengine.startup.offloading import with_host_blocks
from jaxengine.startup.prepare import Prepared
from jaxengine.startup.state_snapshots import choose_count
from jaxengine.startup.workspace import expected_workspace, measured_workspace
from pallas_kernels import kv_storage_dtype
from xla_cache import ProgramCache, Record

logger = logging.getLogger(__name__)

Workspace = Literal["unneeded", "expected", "measured"]

ASKED_SIZES = ("num_pages", "kv_cache_memory_bytes")
"""The options that say how large the pool is."""

UNUSED_SHARE = 1 / 32
"""Of the device's memory: as much may lie idle for having expected more workspace than is needed."""


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
    workspace: Workspace
    records: Mapping[str, Record] = field(default_factory=dict)

    @property
    def pool(self) -> Pool:
        return Pool(
            num_pages=sum(self.space.num_pages),
            max_model_len=self.limits.max_model_len,
            num_snapshots=self.limits.num_snapshots,
        )


def plan_space(
    prepared: Prepared, *, cache: ProgramCache | None = None, pool: Pool | None = None, measure: bool = True
) -> SpacePlan:
    """Size the KV pool, or take over the `pool` of a bundle. A context that has to shrink for it is told in the log.

    Without `measure` nothing is compiled, and the workspace is what `expected_workspace` says.

    Raises:
        CapacityError: not even one sequence fits, or not the pool that was asked for.
    """
    prepared = _with_snapshots(prepared)
    probe = _space(prepared, num_pages=_pages(prepared).for_sequences(1))
    bare = _budget(prepared, probe)
    if pool is not None:
        return _taken_over(prepared, bare, pool)
    asked, prepared = prepared.limits.max_model_len, _as_asked(prepared, bare)
    _refuse_what_never_fits(prepared, bare)
    planned = _whole(prepared, bare)
    if planned is None:
        expected = replace(bare, workspace_bytes=expected_workspace(probe, prepared.model))
        planned = _measured(prepared, bare, expected, cache) if measure else _fitted(prepared, expected)
    if planned.limits.max_model_len < asked:
        logger.info(
            "context bounded by %s to %d of the model's %d tokens; --max-model-len insists on a length, or the start fails",
            planned.limits.context_option if planned.limits.context_option in ASKED_SIZES else "memory",
            planned.limits.max_model_len,
            asked,
        )
    return planned


def _with_snapshots(prepared: Prepared) -> Prepared:
    """With as many snapshots of recurrent layers' states as were asked for, or memory is to hold."""
    probe = _space(prepared, num_pages=_pages(prepared).for_sequences(1))
    room = _budget(prepared, probe).available_bytes
    if prepared.defaults.max_kv_bytes is not None:
        room = min(room, prepared.defaults.max_kv_bytes)
    limits = prepared.limits
    count = choose_count(
        prepared.config,
        prepared.model.traits,
        room=room,
        snapshot_bytes=max(1, memory.slot_bytes(probe.states) // (1 + limits.max_num_seqs)),
        max_num_seqs=limits.max_num_seqs,
    )
    return replace(prepared, limits=replace(limits, num_snapshots=count))


def _taken_over(prepared: Prepared, bare: memory.MemoryBudget, pool: Pool) -> SpacePlan:
    """A bundle's pool, if this device has room for it."""
    prepared = prepared.with_context(pool.max_model_len, option="bundle")
    room = _pages(prepared).most(bare.available_bytes, bare.page_bytes)
    if pool.num_pages > room:
        raise CapacityError(
            f"the bundle was compiled for {pool.num_pages} KV pages, and beside the weights this device has room for "
            f"{room}; compile it again with --num-pages {room}, or raise memory_utilization"
        )
    return _plan(prepared, bare, num_pages=pool.num_pages, workspace="unneeded")


def _as_asked(prepared: Prepared, bare: memory.MemoryBudget) -> Prepared:
    """With the longest context that a pool of the size that was asked for holds; and where none was, one of
    `defaults.max_kv_bytes`, which only `--max-model-len` goes beyond. A context that was asked for stays."""
    limits, asked, pages = prepared.limits, prepared.config.cache, _pages(prepared)
    if not limits.fit_context:
        return prepared
    largest = prepared.defaults.max_kv_bytes if prepared.config.model.max_model_len is None else None
    size, page_sizes = asked.kv_cache_memory_bytes or largest, bare.page_bytes
    option = "max_model_len" if asked.kv_cache_memory_bytes is None else "kv_cache_memory_bytes"
    if asked.num_pages is not None:
        size, page_sizes, option = asked.num_pages, (1,) * len(bare.page_bytes), "num_pages"
    longest = 0 if size is None else pages.longest(size, page_sizes, most=limits.max_model_len)
    return prepared.with_context(longest, option=option) if longest > 0 else prepared


def _refuse_what_never_fits(prepared: Prepared, bare: memory.MemoryBudget) -> None:
    """What cannot fit even without any workspace is refused before anything is compiled."""
    _num_pages(prepared.with_context(1) if prepared.limits.fit_context else prepared, bare)


def _whole(prepared: Prepared, bare: memory.MemoryBudget) -> SpacePlan | None:
    """All that can ever be used, where it takes less than half of what the weights leave: there no program can be in the way."""
    with suppress(CapacityError):
        most = _num_pages(prepared, bare)
        if memory.pool_bytes(_pages(prepared).divide(most), bare.page_bytes) <= bare.available_bytes // 2:
            return _plan(prepared, bare, num_pages=most, workspace="unneeded")
    return None


def _measured(
    prepared: Prepared, bare: memory.MemoryBudget, expected: memory.MemoryBudget, cache: ProgramCache | None
) -> SpacePlan:
    """The largest programs are compiled first (or found in `cache`) to learn what workspace they need, on the pool that an
    estimate of it leaves: if that was about right the pool stays, and these programs need not be compiled again.
    """
    prepared.progress.say("plan", "measuring the workspace of the largest programs")
    try:
        trial = _fitted(prepared, expected)
    except CapacityError:
        half = _pages(prepared).most(bare.available_bytes // 2, bare.page_bytes)
        trial = _plan(prepared, bare, num_pages=max(4 * len(bare.page_bytes), half), workspace="unneeded")
    budget, records = _measure(prepared, trial, bare, cache)
    unused = trial.budget.workspace_bytes - budget.workspace_bytes
    stays = budget.page_bytes == bare.page_bytes and 0 <= unused <= UNUSED_SHARE * bare.device_bytes
    found = replace(trial, budget=budget) if stays else _fitted(prepared, budget)
    return replace(found, workspace="measured", records=records)


def _fitted(prepared: Prepared, budget: memory.MemoryBudget) -> SpacePlan:
    """The most pages, and with `fit_context` the longest context, that the budget leaves room for."""
    limits = prepared.limits
    if limits.fit_context:
        longest = _pages(prepared).longest(budget.available_bytes, budget.page_bytes, most=limits.max_model_len)
        prepared = prepared.with_context(max(1, longest), option="memory_utilization")
    return _plan(prepared, budget, num_pages=_num_pages(prepared, budget), workspace="expected")


def _plan(prepared: Prepared, budget: memory.MemoryBudget, *, num_pages: int, workspace: Workspace) -> SpacePlan:
    space = _space(prepared, num_pages=num_pages)
    return SpacePlan(space=space, limits=prepared.limits, budget=budget, workspace=workspace)


def plain_tokens(model: ModelPlan, planned: SpacePlan) -> int:
    """Tokens that as many bytes of cache would hold in the model's dtype."""
    space, pages = planned.space, sequence_pages(model, planned.limits)
    held = replace(space, kv_dtype=jax.numpy.dtype(kv_storage_dtype(model.dtype, platform=model.platform)))
    own, plain = (tuple(map(memory.page_bytes, each.kv_pages, each.num_pages)) for each in (space, held))
    return pages.tokens_held(pages.divide(pages.most(memory.pool_bytes(space.num_pages, own), plain)))


def describe_cache(model: ModelPlan, planned: SpacePlan) -> str | None:
    """One line for the log, of what a cache of another type than the model's gains; None where it is of that."""
    if model.kv_dtype == model.dtype:
        return None
    tokens = sequence_pages(model, planned.limits).tokens_held(planned.space.num_pages)
    plain = plain_tokens(model, planned)
    return f"KV cache in {model.kv_dtype}: {tokens:,} tokens, where as many bytes would hold {plain:,} in {model.dtype}"


def _measure(
    prepared: Prepared, trial: SpacePlan, budget: memory.MemoryBudget, cache: ProgramCache | None
) -> tuple[memory.MemoryBudget, Mapping[str, Record]]:
    """Compile the largest programs of `trial`; where one copies its pool, on a smaller pool too. With what was kept of them.

    Workspace that grows with the pool is counted with the pages.
    """
    config = prepared.config
    large = memory.pool_bytes(trial.space.num_pages, budget.page_bytes)
    workspace, records = measured_workspace(trial.space, config, cache)
    beside = (0,) * len(budget.page_bytes)
    if workspace > large // 2:
        smaller = _space(replace(prepared, limits=trial.limits), num_pages=sum(trial.space.num_pages) // 2)
        growth = max(0, workspace - measured_workspace(smaller, config, cache)[0])
        grown = large - memory.pool_bytes(smaller.num_pages, budget.page_bytes)
        beside = tuple(page * growth // grown for page in budget.page_bytes)
    measured = replace(
        budget,
        workspace_bytes=max(0, workspace - memory.pool_bytes(trial.space.num_pages, beside)),
        page_bytes=tuple(map(sum, zip(budget.page_bytes, beside, strict=True))),
    )
    return measured, records


def sequence_pages(model: ModelPlan, limits: EngineLimits) -> memory.SequencePages:
    """How many pages the sequences of this model take."""
    layout = lay_out(model.cache, max_model_len=limits.max_model_len, stages=model.stages)
    return memory.SequencePages(
        layout=layout,
        page_size=limits.page_size,
        ahead=limits.max_num_batched_tokens,
        max_model_len=limits.max_model_len,
    )


def _pages(prepared: Prepared) -> memory.SequencePages:
    return sequence_pages(prepared.model, prepared.limits)


def _num_pages(prepared: Prepared, budget: memory.MemoryBudget) -> int:
    """The pages that were asked for, or as many as can be used and the budget has room for."""
    asked, pages = prepared.config.cache, _pages(prepared)
    requested = asked.num_pages
    if requested is None and asked.kv_cache_memory_bytes is not None:
        requested = pages.most(asked.kv_cache_memory_bytes, budget.page_bytes)
    return memory.plan_pages(
        budget,
        pages,
        max_num_seqs=prepared.limits.max_num_seqs,
        requested=requested,
        max_kv_bytes=prepared.defaults.max_kv_bytes,
        fewer_bytes=prepared.model.fewer_bytes,
    )


def _budget(prepared: Prepared, space: ProgramSpace) -> memory.MemoryBudget:
    """What the device has beside weights and slots, without any workspace; of several stages the most that any takes."""
    model, views = prepared.model, space.views
    of_weights = max(memory.parameter_bytes(view.own_structs) for view in views)
    of_slots = max(memory.slot_bytes((view.slots if view.ends else (), view.states, view.snapshots)) for view in views)
    of_slots += standing_bytes(space)
    of_pages = [tuple(map(memory.page_bytes, view.kv_pages, view.num_pages)) for view in views]
    return memory.MemoryBudget(
        device_bytes=prepared.device_bytes,
        limit_bytes=int(prepared.device_bytes * prepared.config.cache.memory_utilization),
        weight_bytes=of_weights + memory.parameter_bytes(model.graph.adapters),
        slot_bytes=of_slots
        + transit_bytes(space)
        + memory.slot_bytes(space.encoded)
        + stream_bytes(space)
        + alignment_bytes(space),
        workspace_bytes=0,
        page_bytes=tuple(map(max, zip(*of_pages, strict=True))),
        page_size=prepared.limits.page_size,
    )


def _space(prepared: Prepared, *, num_pages: int) -> ProgramSpace:
    config, model, limits = prepared.config, prepared.model, prepared.limits
    backend = config.compilation.attention_backend
    vocab_size = model.config.vocab_size
    max_logprobs = config.model.max_logprobs
    speculation = config.scheduler.speculation
    pages = _pages(prepared)
    space = ProgramSpace(
        graph=model.graph,
        parameters=model.parameters,
        cache=pages.layout,
        vocab_size=vocab_size,
        grid=plan_grid(config, limits, model),
        max_num_seqs=limits.max_num_seqs,
        num_drafts=0 if speculation is None else speculation.num_tokens,
        draft=None if model.draft is None else model.draft.space,
        taps=model.draft.space.taps if model.draft is not None and model.draft.space.ahead else None,
        page_size=limits.page_size,
        num_pages=pages.divide(num_pages),
        kv_dtype=jax.numpy.dtype(kv_storage_dtype(model.kv_dtype, platform=model.platform)),
        max_model_len=limits.max_model_len,
        max_logprobs=vocab_size if max_logprobs == -1 else min(max_logprobs, vocab_size),
        attention_backend=backend,
        platform=model.platform,
        device_layout=model.layout,
        native=model.native,
        num_snapshots=limits.num_snapshots,
        adapters=model.adapters,
        pipeline=model.pipeline,
        media=plan_encoder(model, limits, takes_given=config.media.enable_mm_embeds),
    )
    return with_host_blocks(space, config.cache)
