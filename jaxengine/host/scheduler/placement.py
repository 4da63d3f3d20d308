"""Which sequences hold pages and slots: admission and preemption."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable
from itertools import count
from operator import gt

from jaxengine.contract.batch import FromHost
from jaxengine.contract.tiers import Answer, Loaded
from jaxengine.contract.updates import FIRST_VERSION
from jaxengine.errors import JaxEngineError
from jaxengine.host.adapters.slots import Access, AdapterSlots
from jaxengine.host.kvcache.ledger import Ledger
from jaxengine.host.media.encoders import Encoders
from jaxengine.host.scheduler.backlog import prompt_backlog
from jaxengine.host.scheduler.deferred import Deferred
from jaxengine.host.scheduler.fair_queue import OUTPUT_WEIGHT, FairQueue
from jaxengine.host.scheduler.group import Group
from jaxengine.host.scheduler.limits import SchedulerLimits
from jaxengine.host.scheduler.policy import URGENCY
from jaxengine.host.scheduler.sequence import Sequence, State
from jaxengine.host.scheduler.sequence_pages import Placed, SequencePages
from jaxengine.host.scheduler.sequence_slots import SequenceSlots
from jaxengine.host.scheduler.steady import Steady
from jaxengine.host.scheduler.waiting import WaitingQueue
from jaxengine.host.scheduler.whole_items import is_stuck


class Placement:
    """The running sequences in order of urgency, and the waiting ones.

    A sequence is admitted with pages for all its tokens, so two half-computed prompts never wait for each other's pages. The
    head of the queue is not overtaken for want of pages: running sequences end, so its turn comes. It is while another
    computes the next page of its prompt, which it will find a step or a few later. When pages run out the least urgent
    sequence gives up its own and is computed again later; what is left of them in the prefix cache makes that cheap.

    Pages and slots are given back at once, though steps in flight still write there: whatever is written for their next owner
    comes in a later step, and the device runs steps in order.

    Args:
        clock: seconds, for `first_scheduled_time`.
        adapters, encoders: as in `SequenceSlots`.

    Attributes:
        pages, slots: what these sequences hold.
        steady: the running ones that gain a token with every step.
        stranded: sequences whose adapters cannot be read, and why; they wait until somebody ends them.
    """

    def __init__(
        self,
        limits: SchedulerLimits,
        ledger: Ledger,
        *,
        clock: Callable[[], float],
        adapters: AdapterSlots | None = None,
        encoders: Encoders | None = None,
    ) -> None:
        self.running: list[Sequence] = []
        self.waiting = FairQueue() if limits.scheduling_policy == "fair" else WaitingQueue()
        self.num_preemptions = 0
        self.weight_version = FIRST_VERSION
        self.pages = SequencePages(limits, ledger, clock=clock)
        self.slots = SequenceSlots(limits.max_num_seqs, adapters=adapters, encoders=encoders)
        self.steady = Steady(limits.max_num_seqs)
        self.stranded: list[tuple[Sequence, JaxEngineError]] = []
        self._limits = limits
        self._ledger = ledger
        self._urgency = URGENCY[limits.scheduling_policy]
        self._clock = clock
        self._ids = count()
        self._refused: tuple[Sequence, tuple[int, ...], int] | None = None
        self._newest = -1  # number of the latest request
        self._held = ("", -1)  # why requests up to that number were not admitted in the last step

    def enqueue(self, group: Group) -> None:
        """Let the first sequence of a new request wait."""
        self.waiting.begin(group.request.share)
        self.enqueue_next(group)

    def enqueue_next(self, group: Group) -> None:
        """Make the next sequence of `group` and let it wait."""
        index = group.make_next()
        sequence = Sequence(
            group,
            index=index,
            sequence_id=next(self._ids),
            urgency=self._urgency(group.request, group.number, index),
            deterministic=self._limits.deterministic,
            speculation=self._limits.speculation,
            chain=self._ledger.chain(
                group.request.cache_salt,
                adapter=None if group.request.adapter is None else group.request.adapter.digest,
                media=group.request.media,
            ),
        )
        self.slots.enter(sequence)
        group.live[index] = sequence
        self._newest = max(self._newest, group.number)
        self.waiting.push(sequence)

    def secure(self) -> bool:
        """Find a place for the next token of every running sequence; return whether that cost another its pages.

        The most urgent go first and the least urgent give way, so nothing that was granted in this step is taken back.
        """
        preempted = False
        self.waiting.rank(self.running)
        due = self.steady.due()
        to_grow = [] if due and self.pages.append(due) else due
        for sequence in to_grow:
            self.steady.settle(sequence)
        short = [
            sequence
            for sequence in self.running
            if not sequence.steady
            # what it computes next with its drafts is not covered, nor what is known or proposed
            and (
                sequence.num_computed + sequence.max_offered >= (covered := sequence.covered_end)
                or sequence.num_tokens > covered
                or (sequence.drafts is not None and sequence.drafts.proposal)
            )
        ]
        for sequence in sorted([*to_grow, *short], key=_urgency_of) if to_grow else short:
            if sequence.state is not State.RUNNING or sequence.waits:
                continue  # preempted since, or with nothing to compute
            num_drafts = sequence.next_drafts
            while not self.pages.grow(sequence, sequence.length + num_drafts):
                if not is_stuck(sequence):
                    break  # there is something to compute
                if num_drafts:
                    num_drafts = 0
                    self._drop_proposal(sequence)
                    continue
                if self._take_back():
                    continue
                victim = self.running[-1]
                self._preempt(victim)
                preempted = True
                if victim is sequence:
                    break
        if due:
            self.steady.watch_pages([sequence for sequence in due if sequence.steady])
        return preempted

    def admit(self, *, max_tokens: int) -> None:
        """Let waiting sequences run while there is room for them and less prompt than `max_tokens` to compute before theirs.

        The prompts of less urgent sequences do not keep one out: in a step it comes before them. Where places or pages are short,
        sequences of those with a larger share may have to give theirs up.
        """
        self.slots.begin_round()
        if self.waiting:
            self._held = self._admit(max_tokens), self._newest

    def _admit(self, max_tokens: int) -> str:
        """Let waiting sequences run; why those that are left were not let."""
        if len(self.running) == self._limits.max_num_seqs:
            self._make_room()
        before = backlog = 0  # the running sequences that are more urgent, and the prompt that they have left
        deferred = Deferred()
        held = None
        while max(len(self.running), len(deferred.sequences)) < self._limits.max_num_seqs:
            sequence = self.waiting.first()
            if sequence is None:
                break
            if sequence.pending:
                held = "kv_cache"  # one that was preempted, whose last token is not known yet
                break
            while before < len(self.running) and self.running[before].urgency < sequence.urgency:
                backlog += prompt_backlog(self.running[before], self._limits)
                before += 1
            if backlog >= max_tokens:
                held = "max_num_batched_tokens"
                break
            if not self._may_run(sequence, deferred):
                self.waiting.pop()
                continue
            while (placed := self._place(sequence)) is Placed.NO_ROOM:
                if not self._make_room():
                    break
            if placed is Placed.NO_ROOM:
                held = "kv_cache"
                break
            self.waiting.pop()
            if placed is Placed.LATER:
                deferred.add(sequence)
            elif placed is Placed.AWAY:
                sequence.state = State.FETCHING
            elif not self.slots.take_embeddings(sequence):
                self.pages.release(sequence)
                if not self.running:
                    raise RuntimeError(
                        f"the items of {sequence.request_id} do not fit though nothing runs: pages were lost"
                    )
                deferred.add_without_embeddings(sequence)
            else:
                self._run(sequence)
                deferred.note_overtaken()
        for sequence in deferred.sequences:
            self.waiting.push(sequence)
        return held or deferred.reason

    def _may_run(self, sequence: Sequence, deferred: Deferred) -> bool:
        """Whether a sequence may run as far as its adapter and what it shows go; else it is noted in `deferred`."""
        access = self.slots.access(sequence)
        if access is Access.NOT_NOW:
            deferred.add_without_slot(sequence)
        elif access is not Access.GRANTED:
            self.stranded.append((sequence, access))
            deferred.add(sequence)
        elif not self.slots.may_take_embeddings(sequence):
            deferred.add_without_embeddings(sequence)
        else:
            return True
        return False

    def _make_room(self) -> bool:
        """Take a place from the least urgent sequence that should give way to the first one that waits; False if none should."""
        first = self.waiting.first()
        waits = (
            first is None
            or first.pending
            or self.slots.access(first) is not Access.GRANTED
            or not self.slots.may_take_embeddings(first)
        )
        victim = None if first is None or waits else self.waiting.gives_way(first, self.running)
        if victim is None:
            return False
        self._preempt(victim)
        return True

    def _run(self, sequence: Sequence) -> None:
        if not sequence.admission.num_preemptions:
            self.waiting.charge(sequence.group.request.share, sequence.num_tokens - sequence.num_computed)
        sequence.state = State.RUNNING
        self.slots.take(sequence)
        sequence.begins = True
        insort(self.running, sequence, key=_urgency_of)
        if not sequence.arriving:
            self._after_admission(sequence)

    def take_arrivals(self, moves: Iterable[FromHost]) -> None:
        """Let these moves be made, which are staged, and go on with the sequences that have waited for them."""
        for sequence in self.pages.take_arrivals(moves):
            self._after_admission(sequence)

    def take_answer(self, news: Answer) -> None:
        """Let pages come that an outer store has, or the sequence that has asked go on without."""
        sequence = self.pages.take_answer(news)
        if sequence is not None:
            self._wait_again(sequence)

    def take_loaded(self, news: Loaded) -> None:
        """A page has come to the host, or will not; who has waited for it alone goes on."""
        for sequence in self.pages.take_loaded(news):
            self._wait_again(sequence)

    def _wait_again(self, sequence: Sequence) -> None:
        """A sequence has what there is of outer stores."""
        self.pages.fetches.give_up(sequence)
        sequence.from_outer = False
        sequence.state = State.WAITING
        self.waiting.push(sequence)

    def give_up_late(self) -> None:
        """Let sequences whose pages do not come compute them."""
        for sequence in self.pages.fetches.late():
            self._wait_again(sequence)
        for sequence in self.pages.arrivals.late():
            sequence.from_host = False
            self._give_up_place(sequence)
            self.running.remove(sequence)
            sequence.state = State.WAITING
            self.waiting.push(sequence)

    def note_output(self, share: str, tokens: int) -> None:
        """A sequence of this share has gained so many tokens."""
        self.waiting.charge(share, OUTPUT_WEIGHT * tokens)

    def finish(self, sequence: Sequence) -> None:
        """End a sequence and free its pages. A running one stays in `running` until `sweep`."""
        if sequence.state is State.RUNNING:
            self._give_up_place(sequence)
        elif sequence.state is State.WAITING:
            self.waiting.discard(sequence)
        elif sequence.state is State.FETCHING:
            self.pages.fetches.give_up(sequence)
        sequence.state = State.FINISHED
        self.slots.leave(sequence)
        del sequence.group.live[sequence.index]

    def pause(self, sequence: Sequence) -> None:
        """Let a sequence neither run nor wait until `go_on`. A running one stays in `running` until `sweep`."""
        if sequence.state is State.RUNNING:
            self._give_up_place(sequence)
            self._note_preemption(sequence)
        elif sequence.state is State.WAITING:
            self.waiting.remove(sequence)
        elif sequence.state is State.FETCHING:
            self.pages.fetches.give_up(sequence)
        sequence.state = State.PAUSED

    def go_on(self, sequence: Sequence) -> None:
        """Let a paused sequence wait for its turn."""
        if sequence.state is State.PAUSED:
            sequence.state = State.WAITING
            self.waiting.push(sequence)

    def preempt_all(self) -> None:
        """Take the pages and slots of all running sequences, which are computed again, and let none wait for pages of a tier.

        No step may be in flight.
        """
        for sequence in list(reversed(self.running)):
            self._preempt(sequence)
        for sequence in self.pages.fetches.waiting:
            self._wait_again(sequence)

    def sweep(self) -> None:
        """Take sequences that do not run any more out of `running`."""
        self.running = [sequence for sequence in self.running if sequence.state is State.RUNNING]

    def _after_admission(self, sequence: Sequence) -> None:
        group = sequence.group
        if group.first_scheduled_time is None:
            group.first_scheduled_time = self._clock()
            reason, newest = self._held
            group.waited_for = reason if group.number <= newest else None
        if sequence.admission.first_scheduled_time is None:
            sequence.admission = sequence.admission._replace(
                num_cached_tokens=sequence.num_computed,
                cached_from=tuple(self._ledger.from_tiers(sequence.sequence_id).items()),
                first_scheduled_time=group.first_scheduled_time,
                waited_for=group.waited_for,
                weight_version=self.weight_version,
            )
        elif sequence.admission.weight_version != self.weight_version:
            sequence.admission = sequence.admission._replace(weight_version=self.weight_version)
        if group.awaits_room_for(sequence):
            self.enqueue_next(group)

    def _place(self, sequence: Sequence) -> Placed:
        """Find pages for a waiting sequence, or remember that there were too few."""
        available, running = self._ledger.pools.num_available, len(self.running)
        if running and self._refused is not None:
            refused, pages, beside = self._refused
            if refused is sequence and not any(map(gt, available, pages)) and running >= beside:
                return Placed.NO_ROOM  # nothing was freed since, and to look its prefix up again costs time
        placed = self.pages.place(sequence, running=running)
        if placed is Placed.NO_ROOM:
            if not running:
                raise RuntimeError(
                    f"sequence {sequence.index} of request {sequence.group.request.request_id} has {sequence.num_tokens} "
                    f"tokens and does not fit {sum(available)} free pages though nothing runs: pages were lost"
                )
            self._refused = (sequence, available, running)
        return placed

    def _give_up_place(self, sequence: Sequence) -> None:
        self.steady.leave(sequence)
        self.pages.release(sequence)
        self.slots.give_back(sequence)
        sequence.begins = False

    def _take_back(self) -> bool:
        """Take back pages that were for drafts which are not under way; whether there were any."""
        drafting = [
            each for each in self.running if each.max_offered and each.state is State.RUNNING and not each.arriving
        ]
        given_back = [self.pages.shrink(sequence, max(sequence.length, sequence.num_computed)) for sequence in drafting]
        return any(given_back)

    def _drop_proposal(self, sequence: Sequence) -> None:
        if sequence.drafts is not None:
            sequence.drafts.proposal = ()

    def _preempt(self, sequence: Sequence) -> None:
        self._give_up_place(sequence)
        self.running.remove(sequence)
        sequence.state = State.WAITING
        self._note_preemption(sequence)
        self.num_preemptions += 1
        self.waiting.push(sequence)

    def _note_preemption(self, sequence: Sequence) -> None:
        """It has given up its place, and will be computed again."""
        self._drop_proposal(sequence)
        sequence.from_host = sequence.from_outer = True
        admission = sequence.admission
        sequence.admission = admission._replace(num_preemptions=admission.num_preemptions + 1)


def _urgency_of(sequence: Sequence) -> tuple[float, ...]:
    return sequence.urgency
