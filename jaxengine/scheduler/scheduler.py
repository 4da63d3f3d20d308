"""Continuous batching over rows: which work runs in the next step, and what its results mean."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count
from typing import cast

from buckets import Grid
from jaxengine.batch import Batch, Bitmask, RowLogprobs, StepResult
from jaxengine.errors import ConfigError, RequestError
from jaxengine.kvcache.ledger import Ledger
from jaxengine.request import Request
from jaxengine.scheduler.admission import check_request
from jaxengine.scheduler.assembly import Assembly, assemble
from jaxengine.scheduler.counters import Counters, SchedulerStats
from jaxengine.scheduler.finish import finish_after
from jaxengine.scheduler.grammar_masks import grammar_masks
from jaxengine.scheduler.limits import SchedulerLimits
from jaxengine.scheduler.masks import TokenMask, masks_anything
from jaxengine.scheduler.placement import Placement
from jaxengine.scheduler.sequence import Group, Sequence, State
from jaxengine.scheduler.updates import SequenceUpdate


class Scheduler:
    """Owns every sequence from `add` until it ends. `schedule` and `commit` alternate.

    Args:
        limits: sizes of a step and the order of requests.
        grid: the shapes that exist; it must hold `max_num_seqs` decode rows.
        ledger: the page ledger, empty.
        vocab_size: tokens of the model, for masks and checks.
        clock: seconds, for the times in updates.

    Raises:
        ConfigError: a grid that cannot run what the limits allow.
    """

    def __init__(
        self,
        limits: SchedulerLimits,
        grid: Grid,
        ledger: Ledger,
        *,
        vocab_size: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        _check_grid(limits, grid)
        self._limits = limits
        self._grid = grid
        self._ledger = ledger
        self._vocab_size = vocab_size
        hit_multiple = grid.prefill_buckets[0].seq if limits.deterministic else 1
        self._placement = Placement(limits, ledger, hit_multiple=hit_multiple, clock=clock)
        self._groups: dict[str, Group] = {}
        self._numbers = count()
        self._counters = Counters()
        self._in_flight: tuple[Batch, Assembly] | None = None

    @property
    def has_unfinished(self) -> bool:
        """Whether any request has not ended."""
        return bool(self._groups)

    @property
    def capacity_tokens(self) -> int:
        """Tokens that the KV pool holds for one sequence that has it to itself."""
        return self._placement.capacity_pages * self._placement.page_size

    @property
    def stats(self) -> SchedulerStats:
        """Counts as of now."""
        prefix = self._ledger.stats
        return SchedulerStats(
            num_running=len(self._placement.running),
            num_waiting=len(self._placement.waiting),
            num_waiting_tokens=self._placement.waiting.num_tokens,
            num_preemptions=self._placement.num_preemptions,
            kv_cache_usage=self._ledger.usage,
            prefix_cache_queries=prefix.queries,
            prefix_cache_hits=prefix.hits,
            shapes=dict(self._counters.shapes),
        )

    def add(self, request: Request) -> None:
        """Accept a request; it waits until `schedule` finds room for it.

        Raises:
            ContextLengthError: it can never fit.
            RequestError: it is invalid, or its id is in use. Nothing else is affected.
        """
        if request.request_id in self._groups:
            raise RequestError(
                f"request id {request.request_id!r} is in use by a request that has not ended; choose another",
                param="request_id",
            )
        if request.priority and self._limits.scheduling_policy != "priority":
            raise RequestError(
                f"priority {request.priority} has no effect under scheduling_policy={self._limits.scheduling_policy!r}; "
                "start the engine with scheduling_policy='priority', or leave priority at 0",
                param="priority",
            )
        max_tokens = check_request(
            request,
            vocab_size=self._vocab_size,
            max_model_len=self._limits.max_model_len,
            capacity=self.capacity_tokens,
        )
        mask = TokenMask(request, self._vocab_size) if masks_anything(request) else None
        group = Group(request, number=next(self._numbers), max_tokens=max_tokens, mask=mask)
        self._placement.enqueue_next(group)
        self._groups[request.request_id] = group

    def abort(self, request_id: str) -> bool:
        """End all sequences of exactly this request and free their pages; False when there is no such request."""
        group = self._groups.pop(request_id, None)
        if group is None:
            return False
        for sequence in list(group.live.values()):
            self._placement.finish(sequence)
        self._placement.close_group(group)
        self._placement.sweep()
        return True

    def abort_all(self) -> list[str]:
        """Abort every request and forget the step in flight; return the ids."""
        request_ids = list(self._groups)
        for request_id in request_ids:
            self.abort(request_id)
        self._in_flight = None
        return request_ids

    def stop(self, request_id: str, index: int) -> None:
        """End one sequence because of its text (a stop string); it may have ended by its tokens already."""
        group = self._groups.get(request_id)
        sequence = None if group is None else group.live.get(index)
        if sequence is not None:
            self._finish(sequence)
            self._placement.sweep()

    def use(self, grid: Grid) -> None:
        """Choose among the shapes of `grid` from the next step on.

        Raises:
            ConfigError: it cannot run what the limits allow.
        """
        if grid is not self._grid:
            _check_grid(self._limits, grid)
            self._grid = grid

    def schedule(self) -> Batch | None:
        """Choose the next step, or None when there is nothing to compute.

        Raises:
            RuntimeError: the step before this one was not committed.
        """
        if self._in_flight is not None:
            raise RuntimeError("schedule() was called before the step in flight was committed")
        placement = self._placement
        preempted = placement.secure()
        if not preempted or not placement.running:
            placement.admit(max_tokens=self._limits.max_num_batched_tokens)
        step = assemble(placement.running, self._grid, self._limits, page_size=placement.page_size)
        if not step.computed:
            return None
        batch = Batch(
            prefill=tuple(step.prefill),
            decode=tuple(step.decode),
            prefill_bucket=step.prefill_bucket,
            decode_bucket=self._grid.fit_decode(len(step.decode)) if step.decode else None,
            copies=tuple(self._ledger.take_copies()),
        )
        self._in_flight = (batch, step)
        self._counters.record(batch)
        return batch

    def masks(self, batch: Batch) -> dict[int, Bitmask]:
        """The masks of the step in flight that were not known when it was scheduled, by place in `batch.sampled_rows()`.

        They are those of sequences with a grammar. Work for the host while the device computes.
        """
        assert self._in_flight is not None
        assert self._in_flight[0] is batch
        return grammar_masks(self._in_flight[1].sampled, batch.sampled_rows())

    def commit(self, batch: Batch, result: StepResult) -> list[SequenceUpdate]:
        """Take in the results of `batch`: advance its sequences, publish full pages, end what is finished.

        Sequences that ended while the step ran (aborted) are passed over.

        Raises:
            ValueError: `batch` is not the step in flight, or `result` has another number of tokens than sampled rows.
        """
        if self._in_flight is None or self._in_flight[0] is not batch:
            raise ValueError("commit() takes the batch that schedule() returned last, once")
        step = self._in_flight[1]
        sampled = step.sampled
        if not len(result.tokens) == len(result.logprobs) == len(sampled):
            raise ValueError(
                f"the step has {len(sampled)} sampled rows, its result {len(result.tokens)} tokens and "
                f"{len(result.logprobs)} log probabilities"
            )
        self._in_flight = None
        self._advance(step.computed)
        updates: list[SequenceUpdate] = []
        prompt_logprobs: dict[Sequence, list[RowLogprobs]] = {}
        finished = False
        for (sequence, is_target), token, logprobs in zip(
            sampled, result.tokens.tolist(), result.logprobs, strict=True
        ):
            if sequence.state is not State.RUNNING:
                continue
            if is_target:
                assert logprobs is not None, "a row with a target reports its log probability"
                prompt_logprobs.setdefault(sequence, []).append(logprobs)
                sequence.num_prompt_logprobs += 1
                continue
            known = tuple(prompt_logprobs.pop(sequence, ())) if prompt_logprobs else ()
            if sequence.grammar_error is not None:
                updates.append(_update(sequence, prompt_logprobs=known, finish_reason="error"))
                if sequence.group.unshared:
                    self._placement.share_prompt(sequence)
                self._finish(sequence)
                finished = True
                continue
            update = self._take_token(sequence, token, logprobs, known)
            finished = finished or update.finish_reason is not None
            updates.append(update)
        updates += [_update(sequence, prompt_logprobs=tuple(known)) for sequence, known in prompt_logprobs.items()]
        if finished:
            self._placement.sweep()
        return updates

    def check_idle(self) -> None:
        """Prove that without any request no page is held and none was lost.

        Raises:
            AssertionError: the accounts do not say so.
        """
        self._ledger.check()
        if self._ledger.usage:
            raise AssertionError(f"{self._ledger.usage:.1%} of the pages are held; they must all be free when idle")

    def _advance(self, computed: list[tuple[Sequence, int]]) -> None:
        page_size = self._placement.page_size
        for sequence, tokens in computed:
            if sequence.state is not State.RUNNING:
                continue
            sequence.num_computed += tokens
            if sequence.num_computed // page_size > sequence.committed_pages:
                self._publish(sequence)

    def _publish(self, sequence: Sequence) -> None:
        """Offer full pages to the prefix index; in deterministic mode only those that prefill rows computed."""
        end = sequence.num_computed
        if sequence.pinned_end is not None:
            end = min(end, sequence.pinned_end)
        sequence.committed_pages = sequence.num_computed // self._placement.page_size
        self._ledger.commit(sequence.sequence_id, cast("list[int]", sequence.tokens), end)

    def _take_token(
        self, sequence: Sequence, token: int, logprobs: RowLogprobs | None, prompt_logprobs: tuple[RowLogprobs, ...]
    ) -> SequenceUpdate:
        group = sequence.group
        sequence.append(token)
        if group.unshared:
            self._placement.share_prompt(sequence)
        finish = finish_after(
            token,
            eos_token_id=group.eos_token_id,
            stop_ids=group.stop_ids,
            full=sequence.num_tokens >= sequence.max_length,
        )
        update = SequenceUpdate(
            request_id=group.request.request_id,
            index=sequence.index,
            token_ids=(token,),
            logprobs=(logprobs,),
            prompt_logprobs=prompt_logprobs,
            finish_reason=finish and finish.reason,
            stop_reason=finish and finish.stop_reason,
            num_cached_tokens=sequence.num_cached or 0,
            num_preemptions=sequence.num_preemptions,
            first_scheduled_time=group.first_scheduled_time,
        )
        if finish is not None:
            self._finish(sequence)
        return update

    def _finish(self, sequence: Sequence) -> None:
        group = sequence.group
        self._placement.finish(sequence)
        if not group.live and not group.has_more:
            self._placement.close_group(group)
            del self._groups[group.request.request_id]


def _update(
    sequence: Sequence, *, prompt_logprobs: tuple[RowLogprobs, ...], finish_reason: str | None = None
) -> SequenceUpdate:
    """News of a sequence that gained no token."""
    group = sequence.group
    return SequenceUpdate(
        request_id=group.request.request_id,
        index=sequence.index,
        token_ids=(),
        logprobs=(),
        prompt_logprobs=prompt_logprobs,
        finish_reason=finish_reason,
        stop_reason=None,
        num_cached_tokens=sequence.num_cached or 0,
        num_preemptions=sequence.num_preemptions,
        first_scheduled_time=group.first_scheduled_time,
    )


def _check_grid(limits: SchedulerLimits, grid: Grid) -> None:
    if grid.max_decode_rows < limits.max_num_seqs:
        raise ConfigError(
            f"the grid has at most {grid.max_decode_rows} decode rows, fewer than max_num_seqs ({limits.max_num_seqs}); "
            "plan larger decode buckets or lower max_num_seqs"
        )
    if not grid.prefill_buckets:
        raise ConfigError("the grid has no prefill bucket; plan at least one")
    if limits.deterministic and (len(grid.prefill_buckets) > 1 or len(grid.decode_buckets) > 1):
        raise ConfigError(
            f"deterministic mode needs one prefill and one decode bucket, the grid has {len(grid.prefill_buckets)} "
            f"and {len(grid.decode_buckets)}"
        )
