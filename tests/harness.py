"""A scheduler, a ledger and a page-faithful runner wired together, checked at every step."""

from __future__ import annotations

import dataclasses
import itertools
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from buckets import Bucket, Grid
from jaxengine.contract.adapters import Adapter
from jaxengine.contract.batch import Batch
from jaxengine.contract.cache_traits import CacheTraits
from jaxengine.contract.media import MediaFacts
from jaxengine.contract.request import Request, ThinkingBudget
from jaxengine.contract.runner import Pending
from jaxengine.contract.sampling_params import SamplingParams
from jaxengine.contract.updates import SequenceUpdate
from jaxengine.grammar.matching import Grammar
from jaxengine.host.adapters.shelf import AdapterShelf
from jaxengine.host.adapters.slots import AdapterSlots
from jaxengine.host.engine.tier_transfers import TierTransfers
from jaxengine.host.kvcache.host_tier import HostTier
from jaxengine.host.kvcache.ledger import Ledger
from jaxengine.host.kvcache.pool import PagePool
from jaxengine.host.kvcache.snapshots import Snapshots
from jaxengine.host.media.encoders import Encoders
from jaxengine.host.scheduler.group import Group
from jaxengine.host.scheduler.limits import SchedulerLimits
from jaxengine.host.scheduler.scheduler import Scheduler
from jaxengine.host.scheduler.sequence import Sequence
from jaxengine.options.speculation import DraftSpeculation, Speculation
from tests.fakes import GRAMMARS, Distant, Expected, FakeRunner, FakeTiers, named_grammar, oracle

VOCAB = 96
EOS = 95
FILES = {f"adapter{number}": f"{number:032x}" for number in range(64)}
"""Adapters by their paths: the digest of each."""


