"""Which sequences hold pages and slots: admission and preemption."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from enum import Enum
from functools import partial
from itertools import count
from operator import gt
from typing import cast

from jaxengine.contract.batch import Int32s
from jaxengine.contract.updates import Admission
from jaxengine.host.kvcache.ledger import Ledger
from jaxengine.host.scheduler.limits import SchedulerLimits
from jaxengine.host.scheduler.policy import URGENCY, reserve_pages
from jaxengine.host.scheduler.sequence import Group, Sequence, State
from jaxengine.host.scheduler.waiting import WaitingQueue


class Placed(Enum):
    """What became of a waiting sequence: it may run, it should wait for another's pages, there are too few pages."""

    NOW = "now"
    LATER = "later"
    NO_ROOM = "no room"


class Placement:
    """The running sequences in order of urgency, the waiting ones, and every call to the ledger about pages of theirs.

    A sequence is admitted with pages for all its tokens, so two half-computed prompts never wait for each other's pages. The
    head of the queue is not overtaken for want of pages: running sequences end, so its turn comes. It is while another
    computes the next page of its prompt, which it will find a step or a few later. When pages run out the least urgent
    sequence gives up its own and is computed again later; what is left of them in the prefix cache makes that cheap.

    Pages and slots are given back at once, though steps in flight still write there: whatever is written for their next owner
    comes in a later step, and the device runs steps in order.

    Args:
        clock: seconds, for `first_scheduled_time`.
    """

    def __init__(self, limits: SchedulerLimits, ledger: Ledger, *, clock: Callable[[], float]) -> None:
        self.running: list[Sequence] = []
        self.waiting = WaitingQueue()
        self.num_preemptions = 0
        self.page_size = ledger.page_size
        # Where windows are, pages are found for what a step may compute, not for a whole prompt of which little will be kept.
        self._ahead = limits.max_num_batched_tokens
        self.capacity_tokens = ledger.longest_sequence(ahead=self._ahead)
        self._limits = limits
        self._ledger = ledger
        self._urgency = URGENCY[limits.scheduling_policy]
        self._clock = clock
        self._ids = count()
        self._slots = list(range(limits.max_num_seqs, 0, -1))
        self._changed: dict[Sequence, None] = {}
        self._refused: tuple[Sequence, tuple[int, ...], int] | None = None

    def enqueue_next(self, group: Group) -> None:
        """Make the next sequence of `group` and let it wait."""
        index = group.next_index
        group.next_index += 1
        sequence = Sequence(
            group,
            index=index,
            sequence_id=next(self._ids),
            urgency=self._urgency(group.request, group.number, index),
            deterministic=self._limits.deterministic,
            speculation=self._limits.speculation,
            chain=self._ledger.chain(group.request.cache_salt),
        )
        group.live[index] = sequence
        self.waiting.push(sequence)

    def secure(self) -> bool:
        """Find a place for the next token of every running sequence; return whether that cost another its pages.

        The most urgent go first and the least urgent give way, so nothing that was granted in this step is taken back.
        """
        preempted = False
        for sequence in [
            sequence
            for sequence in self.running
            # what it computes next is not covered, nor what is known or proposed
            if sequence.num_computed >= sequence.covered_end
            or sequence.num_tokens > sequence.covered_end
            or (sequence.drafts is not None and sequence.drafts.proposal)
        ]:
            if sequence.state is not State.RUNNING or sequence.waits:
                continue  # preempted since, or with nothing to compute
            while not self._grow(sequence, self._page_end(sequence.length + len(sequence.proposal))):
                if sequence.num_computed < sequence.covered_end:
                    break  # there is something to compute
                if sequence.proposal:
                    self._drop_proposal(sequence)
                    continue
                victim = self.running[-1]
                self._preempt(victim)
                preempted = True
                if victim is sequence:
                    break
        return preempted

    def admit(self, *, max_tokens: int) -> None:
        """Let waiting sequences run while there is room for them and less prompt than `max_tokens` to compute before theirs.

        The prompts of less urgent sequences do not keep one out: in a step it comes before them.
        """
        if not self.waiting or len(self.running) == self._limits.max_num_seqs:
            return
        before = backlog = 0  # the running sequences that are more urgent, and the prompt that they have left
        deferred: list[Sequence] = []
        while len(self.running) < self._limits.max_num_seqs and len(deferred) < self._limits.max_num_seqs:
            sequence = self.waiting.first()
            if sequence is None or sequence.pending:
                break
            while before < len(self.running) and self.running[before].urgency < sequence.urgency:
                backlog += self._share(self.running[before])
                before += 1
            if backlog >= max_tokens:
                break
            placed = self._place(sequence)
            if placed is Placed.NO_ROOM:
                break
            self.waiting.pop()
            if placed is Placed.LATER:
                deferred.append(sequence)
                continue
            self._run(sequence)
        for sequence in deferred:
            self.waiting.push(sequence)

    def _run(self, sequence: Sequence) -> None:
        sequence.state = State.RUNNING
        sequence.slot = self._slots.pop()
        sequence.begins = True
        insort(self.running, sequence, key=_urgency_of)
        self._after_admission(sequence)

    def take_tables(self) -> tuple[tuple[int, Int32s], ...]:
        """The page tables of running sequences that changed since this was called last, by slot."""
        if not self._changed:
            return ()
        changed, self._changed = self._changed, {}
        return tuple((sequence.slot, sequence.pages) for sequence in changed if sequence.state is State.RUNNING)

    def publish(self, sequence: Sequence) -> None:
        """Offer full pages of `sequence.findable` tokens to the prefix index.

        A launched step is enough: whoever finds a page reads it in a later one.
        """
        tokens = sequence.findable
        end = min(sequence.num_computed, len(tokens)) // self.page_size * self.page_size
        if end >= sequence.publishes_at:
            sequence.note_published(end, page_size=self.page_size)
            self._ledger.commit(sequence.sequence_id, cast("list[int]", tokens), end)

    def finish(self, sequence: Sequence) -> None:
        """End a sequence and free its pages. A running one stays in `running` until `sweep`."""
        if sequence.state is State.RUNNING:
            self._give_up_place(sequence)
        else:
            self.waiting.discard(sequence)
        sequence.state = State.FINISHED
        del sequence.group.live[sequence.index]

    def sweep(self) -> None:
        """Take finished sequences out of `running`."""
        self.running = [sequence for sequence in self.running if sequence.state is State.RUNNING]

    def _after_admission(self, sequence: Sequence) -> None:
        group = sequence.group
        if group.first_scheduled_time is None:
            group.first_scheduled_time = self._clock()
        if not sequence.admission.num_preemptions:
            sequence.admission = Admission(sequence.num_computed, 0, group.first_scheduled_time)
        if group.has_more and 0 < sequence.index == group.next_index - 1:
            self.enqueue_next(group)

    def _share(self, sequence: Sequence) -> int:
        """Prompt tokens that a running sequence will ask of the next steps, as far as the threshold lets it."""
        left = max(0, sequence.row_end - sequence.num_computed)
        left = 0 if left == 1 else left
        if sequence.scores:
            left = min(left, self._limits.max_kept)
        return min(left, self._limits.long_prefill_token_threshold or left)

    def _place(self, sequence: Sequence) -> Placed:
        """Find pages for a waiting sequence, or remember that there were too few."""
        available, running = self._ledger.num_available, len(self.running)
        if running and self._refused is not None:
            refused, pages, beside = self._refused
            if refused is sequence and not any(map(gt, available, pages)) and running >= beside:
                return Placed.NO_ROOM  # nothing was freed since, and to look its prefix up again costs time
        placed = self._try_to_place(sequence)
        if placed is Placed.NO_ROOM:
            if not running:
                raise RuntimeError(
                    f"sequence {sequence.index} of request {sequence.group.request.request_id} has {sequence.num_tokens} "
                    f"tokens and does not fit {sum(self._ledger.num_available)} free pages though nothing runs: pages were lost"
                )
            self._refused = (sequence, available, running)
        return placed

    def _try_to_place(self, sequence: Sequence) -> Placed:
        ledger, tokens = self._ledger, sequence.num_tokens
        sequence.num_computed = ledger.add(
            sequence.sequence_id,
            cast("list[int]", sequence.findable),
            sequence.chain,
            max_cached=sequence.max_cached,
        )
        if ledger.awaits(sequence.sequence_id):
            self._forget(sequence)
            return Placed.LATER
        fits = ledger.leaves(
            sequence.sequence_id,
            tokens,
            start=sequence.num_computed,
            ahead=self._ahead,
            reserve=partial(reserve_pages, running=len(self.running)),
        )
        if not fits or not self._grow(sequence, tokens):
            self._forget(sequence)
            return Placed.NO_ROOM
        sequence.note_published(sequence.num_computed, page_size=self.page_size)
        return Placed.NOW

    def _forget(self, sequence: Sequence) -> None:
        self._ledger.release(sequence.sequence_id)
        sequence.forget_pages()

    def _give_up_place(self, sequence: Sequence) -> None:
        self._forget(sequence)
        self._slots.append(sequence.slot)
        sequence.slot = 0
        sequence.begins = False

    def _page_end(self, length: int) -> int:
        return -(-length // self.page_size) * self.page_size

    def _grow(self, sequence: Sequence, end: int) -> bool:
        if not self._ledger.grow(sequence.sequence_id, end, start=sequence.num_computed, ahead=self._ahead):
            return False
        sequence.covered_end = self._ledger.covered(sequence.sequence_id)
        pages = self._ledger.pages(sequence.sequence_id)
        if pages is not sequence.pages:
            sequence.pages = pages
            self._changed[sequence] = None
        return True

    def _drop_proposal(self, sequence: Sequence) -> None:
        if sequence.drafts is not None:
            sequence.drafts.proposal = ()

    def _preempt(self, sequence: Sequence) -> None:
        self._give_up_place(sequence)
        self.running.remove(sequence)
        sequence.state = State.WAITING
        self._drop_proposal(sequence)
        admission = sequence.admission
        sequence.admission = admission._replace(num_preemptions=admission.num_preemptions + 1)
        self.num_preemptions += 1
        self.waiting.push(sequence)


def _urgency_of(sequence: Sequence) -> tuple[float, ...]:
    return sequence.urgency
