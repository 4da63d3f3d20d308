"""Continuous batching over rows: which requests are in, which work runs in the next step, and who ends with its results."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from itertools import count

from buckets import Bucket, Grid
from jaxengine.contract.arrays import Masks
from jaxengine.contract.batch import Batch, StepResult
from jaxengine.contract.media import Encoding
from jaxengine.contract.metrics import SchedulerStats
from jaxengine.contract.request import Request
from jaxengine.contract.step_updates import StepUpdates
from jaxengine.contract.tiers import Answer, Ended, Loaded, Staged
from jaxengine.contract.updates import SequenceUpdate
from jaxengine.errors import ConfigError, RequestError
from jaxengine.grammar.matching import Grammar
from jaxengine.host.adapters.slots import AdapterSlots
from jaxengine.host.kvcache.ledger import Ledger
from jaxengine.host.media.encoders import Encoders
from jaxengine.host.scheduler.acceptance import check_request
from jaxengine.host.scheduler.assembler import Assembler
from jaxengine.host.scheduler.assembly import Assembly
from jaxengine.host.scheduler.changing_masks import changing_masks
from jaxengine.host.scheduler.counters import Counters
from jaxengine.host.scheduler.draft_length import DraftLength
from jaxengine.host.scheduler.group import Group
from jaxengine.host.scheduler.limits import SchedulerLimits
from jaxengine.host.scheduler.masks import TokenMask, masks_anything
from jaxengine.host.scheduler.placement import Placement
from jaxengine.host.scheduler.results import apply_result, failed_update
from jaxengine.host.scheduler.sequence import Sequence
from jaxengine.host.scheduler.slot_snapshots import kept, restored


class Scheduler:
    """Owns every sequence from `add` until it ends.

    `schedule` plans a step from what the steps before will have done; `commit` takes their results in, in the same order.

    Args:
        limits: sizes of a step and the order of requests.
        grid: the shapes that exist; one must hold `max_num_seqs` rows.
        ledger: the page ledger, empty.
        vocab_size: tokens of the model, for masks and checks.
        max_in_flight: steps that may be planned and not committed; what `Runner.max_in_flight` says, or 1.
        turns: steps that are computed at once, by a stage of the model each; sequences take turns to be in one.
        clock: seconds, for the times in updates.
        adapters: slots of adapters; None where requests have none.
        encoders: of what prompts show; None where they show nothing.

    Raises:
        ConfigError: a grid that cannot run what the limits allow, or states that are kept where items see each other.
    """

    def __init__(
        self,
        limits: SchedulerLimits,
        grid: Grid,
        ledger: Ledger,
        *,
        vocab_size: int,
        max_in_flight: int,
        turns: int = 1,
        clock: Callable[[], float] = time.monotonic,
        adapters: AdapterSlots | None = None,
        encoders: Encoders | None = None,
    ) -> None:
        limits.check_grid(grid)
        if encoders is not None and encoders.facts.sight and not limits.cache.rewinds:
            raise ConfigError(
                "items whose tokens see each other go into one row each, which is not built for a model that keeps states"
            )
        self.limits = limits
        self.max_in_flight = max_in_flight
        most = limits.num_device_drafts
        self.draft_length = DraftLength(most) if most else None
        self._assembler = Assembler(limits, grid, turns=turns, draft_length=self.draft_length)
        self._keeps_steady = turns == 1 and ledger.snapshots is None
        self._ledger = ledger
        self.tier = ledger.tier
        self._vocab_size = vocab_size
        self._placement = Placement(limits, ledger, clock=clock, adapters=adapters, encoders=encoders)
        self.adapters = adapters
        self.encoders = encoders
        self._encodings: tuple[Encoding, ...] = ()
        self._encoded_for: tuple[str, ...] = ()
        self._placement.pages.token_s = self._assembler.token_s
        self._groups: dict[str, Group] = {}
        self._numbers = count()
        self._counters = Counters()
        self._num_steps = 0
        self._in_flight: deque[tuple[Batch, Assembly]] = deque()

    @property
    def has_unfinished(self) -> bool:
        """Whether any request has not ended."""
        return bool(self._groups)

    @property
    def has_work(self) -> bool:
        """Whether there is anything to compute, or a result to come back: requests that are paused are none."""
        placement = self._placement
        return bool(placement.running or placement.waiting or self._in_flight or placement.pages.fetches)

    @property
    def beginning(self) -> tuple[str, ...]:
        """The requests of the sequences that begin in the step planned last."""
        return tuple(dict.fromkeys(sequence.request_id for sequence in self._in_flight[-1][1].beginning))

    @property
    def capacity_tokens(self) -> int:
        """Tokens that the KV pool holds for one sequence that has it to itself."""
        return self._placement.pages.capacity_tokens

    @property
    def waits_for_pages(self) -> bool:
        """Whether something that is asked for in tiers behind the device has not come yet."""
        return self.tier is not None and bool(
            self._placement.pages.arrivals or self._placement.pages.fetches or self.tier.is_loading
        )

    def take_ended(self, ended: Iterable[Ended]) -> None:
        """Take note of what has come, before the next step is planned."""
        for news in ended:
            match news:
                case Staged():
                    self._placement.take_arrivals(news.moves)
                case Answer():
                    self._placement.take_answer(news)
                case Loaded():
                    self._placement.take_loaded(news)

    @property
    def stats(self) -> SchedulerStats:
        """Counts as of now."""
        return self._counters.stats(self._placement, self._ledger)

    def add(self, request: Request, grammar: Grammar | None = None) -> None:
        """Accept a request; it waits until `schedule` finds room for it. `grammar` is compiled of the request's.

        Raises:
            ContextLengthError: the KV pool can never hold its prompt.
            RequestError: its id is in use, there are no priorities, it may sample nothing, or what it shows cannot be encoded.
                Nothing else is affected.
        """
        assert (request.grammar is None) == (grammar is None), "a grammar has to be compiled before it can be followed"
        if request.request_id in self._groups:
            raise RequestError(
                f"request id {request.request_id!r} is in use by a request that has not ended; choose another",
                param="request_id",
            )
        length, capacity = len(request.prompt_token_ids), self.capacity_tokens
        most = min(self.limits.budget(beside=0), self._assembler.grid.max_tokens)
        check_request(
            request, self.limits, step_tokens=most, capacity=capacity, adapters=self.adapters, encoders=self.encoders
        )
        # Cut short where the output does not fit, as by max_model_len. The last token is never computed on and needs no place.
        max_tokens = min(request.max_tokens, capacity + 1 - length)
        mask = TokenMask(request, self._vocab_size) if masks_anything(request) else None
        group = Group(request, number=next(self._numbers), max_tokens=max_tokens, mask=mask, grammar=grammar)
        self._placement.enqueue(group)
        self._groups[request.request_id] = group

    def abort(self, request_id: str) -> bool:
        """End all sequences of exactly this request and free their pages; False when there is no such request."""
        group = self._groups.pop(request_id, None)
        if group is None:
            return False
        for sequence in list(group.live.values()):
            self._placement.finish(sequence)
        self._placement.sweep()
        return True

    def pause(self, request_id: str, *, paused: bool) -> None:
        """Compute no more of a request, or go on with it; it may have ended. What it gets is the same in the end.

        A paused one holds no pages. Tokens of steps in flight still come.
        """
        group = self._groups.get(request_id)
        if group is not None:
            for sequence in group.live.values():
                (self._placement.pause if paused else self._placement.go_on)(sequence)
            self._placement.sweep()

    def abort_all(self) -> list[str]:
        """Abort every request and forget the steps in flight; return the ids."""
        request_ids = list(self._groups)
        for request_id in request_ids:
            self.abort(request_id)
        self._in_flight.clear()
        return request_ids

    def aborted(self) -> list[SequenceUpdate]:
        """What is told of all sequences that have not ended, when they are to end with `abort`."""
        self._placement.steady.settle_all()
        return [
            SequenceUpdate(group.request_id, index, (), (), admission, finish_reason="abort", position=num_output)
            for group in self._groups.values()
            for index, admission, num_output in group.unfinished()
        ]

    def take_stranded(self) -> list[SequenceUpdate]:
        """What is told of sequences that end because their adapters cannot be read any more."""
        stranded, self._placement.stranded = self._placement.stranded, []
        for sequence, _ in stranded:
            group = sequence.group
            if group.has_more and sequence.index == group.last_made:
                self._placement.enqueue_next(group)  # it has waited for this one; its adapter is looked for again
            self._finish(sequence)
        return [failed_update(sequence, str(error)) for sequence, error in stranded]

    def preempt_all(self) -> None:
        """Have all running sequences computed again, from their beginning. No step may be in flight."""
        assert not self._in_flight
        self._placement.preempt_all()

    def use_weights(self, version: str) -> None:
        """What sequences that run from now on are made with is called so; nothing that is cached was. Nothing may run."""
        assert not self._in_flight
        assert not self._placement.running
        self._placement.weight_version = version
        self.reset_prefix_cache()

    def forget_steps(self) -> None:
        """Without any request, let go of the steps in flight: they bring nothing that anybody waits for."""
        assert not self._groups
        self._in_flight.clear()

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes and embeddings; False, and nothing changed, while any sequence runs."""
        if not self._ledger.reset_prefix_cache():
            return False
        if self.encoders is not None:
            self.encoders.forget()
        return True

    def stop(self, request_id: str, index: int) -> None:
        """End one sequence because of its text (a stop string); it may have ended by its tokens already."""
        group = self._groups.get(request_id)
        if group is None:
            return
        group.never_make(index)
        sequence = group.live.get(index)
        if sequence is not None:
            if group.has_more and index == group.last_made:
                self._placement.enqueue_next(group)  # it has waited for this one, which began elsewhere
            self._finish(sequence)
            self._placement.sweep()

    def use(self, grid: Grid) -> None:
        """Choose among the shapes of `grid` from the next step on.

        Raises:
            ConfigError: it cannot run what the limits allow.
        """
        if grid is not self._assembler.grid:
            self.limits.check_grid(grid)
            self._assembler.grid = grid
            self._placement.pages.token_s = self._assembler.token_s

    def schedule(self) -> Batch | None:
        """Choose the next step, or None when there is nothing to compute before a result comes back, or at all.

        Raises:
            RuntimeError: `max_in_flight` steps are in flight already.
        """
        if len(self._in_flight) == self.max_in_flight:
            raise RuntimeError(f"schedule() was called with {self.max_in_flight} steps in flight; commit the first")
        self._give_places()
        placement, number = self._placement, self._num_steps + 1
        step = self._assembler.assemble(
            placement.running, placement.steady, others_wait=bool(placement.waiting), number=number
        )
        if not step.rows:
            return None
        assert step.bucket is not None
        self._num_steps = number
        batch = self._batch_of(step, step.bucket)
        self._in_flight.append((batch, step))
        self._note_planned(step)
        self._counters.record(step.bucket, step.num_tokens)
        return batch

    def _give_places(self) -> None:
        """Let running sequences have pages for their next tokens, and waiting ones run where there is room."""
        placement = self._placement
        if self.tier is not None:
            placement.give_up_late()
        preempted = placement.secure()
        if not preempted or not placement.running:
            placement.admit(max_tokens=self.limits.max_num_batched_tokens)
        if self.encoders is not None:
            self._encodings, self._encoded_for = self.encoders.launch()

    def _batch_of(self, step: Assembly, bucket: Bucket) -> Batch:
        """What the device is told of a step, numbered."""
        snapshots = self._ledger.snapshots
        back = () if snapshots is None else restored(step.beginning, snapshots)
        copies = () if snapshots is None else kept((*step.plain, *step.known), snapshots)
        return Batch(
            number=self._num_steps,
            bucket=bucket,
            rows=step.rows,
            begin=tuple(step.begin),
            tables=self._placement.pages.take_tables(),
            moves=() if self.tier is None else self.tier.take_moves(),  # also of snapshots that make room for these
            restored=back,
            kept=copies,
            masked=bool(step.masking),
            drafting=step.drafting,
            lengths_known=step.lengths_known,
        )

    def _note_planned(self, step: Assembly) -> None:
        """Plan from now on as if this step, the last in flight, were done."""
        placement = self._placement
        for sequence in step.known:
            if sequence.num_computed >= sequence.publishes_at:
                placement.pages.publish(sequence)
            if sequence.pending and sequence.group.has_only_first:
                placement.enqueue_next(sequence.group)
            if sequence.shown is not None and self.encoders is not None:
                self.encoders.pass_by(sequence.shown, sequence.num_computed)
        if self._keeps_steady:
            in_all = len(self._in_flight)
            placement.steady.join([each for each in step.plain if each.pending == in_all and not each.max_offered])

    def take_encodings(self) -> tuple[tuple[Encoding, ...], tuple[str, ...]]:
        """What is to be encoded before the step planned last, even where there is none, and the requests that this is for."""
        encodings, self._encodings = self._encodings, ()
        return encodings, self._encoded_for

    def masks(self, batch: Batch) -> dict[int, Masks]:
        """By slot, the masks of the step launched last that were not known when it was scheduled.

        The steps before it must have been committed. Work for the host while the device computes.
        """
        assert len(self._in_flight) == 1
        assert self._in_flight[0][0] is batch
        return changing_masks(self._in_flight[0][1].masking)

    def commit(self, batch: Batch, result: StepResult) -> StepUpdates:
        """Take in the results of `batch`: sequences gain tokens, offer the pages these fill to others, and end.

        Sequences that ended while the step ran (aborted, or stopped by the step before) are passed over.

        Raises:
            ValueError: `batch` is not the first step in flight, or `result` has another number of tokens than it kept places.
        """
        if not self._in_flight or self._in_flight[0][0] is not batch:
            raise ValueError("commit() takes the batches that schedule() returned, in order, each once")
        steady = self._placement.steady
        applied = apply_result(self._in_flight[0][1], result, steady)
        self._in_flight.popleft()
        news = applied.news
        if self.draft_length is not None:
            self.draft_length.learn(news)
        if self.limits.scheduling_policy == "fair":
            for update in news:
                self._placement.note_output(self._groups[update.request_id].request.share, len(update.token_ids))
        for sequence in applied.filled:
            self._placement.pages.publish(sequence)
        for sequence in applied.ended:
            self._finish(sequence)
        if applied.ended:
            self._placement.sweep()
        if applied.due:
            steady.watch_tokens(applied.due)
        return news

    def check_idle(self) -> None:
        """Prove that without any request no page is held and none was lost.

        Raises:
            AssertionError: the accounts do not say so.
        """
        self._ledger.check()
        snapshots = self._ledger.snapshots
        if snapshots is not None and snapshots.pool.num_held:
            raise AssertionError(f"{snapshots.pool.num_held} snapshots are held; none may be when idle")
        if usage := self._ledger.pools.usage:
            raise AssertionError(f"{usage:.1%} of the pages are held; they must all be free when idle")
        self._placement.slots.check_idle()

    def _finish(self, sequence: Sequence) -> None:
        group = sequence.group
        self._placement.finish(sequence)
        if not group.live and not group.has_more:
            del self._groups[group.request_id]