def make_grid(*, max_num_seqs: int, mixed: Iterable[int] = (8, 16, 32, 64)) -> Grid:
    """Buckets of one token a row in powers of two, and of so many tokens in all that any mix of rows shares."""
    rows = {max_num_seqs} | {1 << i for i in range(max_num_seqs.bit_length()) if 1 << i < max_num_seqs}
    buckets = {Bucket(count, 1) for count in rows}
    return Grid(buckets | {Bucket(max_num_seqs, -(-tokens // max_num_seqs)) for tokens in mixed})


def make_rectangles(*, max_num_seqs: int) -> Grid:
    """Buckets as Gaudi's users plan them: the large ones have few rows, too few for all sequences that may run."""
    rows = {max_num_seqs} | {1 << i for i in range(max_num_seqs.bit_length()) if 1 << i < max_num_seqs}
    return Grid({Bucket(count, 1) for count in rows} | {Bucket(1, 8), Bucket(1, 32)})


def make_deterministic_grid(*, max_num_seqs: int) -> Grid:
    """One bucket."""
    return Grid([Bucket(max_num_seqs, 8)])


def make_request(
    request_id: str,
    prompt: Iterable[int],
    *,
    max_tokens: int = 6,
    eos_token_id: int | None = None,
    more_eos_ids: tuple[int, ...] = (),
    bad_words: tuple[tuple[int, ...], ...] = (),
    priority: int = 0,
    seed: int = 0,
    arrival: float = 0.0,
    salt: str | None = None,
    share: str = "",
    grammar: Grammar | None = None,
    thinking: ThinkingBudget | None = None,
    adapter: str | None = None,
    **sampling: object,
) -> Request:
    """A greedy request unless told otherwise. `grammar` is compiled already, `adapter` one of `FILES`."""
    sampling.setdefault("temperature", 0.0 if sampling.get("n", 1) == 1 else 1.0)
    return Request(
        request_id=request_id,
        prompt_token_ids=tuple(prompt),
        sampling=SamplingParams(max_tokens=max_tokens, **sampling),  # type: ignore[arg-type]
        max_tokens=max_tokens,
        eos_token_id=eos_token_id,
        more_eos_ids=more_eos_ids,
        bad_words_token_ids=bad_words,
        priority=priority,
        seed=seed,
        arrival=arrival,
        grammar=None if grammar is None else named_grammar(grammar),
        thinking=thinking,
        cache_salt=salt,
        share=share,
        adapter=None if adapter is None else Adapter(adapter, adapter, FILES[adapter]),
    )


def make_sequence(
    request: Request,
    *,
    number: int = 0,
    index: int = 0,
    deterministic: bool = False,
    speculation: Speculation | None = None,
) -> Sequence:
    """A sequence that has been given nothing yet; the lower `number`, the more urgent."""
    return Sequence(
        Group(request, number=number, max_tokens=request.max_tokens, mask=None),
        index=index,
        sequence_id=number,
        urgency=(number, index),
        deterministic=deterministic,
        speculation=speculation,
        chain=Ledger([PagePool(2)], 4).chain(None),
    )


class SlowReads:
    """Runs what reads adapters after as many looks as `delay_of` says."""

    def __init__(self, delay_of: Callable[[], int]) -> None:
        self._delay_of = delay_of
        self._under_way: list[tuple[int, Callable[[], str], Future[str]]] = []

    def submit(self, read: Callable[[], str]) -> Future[str]:
        self._under_way.append((self._delay_of(), read, Future()))
        return self._under_way[-1][2]

    def hurry(self) -> None:
        """End all that is under way."""
        self._under_way = [(0, read, future) for _, read, future in self._under_way]
        self.look()

    def look(self) -> None:
        for left, read, future in self._under_way:
            if left <= 0:
                try:
                    future.set_result(read())
                except Exception as error:
                    future.set_exception(error)
        self._under_way = [(left - 1, read, future) for left, read, future in self._under_way if not future.done()]


@dataclass
class Collected:
    """What a sequence has yielded so far."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float | None] = field(default_factory=list)
    prompt_logprobs: list[float] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    def take(self, update: SequenceUpdate) -> None:
        assert self.finish_reason is None, "a finished sequence yielded more"
        assert update.token_ids or update.prompt_logprobs or update.finish_reason, "an update without news"
        self.tokens += update.token_ids
        self.logprobs += [None if row is None else row.logprob for row in update.logprobs]
        self.prompt_logprobs += [row.logprob for row in update.prompt_logprobs]
        self.finish_reason, self.stop_reason = update.finish_reason, update.stop_reason

    def expected(self) -> Expected:
        """The same as an oracle's answer. Only for finished sequences."""
        assert self.finish_reason is not None
        return Expected(
            tuple(self.tokens),
            self.finish_reason,
            self.stop_reason,
            tuple(self.logprobs),
            tuple(self.prompt_logprobs),
        )


class Rig:
    """Scheduler and fake runner; `check()` of the ledger after every operation.

    `keeps` are those of the groups of each pool, `num_pages` the pages of each pool, or of all alike. With a `chunk` the runner
    is a recurrent model's, `cut` as in `CacheTraits`, and there are so many `snapshots`, at ends of `block` and `every` so many
    tokens. What goes to a `distant` runner is pickled. Each pool has `host_blocks`, snapshots as many or `host_snapshots`, from
    which pages come after as many steps as `delay_of` says; behind them are `outer` stores. There are `adapter_slots`, and room
    for `adapters_on_host`, which are read as late. With `media` prompts show something; a step's launches of encoders have at
    most `encoder_budget` patches.
    """

    def __init__(
        self,
        *,
        num_pages: int | tuple[int, ...] = 40,
        page_size: int = 4,
        max_num_seqs: int = 4,
        max_num_batched_tokens: int = 32,
        max_model_len: int = 96,
        threshold: int = 0,
        policy: str = "fcfs",
        deterministic: bool = False,
        caching: bool = True,
        grid: Grid | None = None,
        ledger: Ledger | None = None,
        tag_programs: bool = False,
        max_in_flight: int = 2,
        turns: int = 1,
        speculation: Speculation | None = None,
        keeps: tuple[tuple[int | None, ...], ...] = ((None,),),
        chunk: int | None = None,
        cut: int = 1,
        snapshots: int = 0,
        block: int = 4,
        every: int = 0,
        distant: bool = False,
        host_blocks: int = 0,
        host_snapshots: int | None = None,
        delay_of: Callable[[], int] = lambda: 0,
        outer: dict[Any, Any] | None = None,
        adapter_slots: int = 0,
        adapters_on_host: int = 0,
        media: MediaFacts | None = None,
        encoder_budget: int | None = None,
    ) -> None:
        make = make_deterministic_grid if deterministic else make_grid
        of_pools = (num_pages,) * len(keeps) if isinstance(num_pages, int) else num_pages
        pools = [PagePool(*of_pool) for of_pool in zip(of_pools, keeps, strict=True)]
        kept = Snapshots(snapshots, page_size=page_size, block=block, every=every) if snapshots else None
        caching = caching and (chunk is None or kept is not None)
        of_snapshots = host_blocks if host_snapshots is None else host_snapshots
        tier = None
        if host_blocks:
            tier = HostTier(
                [host_blocks] * len(pools),
                most_leaving=20,
                outer=outer is not None,
                snapshots=of_snapshots if caching and kept is not None else 0,
            )
        self.ledger = ledger or Ledger(pools, page_size, enable_prefix_caching=caching, tier=tier, snapshots=kept)
        self.recurrent = chunk is not None
        self.keeps = tuple(itertools.chain.from_iterable(keeps))
        self.max_model_len = max_model_len
        self.runner: Any = FakeRunner(
            max(of_pools),
            page_size,
            VOCAB,
            tag_programs=tag_programs,
            keeps=keeps,
            chunk=chunk,
            num_drafts=speculation.num_tokens if isinstance(speculation, DraftSpeculation) else 0,
            tiers=FakeTiers(delay_of, {} if outer is None else outer),
            files=FILES,
            media=media,
        )
        if distant:
            self.runner = Distant(self.runner)
        self.reads = SlowReads(delay_of)
        shelf = AdapterShelf(self.runner, adapters_on_host or adapter_slots, submit=self.reads.submit)
        self.adapters = AdapterSlots(adapter_slots, shelf) if adapter_slots else None
        self.encoders = None if media is None else Encoders(media, budget=encoder_budget)
        self.limits = SchedulerLimits(
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            long_prefill_token_threshold=threshold,
            scheduling_policy=policy,
            deterministic=deterministic,
            speculation=speculation,
            cache=CacheTraits(rewinds=chunk is None, cut=cut),
        )
        self.scheduler = Scheduler(
            self.limits,
            grid or make(max_num_seqs=max_num_seqs),
            self.ledger,
            vocab_size=VOCAB,
            max_in_flight=max_in_flight,
            turns=turns,
            clock=lambda: 1.0,
            adapters=self.adapters,
            encoders=self.encoders,
        )
        tier = self.ledger.tier
        self.tiers = None if tier is None else TierTransfers(self.scheduler, tier, self.runner)
        self.requests: dict[str, Request] = {}
        self.collected: dict[tuple[str, int], Collected] = {}
        self.heard: list[SequenceUpdate] = []
        self.aborted: set[str] = set()
        self.steps = 0
        self.check = True
        self._flights: deque[tuple[Batch, Pending]] = deque()

    @property
    def max_len(self) -> int:
        """Most tokens of prompt and output together."""
        return min(self.max_model_len, self.scheduler.capacity_tokens + 1)

    def add(self, *requests: Request) -> None:
        """Hand in requests, cut to `max_model_len` as the intake does."""
        for request in requests:
            room = self.max_model_len - len(request.prompt_token_ids)
            request = dataclasses.replace(request, max_tokens=min(request.max_tokens, room))
            self.scheduler.add(request, None if request.grammar is None else GRAMMARS[request.grammar])
            self.requests[request.request_id] = request
            self._check()

    def abort(self, request_id: str) -> None:
        if self.scheduler.abort(request_id):
            self.aborted.add(request_id)
        self._check()

    def pause(self, request_id: str, *, paused: bool = True) -> None:
        self.scheduler.pause(request_id, paused=paused)
        self._check()

    def step(self, *, abort_meanwhile: str | None = None) -> Batch | None:
        """One step as the loop runs it; a request may be aborted while it is under way."""
        if self.tiers is not None:
            self.tiers.take_ended()
        self.reads.look()
        batch = self.scheduler.schedule()
        self._check()
        if self.adapters is not None:
            self.adapters.place()
            self._hear(self.scheduler.take_stranded())
            self.adapters.check()
        if self.tiers is not None:
            self.tiers.begin()
        if abort_meanwhile is not None:
            self.abort(abort_meanwhile)
        for encoding in self.scheduler.take_encodings()[0]:
            self.runner.encode(encoding)
        if batch is None:
            if self.tiers is not None:
                self.tiers.move(wait=not self._flights)
            if self._flights:
                self._commit_first()
            return None
        self.steps += 1
        assert batch.num_tokens <= self.token_limit
        self._flights.append((batch, self.runner.launch(batch)))
        if self.tiers is not None:
            self.tiers.begin_later()
        if batch.masked:
            while len(self._flights) > 1:
                self._commit_first()
            self.runner.masks(batch.number, self.scheduler.masks(batch))
        while len(self._flights) >= self.scheduler.max_in_flight:
            self._commit_first()
        return batch

    def _commit_first(self) -> None:
        batch, pending = self._flights.popleft()
        self._hear(self.scheduler.commit(batch, pending.wait()))
        self._check()

    def _hear(self, updates: Iterable[SequenceUpdate]) -> None:
        for update in updates:
            self.heard.append(update)
            collected = self.collected.setdefault((update.request_id, update.index), Collected())
            assert update.position == len(collected.tokens), "tokens were lost or came twice"
            collected.take(update)

    @property
    def token_limit(self) -> int:
        """Real tokens of a step; in deterministic mode a prompt gets a few at least."""
        return self.limits.max_num_batched_tokens + (self.limits.least_share if self.limits.deterministic else 0)

    def run(self, *, max_steps: int = 2000) -> None:
        """Run to the end, and check that nothing is left behind."""
        for _ in range(max_steps):
            if not self.scheduler.has_unfinished:
                break
            self.step()
        assert not self.scheduler.has_unfinished, f"not done after {max_steps} steps"
        while self._flights:
            self._commit_first()
        assert self.step() is None
        if self.tiers is not None:
            self.tiers.flush()
        assert not self.runner.tiers.staged if self.tiers is not None and isinstance(self.runner, FakeRunner) else True
        self.scheduler.check_idle()

    def expected(self, request: Request) -> dict[tuple[str, int], Expected]:
        return {
            (request.request_id, index): oracle(
                request,
                index,
                vocab_size=VOCAB,
                max_len=self.max_len,
                keeps=self.keeps,
                recurrent=self.recurrent,
                sight=self.encoders is not None and self.encoders.facts.sight,
            )
            for index in range(request.sampling.n)
        }

    def assert_oracle(self) -> None:
        """Every request that was not aborted yielded exactly the oracle's answer."""
        for request in self.requests.values():
            if request.request_id in self.aborted:
                continue
            for key, answer in self.expected(request).items():
                assert self.collected[key].expected() == answer, key

    def _check(self) -> None:
        if self.check:
            self.ledger.check()
            if self.encoders is not None:
                self.encoders.check()
