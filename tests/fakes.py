"""A runner that computes the right answer without a model: the device half as pages full of token ids.

It is a two-layer toy transformer over hashes, and as easily upset as a real one. Layer 0 stores each token in the slot that
the row's page table gives its position. Layer 1 stores, in the same slot, a hash of everything it reads back *through the
page table* from position 0 to its own. The next token is a hash of all of layer 1 up to the row's last position. So a wrong
page, a page freed too early, a bad prefix match, a shared page that was written, or a chunk that was lost gives other tokens
than `oracle`, which never heard of pages.

    pages (size 4)      layer 0: 7 3 9 4      layer 1: H(7) H(7,3) H(7,3,9) H(7,3,9,4)      next = H(layer 1) % vocabulary
"""

from __future__ import annotations

import hashlib
import pickle
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from buckets import Bucket
from jaxengine.contract.arrays import Bitmask, Floats, Int32s, Masks
from jaxengine.contract.batch import Batch, FromHost, Move, RowLogprobs, SamplingSpec, SlotState, StepResult, ToHost
from jaxengine.contract.media import Encoding, MediaFacts, SlotMedia
from jaxengine.contract.page_name import PageName
from jaxengine.contract.request import Request
from jaxengine.contract.rows import Pool, Row, Score
from jaxengine.contract.runner import Pending, Runner, Weights
from jaxengine.contract.tiers import (
    Answer,
    Ask,
    Cancel,
    Ended,
    Load,
    Loaded,
    Save,
    Stage,
    Staged,
    Tiers,
    TierTraffic,
    Transfer,
)
from jaxengine.errors import CheckpointError
from jaxengine.grammar.matching import Grammar
from jaxengine.host.media.shown import runs_of
from jaxengine.host.scheduler.changing_masks import NOTHING_LEFT
from jaxengine.host.scheduler.slot_sampling import spec_of

UNWRITTEN = -1
EMBEDDING_SIZE = 8
CHOICES = 3
"""Tokens listed in `RowLogprobs.top_ids`."""


def first_seen(position: int, keep: int | None) -> int:
    """The first position that a token sees where layers keep so many."""
    return 0 if keep is None else max(0, position + 1 - keep)


def seen(values: np.ndarray, position: int, keep: int | None, start: int, until: int | None = None) -> np.ndarray:
    """Of `values`, which begin where a row that begins at `start` sees first, those that the token at `position` sees.

    The last of them is at `until`, or at its own position.
    """
    before = first_seen(start, keep)
    return values[first_seen(position, keep) - before : (position if until is None else until) + 1 - before]


def together(of_groups: Sequence[int]) -> int:
    """One state of those of all groups."""
    return of_groups[0] if len(of_groups) == 1 else mix(of_groups, "groups")


def mix(values: Sequence[int] | np.ndarray, salt: str = "") -> int:
    """A 63-bit hash of integers."""
    data = np.asarray(values, np.int64).tobytes()
    return int.from_bytes(hashlib.blake2b(data, digest_size=8, person=salt.encode()).digest(), "little") >> 1


def embedding_code(digest: bytes, number: int, salt: Sequence[int] = ()) -> int:
    """What an encoder makes of an item: its embedding of this number."""
    return mix([*digest, number, *salt], "encoder")


def last_seen(spans: np.ndarray) -> dict[int, int]:
    """By position, the last one that a token in a span sees."""
    return {position: end - 1 for start, end in spans.tolist() for position in range(start, end)}


def adapter_code(digest: str) -> int:
    """What an adapter does to whatever is computed with it."""
    return mix(list(digest.encode()), "adapter")


@dataclass
class Slot:
    """What a slot holds: its state, the masks in force, the token sampled last, its position, the drafts behind it, and the
    tokens that penalties look at."""

    state: SlotState
    allowed: tuple[Bitmask | None, ...]
    last_token: int | None = None
    length: int = 0
    drafts: tuple[int, ...] = ()
    history: list[int] | None = None


@dataclass
class FakeTiers:
    """Blocks of token ids. What is asked for is done after as many looks as `delay_of` says, and blocks are read as late.

    `outer` is what outer stores have; they find and keep nothing while they are `failing`.
    """

    delay_of: Callable[[], int] = lambda: 0
    outer: dict[PageName, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    failing: bool = False
    block_s: tuple[float, ...] = ()
    blocks: dict[tuple[int, int], tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    staged: dict[FromHost, tuple[np.ndarray, np.ndarray] | None] = field(default_factory=dict)
    under_way: list[tuple[int, Ended]] = field(default_factory=list)
    loading: dict[tuple[int, int], tuple[np.ndarray, np.ndarray] | None] = field(default_factory=dict)
    traffic: dict[str, TierTraffic] = field(default_factory=dict)

    def begin(self, transfers: Sequence[Transfer]) -> None:
        for transfer in transfers:
            match transfer:
                case Stage(moves):
                    for move in moves:
                        assert move not in self.staged, "a move is staged twice"
                        self.staged[move] = None
                    cut = len(moves) // 2  # they come in parts
                    for part in (moves[:cut], moves[cut:]):
                        self.under_way.append((self.delay_of(), Staged(part)))
                case Cancel(moves):
                    for move in moves:
                        del self.staged[move]
                    self.under_way = [
                        (left, news)
                        for left, news in self.under_way
                        if not isinstance(news, Staged) or not set(news.moves) & set(moves)
                    ]
                case Ask(number, names):
                    there = tuple(name in self.outer and not self.failing for name in names)
                    self.under_way.append((self.delay_of(), Answer(number, there)))
                case Load(pool, block, name):
                    found = None if self.failing else self.outer.get(name)
                    self.loading[pool, block] = found
                    self.under_way.append((self.delay_of(), Loaded(pool, block, None if found is None else "disk")))
                case Save(pool, block, name):
                    if not self.failing:
                        self.outer[name] = self._read(pool, block)

    def ended(self) -> Sequence[Ended]:
        ended = [news for left, news in self.under_way if left <= 0]
        self.under_way = [(left - 1, news) for left, news in self.under_way if left > 0]
        for news in ended:
            if isinstance(news, Staged):
                for move in news.moves:
                    self.staged[move] = self._read(move.pool, move.block)
            if isinstance(news, Loaded):
                found = self.loading.pop((news.pool, news.block))
                if found is not None:
                    self.blocks[news.pool, news.block] = found
        return ended

    def wait(self, timeout_s: float) -> None:
        """The next look is one further on anyway."""

    def take(self, move: FromHost) -> tuple[np.ndarray, np.ndarray]:
        """What a move brings: as it was staged, or where it was not as it is."""
        staged = self.staged.pop(move) if move in self.staged else self._read(move.pool, move.block)
        assert staged is not None, "a move is made before it was staged"
        return staged

    def _read(self, pool: int, block: int) -> tuple[np.ndarray, np.ndarray]:
        assert (pool, block) in self.blocks, "a block comes back that was never written"
        tokens, states = self.blocks[pool, block]
        return tokens.copy(), states.copy()


@dataclass
class FakeRunner:
    """Pages of token ids and slots. Reading the sink, a slot that was never written or one that began for another raises.

    Each pool has `num_pages` pages; `keeps` are those of the groups of each pool. The `salt` of the hashes are its weights.

    `files` are adapters by their paths, the digest of each. One that lies in the adapter slot of a sequence, `in_slots`, is
    hashed into all that is computed of it.

    With `tag_programs` a position's layer 1 also depends on whether it was computed in a row of one or of several, as the last
    bits of floating point numbers do: only deterministic mode gives the same answer alone and under load. With a `chunk` there
    is a state of each sequence in its slot, a hash of the tokens so far that knows how they were cut: a row of several goes in
    chunks of so many from its beginning. Where a sequence begins the slot's is gone, unless a snapshot is restored to it.

    With `num_drafts` it guesses so many tokens behind each row, of which one in `wrong_every` is wrong.

    With `media` it has an encoder, which writes to a pool what depends on an item's digest, and the place of each embedding in
    it. Layer 0 takes these where a sequence says so, instead of tokens. Where items have sight layer 1 sees a run of places as a
    whole, and a row that ends within one raises; what cross attention reads is hashed into all of layer 1.
    """

    num_pages: int
    page_size: int
    vocab_size: int
    tag_programs: bool = False
    keeps: tuple[tuple[int | None, ...], ...] = ((None,),)
    chunk: int | None = None
    num_drafts: int = 0
    wrong_every: int = 3
    max_in_flight: int = 2
    steps: int = 0
    closed: bool = False
    tokens: np.ndarray = field(init=False)
    states: np.ndarray = field(init=False)
    groups: list[tuple[int, int | None]] = field(init=False)
    slots: dict[int, Slot] = field(init=False, default_factory=dict)
    carried: dict[int, int] = field(init=False, default_factory=dict)
    snapshots: dict[int, int] = field(init=False, default_factory=dict)
    tables: dict[int, Int32s] = field(init=False, default_factory=dict)
    unmasked: tuple[Batch, list[Row], FakePending] | None = field(init=False, default=None)
    tiers: FakeTiers = field(default_factory=FakeTiers)
    written: list[Weights] = field(init=False, default_factory=list)
    salt: tuple[int, ...] = ()
    media: MediaFacts | None = None
    embeddings: np.ndarray = field(init=False)
    encodings: int = 0
    files: dict[str, str] = field(default_factory=dict)
    on_host: set[str] = field(init=False, default_factory=set)
    in_slots: dict[int, str] = field(init=False, default_factory=dict)
    released: set[str] = field(init=False, default_factory=set)
    dropped: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        shape = (len(self.keeps), self.num_pages, self.page_size)
        self.tokens = np.full(shape, UNWRITTEN, np.int64)
        self.states = np.full(shape, UNWRITTEN, np.int64)
        self.groups = [(pool, keep) for pool, keeps in enumerate(self.keeps) for keep in keeps]
        of_pool = (0, 0) if self.media is None else (self.media.num_pages, self.media.page_size)
        self.embeddings = np.full(of_pool, UNWRITTEN, np.int64)

    def prepare(self) -> dict[Bucket, float]:
        return {}

    def write(self, what: Weights) -> None:
        assert self.dropped or "weights" not in self.released, "written to weights that are on the host"
        self.written.append(what)
        self.salt = what.values.get("salt", ())
        self.released.discard("weights")
        self.dropped = False

    def release(self, *, drop_weights: bool = False) -> None:
        assert self.unmasked is None
        self.released = {"weights", "state"}
        self.dropped = self.dropped or drop_weights
        self.tokens[:] = self.states[:] = UNWRITTEN
        self.embeddings[:] = UNWRITTEN
        for held in (self.slots, self.carried, self.snapshots, self.tables, self.in_slots):
            held.clear()

    def restore_weights(self) -> None:
        assert "weights" in self.released
        assert not self.dropped, "weights that were dropped have to be written"
        self.released.remove("weights")

    def restore_state(self) -> None:
        self.released.remove("state")

    def encode(self, encoding: Encoding) -> None:
        assert self.media is not None, "this device has no encoder"
        assert not self.released, "an encoder runs on a device whose memory was given back"
        self.encodings += 1
        assert encoding.number == self.encodings, "launches of encoders are numbered in their order"
        assert encoding.bucket in self.media.buckets, f"{encoding.bucket} is no shape of an encoder"
        assert encoding.num_patches <= encoding.bucket.tokens, "more patches than the launch has places"
        assert sum(one.item.num_rows for one in encoding.items) <= encoding.bucket.batch, (
            "more frames than the launch has"
        )
        for one in encoding.items:
            count = one.item.num_embeddings
            assert len(one.pages) == self.media.pages_of(count), "an item has another count of pages than it needs"
            assert (one.pages > 0).all(), "embeddings are written to the sink"
            self.embeddings[one.pages] = UNWRITTEN
            written = self.embeddings[one.pages].reshape(-1)
            written[:count] = [embedding_code(one.item.digest, number, self.salt) for number in range(count)]
            self.embeddings[one.pages] = written.reshape(len(one.pages), -1)

    def load_adapter(self, path: str) -> str:
        if path not in self.files:
            raise CheckpointError(f"{path} is no adapter")
        self.on_host.add(self.files[path])
        return self.files[path]

    def place_adapter(self, digest: str, slot: int) -> None:
        assert not self.released, "an adapter is placed on a device whose memory was given back"
        assert digest in self.on_host, "an adapter is placed that is not in the host's memory"
        assert slot > 0, "an adapter is placed where there is none"
        self.in_slots[slot] = digest

    def drop_adapter(self, digest: str) -> None:
        self.on_host.remove(digest)

    def launch(self, batch: Batch) -> FakePending:
        """Move pages, let slots begin, write layer 0 of all rows, then layer 1 of all rows; sample, if no masks are to come."""
        assert not self.released, "a step on a device whose memory was given back"
        assert self.unmasked is None, "a step is launched while the one before it waits for its masks"
        self.steps += 1
        self._check_shape(batch)
        self._move(batch.moves)
        for state in batch.begin:
            assert state.slot > 0, "a sequence begins in the sink"
            history = None if state.history is None else state.history.tolist()
            assert (history is not None) == state.spec.has_penalties
            self.slots[state.slot] = Slot(state, (state.allowed,) * (1 + self.num_drafts), history=history)
            self.carried.pop(state.slot, None)
        self._restore(batch)
        self.tables |= batch.tables
        rows = [*map(self._placed, batch.rows)]
        if batch.lengths_known:
            for row, placed in zip(batch.rows, rows, strict=True):
                assert row.start == placed.start, "a row starts elsewhere, and nothing puts it there"
                assert row.tokens is not None or row.num_tokens == 1, "a row of drafts that nothing puts there"
        self._compute(rows)
        self._keep(batch)
        pending = FakePending(None if batch.masked else self._sample(batch, rows))
        if batch.masked:
            self.unmasked = batch, rows, pending
        return pending

    def move(self, moves: Sequence[Move]) -> None:
        assert not self.released, "pages move on a device whose memory was given back"
        self._move(moves)

    def masks(self, number: int, masks: Mapping[int, Masks]) -> None:
        """Sample the step that has waited for this."""
        assert self.unmasked is not None, "masks for a step that waits for none"
        (batch, rows, pending), self.unmasked = self.unmasked, None
        assert batch.number == number, "masks for another step"
        for slot, given in masks.items():
            assert self.slots[slot].state.spec.masked, "a mask for a slot that has none"
            self.slots[slot].allowed = (*given, *self.slots[slot].allowed[len(given) :])
        pending.result = self._sample(batch, rows)

    def close(self) -> None:
        self.closed = True

    def _move(self, moves: Sequence[Move]) -> None:
        assert all(move.page != 0 for move in moves), "the sink is moved"
        for move in moves:
            if isinstance(move, ToHost):
                page = move.pool, move.page
                if move.pool == len(self.keeps):
                    assert move.page in self.snapshots, "a snapshot leaves that was never taken"
                    held = np.array([]), np.array(self.snapshots[move.page], np.int64)
                else:
                    held = self.tokens[page].copy(), self.states[page].copy()
                self.tiers.blocks[move.pool, move.block] = held
        for move in moves:
            if isinstance(move, FromHost):
                page = move.pool, move.page
                if move.pool == len(self.keeps):
                    self.snapshots[move.page] = int(self.tiers.take(move)[1])
                else:
                    self.tokens[page], self.states[page] = self.tiers.take(move)

    def _restore(self, batch: Batch) -> None:
        begin = {state.slot for state in batch.begin}
        for slot, snapshot in batch.restored:
            assert slot in begin, "states are restored to a sequence that has begun"
            self.carried[slot] = self.snapshots[snapshot]

    def _keep(self, batch: Batch) -> None:
        assert len({snapshot for _, snapshot in batch.kept}) == len(batch.kept), "two snapshots in one place"
        slots = {row.slot for row in batch.rows}
        for slot, snapshot in batch.kept:
            assert snapshot > 0, "a snapshot in the sink"
            assert slot in slots, "a snapshot of a sequence that computes nothing"
            self.snapshots[snapshot] = self.carried[slot]

    def _placed(self, row: Row) -> Row:
        """A row of tokens that the device has, where its sequence has come to, with these tokens."""
        if row.tokens is not None:
            assert len(row.tokens) == row.num_tokens, "a row has another count than tokens"
            return row
        assert row.slot in self.slots, "a row of a slot in which nothing began"
        slot = self.slots[row.slot]
        assert row.num_tokens <= 1 + self.num_drafts, "there are no drafts on this device"
        assert slot.last_token is not None, "a row goes on in a slot that has sampled nothing"
        drafts = slot.drafts[: row.num_tokens - 1]
        assert 1 + len(drafts) == row.num_tokens, "there are no such drafts on this device"
        assert slot.length <= row.start, "a row starts where its sequence has not come to"
        assert slot.length == row.start or self.num_drafts, "a row starts behind the end of its sequence"
        return row._replace(tokens=(slot.last_token, *drafts), start=slot.length)

    def _compute(self, rows: Sequence[Row]) -> None:
        for row in rows:
            for offset, token in enumerate(self._shown(row)):
                for (pool, _), pages in zip(self.groups, self._pages_of(row), strict=True):
                    self.tokens[pool, *self._slot(pages, row.start + offset)] = token
        if self.chunk is not None:
            assert len({row.slot for row in rows}) == len(rows), "two rows go on from one state"
        for row in rows:
            program = "" if not self.tag_programs else "one" if row.num_tokens == 1 else "several"
            carried = [] if self.chunk is None else self._carry(row, program)
            slot = self.slots[row.slot].state.adapter
            adapter = [] if slot == 0 else [adapter_code(self.in_slots[slot])]
            media = self.slots[row.slot].state.media
            until, read = self._sight(media, row), self._cross(media)
            for (pool, keep), pages in zip(self.groups, self._pages_of(row), strict=True):
                context = self._read(self.tokens[pool], pages, keep, row)
                for position in range(row.start, row.start + row.num_tokens):
                    state = mix(
                        [
                            *seen(context, position, keep, row.start, until.get(position)),
                            *carried[position - row.start :][:1],
                            *self.salt,
                            *adapter,
                            *read,
                        ],
                        program,
                    )
                    self.states[pool, *self._slot(pages, position)] = state
        self.tokens[:, 0] = self.states[:, 0] = -self.steps  # padding writes to the sink

    def _shown(self, row: Row) -> Sequence[int]:
        """What layer 0 takes for a row: tokens, and embeddings of the pool where there are such."""
        tokens, media = list(self._tokens_of(row)), self.slots[row.slot].state.media
        if media is None:
            return tokens
        for place, embedding in zip(media.places.tolist(), media.embeddings.tolist(), strict=True):
            if row.start <= place < row.start + row.num_tokens:
                assert embedding >= self.embeddings.shape[1], f"place {place} is computed without its embedding"
                tokens[place - row.start] = int(self.embeddings.reshape(-1)[embedding])
                assert tokens[place - row.start] != UNWRITTEN, f"place {place} is computed before it was encoded"
        return tokens

    def _sight(self, media: SlotMedia | None, row: Row) -> dict[int, int]:
        """The last position that each of a row's tokens sees, where that is not its own."""
        if media is None:
            return {}
        end = row.start + row.num_tokens
        assert not any(start < end < to for start, to in media.spans.tolist()), "a row ends within an item"
        return last_seen(media.spans)

    def _cross(self, media: SlotMedia | None) -> list[int]:
        """What cross attention reads."""
        if media is None or media.pages is None:
            return []
        values = self.embeddings[media.pages].reshape(-1)
        read = values[values != UNWRITTEN].tolist()
        assert len(read) == media.num_read, "cross attention reads what was not encoded"
        return read

    def _carry(self, row: Row, program: str) -> list[int]:
        """The states after each of a row's tokens; the last is its sequence's from now on."""
        assert self.chunk is not None
        state, tokens = (self.carried[row.slot] if row.start else 0), self._shown(row)
        states: list[int] = []
        for begin in range(0, len(tokens), self.chunk):
            chunk = tokens[begin : begin + self.chunk]
            states += [mix([state, *chunk[: place + 1]], program) for place in range(len(chunk))]
            state = states[-1]
        self.carried[row.slot] = state
        return states

    def _sample(self, batch: Batch, rows: Sequence[Row]) -> StepResult:
        yielded: list[tuple[int, RowLogprobs | None]] = []
        pooled: list[Floats] = []
        for row in rows:
            if row.want is None:
                continue
            states = [
                self._read(self.states[pool], pages, keep, row)
                for (pool, keep), pages in zip(self.groups, self._pages_of(row), strict=True)
            ]
            if isinstance(row.want, Pool):
                after = [self._state_after(states, row, place) for place in range(row.num_tokens)]
                assert not row.want.each or row.start == 0, "each token is wanted of a part of a prompt"
                pooled.append(np.stack([*map(embedding_of, after)]) if row.want.each else embedding_of(after[-1]))
                yielded.append((0, None))
                continue
            slot = self.slots[row.slot]
            targets = row.want.targets if isinstance(row.want, Score) else ()
            first = row.num_tokens - row.num_kept if not targets else 0
            goes_on = True
            for place in range(first, first + row.num_kept):
                state = self._state_after(states, row, place)
                if place < len(targets):
                    yielded.append((0, logprobs_of(state, targets[place])))
                    continue
                if not goes_on:
                    yielded.append((-1, None))
                    continue
                nth = min(0 if targets else place - first, len(slot.allowed) - 1)
                token, logprobs = choose(state, row.start + place + 1, slot, self.vocab_size, slot.allowed[nth])
                yielded.append((token, logprobs))
                slot.last_token, slot.length = token, row.start + place + 1
                if slot.history is not None:
                    slot.history.append(token)
                goes_on = [token] == list(self._tokens_of(row)[place + 1 : place + 2])
            slot.drafts = ()
        if batch.drafting:
            assert self.num_drafts, "drafts are asked for of a device that makes none"
            self._draft(rows)
        drafts = None
        if batch.drafting and batch.masked:
            none = (0,) * self.num_drafts
            drafts = np.array([self.slots[row.slot].drafts or none for row in rows], np.int32)
        return StepResult(
            tokens=np.array([token for token, _ in yielded], np.int32),
            logprobs=tuple(logprobs for _, logprobs in yielded),
            pooled=tuple(pooled),
            drafts=drafts,
        )

    def _draft(self, rows: Sequence[Row]) -> None:
        """Guess behind every row that was sampled: mostly what will be sampled, but for masks and penalties."""
        for row in rows:
            slot, position = self.slots[row.slot], self.slots[row.slot].length
            if slot.last_token is None or not row.start < position <= row.start + row.num_tokens:
                continue
            to_here = row._replace(num_tokens=position - row.start)
            groups = [
                [list(self._read(layer[pool], pages, keep, to_here)) for layer in (self.tokens, self.states)]
                for (pool, keep), pages in zip(self.groups, self._pages_of(row), strict=True)
            ]
            drafts = [slot.last_token]
            for number in range(self.num_drafts):
                of_groups = []
                for (tokens, states), (_, keep) in zip(groups, self.groups, strict=True):
                    tokens.append(drafts[-1])
                    states.append(mix([*seen(np.array(tokens), position + number, keep, row.start), *self.salt]))
                    of_groups.append(mix(seen(np.array(states), position + number, keep, row.start)))
                after = together(of_groups)
                token, _ = choose(after, position + number + 1, slot, self.vocab_size, None)
                wrong = mix([after], "draft") % self.wrong_every == 0
                drafts.append((token + wrong) % self.vocab_size)
            slot.drafts = tuple(drafts[1:])

    def _tokens_of(self, row: Row) -> tuple[int, ...]:
        assert row.slot in self.slots, "a row of a slot in which nothing began"
        assert row.tokens is not None
        return row.tokens

    def _pages_of(self, row: Row) -> Int32s:
        assert row.slot in self.tables, "a row of a slot without a page table"
        return self.tables[row.slot]

    def _state_after(self, states: Sequence[np.ndarray], row: Row, place: int) -> int:
        """What follows from layer 1 of every group after one token of a row."""
        position = row.start + place
        of_groups = [
            mix(seen(read, position, keep, row.start)) for read, (_, keep) in zip(states, self.groups, strict=True)
        ]
        return together(of_groups)

    def _slot(self, pages: np.ndarray, position: int) -> tuple[int, int]:
        page = int(pages[position // self.page_size])
        assert page != 0, f"position {position} of a row lies in the sink"
        return page, position % self.page_size

    def _read(self, layer: np.ndarray, pages: np.ndarray, keep: int | None, row: Row) -> np.ndarray:
        """What lies at the positions that a row's tokens see in one group; `seen` says which of it each of them sees."""
        first, end = first_seen(row.start, keep), row.start + row.num_tokens
        assert len(pages) >= -(-end // self.page_size), f"{len(pages)} pages do not cover {end} positions"
        read = pages[first // self.page_size : -(-end // self.page_size)]
        assert not (read == 0).any(), "the sink is read"
        values = layer[read].reshape(-1)[first % self.page_size :][: end - first]
        assert (values != UNWRITTEN).all(), f"position {first + int(np.argmin(values))} is read and was never written"
        return values

    def _check_shape(self, batch: Batch) -> None:
        assert batch.rows, "a step without rows"
        assert len(batch.rows) <= batch.bucket.batch, f"{len(batch.rows)} rows in bucket {batch.bucket}"
        assert batch.num_tokens <= batch.bucket.tokens, f"{batch.num_tokens} tokens in bucket {batch.bucket}"
        assert all(row.num_tokens >= 1 for row in batch.rows)
        assert batch.number == self.steps, "steps are numbered in the order in which they are launched"


@dataclass
class FakePending:
    """`result` is there when the step has its masks."""

    result: StepResult | None

    def wait(self) -> StepResult:
        assert self.result is not None, "a step is waited for before it has its masks"
        return self.result


class Distant:
    """A runner that is far away: what comes and goes is pickled."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.max_in_flight = runner.max_in_flight
        self.prepare, self.close = runner.prepare, runner.close
        self.tiers = DistantTiers(runner.tiers)
        self.release = runner.release
        self.restore_weights, self.restore_state = runner.restore_weights, runner.restore_state
        if isinstance(runner, FakeRunner):
            self.load_adapter, self.drop_adapter = runner.load_adapter, runner.drop_adapter
            self.place_adapter = runner.place_adapter

    def encode(self, encoding: Encoding) -> None:
        self.runner.encode(sent(encoding))

    def write(self, what: Weights) -> None:
        self.runner.write(sent(what))

    def move(self, moves: Sequence[Move]) -> None:
        self.runner.move(sent(tuple(moves)))

    def launch(self, batch: Batch) -> DistantPending:
        return DistantPending(self.runner.launch(sent(batch)))

    def masks(self, number: int, masks: Mapping[int, Masks]) -> None:
        self.runner.masks(*sent((number, masks)))


class DistantTiers:
    """The tiers of a runner that is far away."""

    def __init__(self, tiers: Tiers) -> None:
        self.tiers = tiers
        self.wait, self.block_s = tiers.wait, tiers.block_s

    @property
    def traffic(self) -> dict[str, TierTraffic]:
        return sent(self.tiers.traffic)

    def begin(self, transfers: Sequence[Transfer]) -> None:
        self.tiers.begin(sent(tuple(transfers)))

    def ended(self) -> Sequence[Ended]:
        return sent(tuple(self.tiers.ended()))


@dataclass
class DistantPending:
    pending: Pending

    def wait(self) -> StepResult:
        return sent(self.pending.wait())


def sent(value: Any) -> Any:
    """What arrives at the other end."""
    return pickle.loads(pickle.dumps(value))


class GatedRunner(FakeRunner):
    """Takes a step only when it is allowed one; `open` allows all that follow."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.allowed = threading.Semaphore(0)
        self.opened = False

    def launch(self, batch: Batch) -> FakePending:
        """Wait for permission."""
        while not self.opened and not self.allowed.acquire(timeout=0.01):
            pass
        return super().launch(batch)

    def allow(self, steps: int) -> None:
        """Let so many more steps run."""
        for _ in range(steps):
            self.allowed.release()

    def open(self) -> None:
        """Let everything run."""
        self.opened = True

    def shut(self) -> None:
        """Wait again, from the next step on."""
        self.opened = False


def choose(
    state: int, position: int, slot: Slot, vocab_size: int, allowed: Bitmask | None
) -> tuple[int, RowLogprobs | None]:
    """The token after `state`: the allowed one with the highest score, and made-up log probabilities.

    Scores depend on what a real sampler's result may depend on: the state, the seed and position unless greedy, the history
    when penalties apply, the bias.
    """
    spec = slot.state.spec
    history = () if slot.history is None else (slot.state.num_prompt, *slot.history)
    scores = _scores(state, position, spec, history, vocab_size)
    if allowed is not None:
        assert spec.masked
        bits = np.unpackbits(allowed.view(np.uint8), bitorder="little")
        assert len(allowed) == -(-vocab_size // 32)
        assert not bits[vocab_size:].any(), "a token outside the vocabulary is allowed"
        scores = np.where(bits[:vocab_size], scores, -1)
        assert scores.max() >= 0, "every token is masked"
    token = int(scores.argmax())
    return token, None if spec.num_logprobs is None else logprobs_of(state, token)


def embedding_of(state: int) -> Floats:
    """A made-up hidden state."""
    return np.random.default_rng(state).normal(size=EMBEDDING_SIZE).astype(np.float32)


def oracle_embedding(prompt: Sequence[int], until: Mapping[int, int] | None = None, read: Sequence[int] = ()) -> Floats:
    """The hidden state after what layer 0 takes for a prompt, computed alone; `until` and `read` as `shown_by` has them."""
    until = until or {}
    return embedding_of(mix([mix([*prompt[: until.get(end, end) + 1], *read]) for end in range(len(prompt))]))


def logprobs_of(state: int, token: int) -> RowLogprobs:
    """Made-up log probabilities that depend on the state and the token they report on."""
    code = mix([state, token], "logprob")
    return RowLogprobs(
        logprob=-(code % 1000) / 100,
        rank=code % 7 + 1,
        top_ids=np.array([code % 11, code % 13, code % 17][:CHOICES], np.int32),
        top_logprobs=np.array([-0.1, -0.2, -0.3][:CHOICES], np.float32),
    )


def _scores(state: int, position: int, spec: SamplingSpec, history: Sequence[int], vocab_size: int) -> np.ndarray:
    noise = 0 if spec.temperature == 0 else mix([spec.seed, position], "noise")
    code = mix([state, noise, *history], "scores")
    scores = np.random.default_rng(code).integers(1 << 40, size=vocab_size)
    for token, bias in zip(spec.bias_ids, spec.bias_values, strict=True):
        scores[token] += int(bias * (1 << 34))
    return np.maximum(scores, 0)


@dataclass(frozen=True)
class Expected:
    """What one sequence of a request must yield."""

    tokens: tuple[int, ...]
    finish_reason: str
    stop_reason: int | str | None
    logprobs: tuple[float | None, ...]
    prompt_logprobs: tuple[float, ...]


GRAMMARS: dict[str, Grammar] = {}
"""What tests have compiled, by the name that stands for its source in a request."""


def named_grammar(grammar: Grammar) -> str:
    """Its name in `GRAMMARS`."""
    name = f"grammar {len(GRAMMARS)}"
    GRAMMARS[name] = grammar
    return name


def oracle(
    request: Request,
    index: int,
    *,
    vocab_size: int,
    max_len: int,
    keeps: tuple[int | None, ...] = (None,),
    recurrent: bool = False,
    sight: bool = False,
) -> Expected:
    """The answer computed alone: no pages, no batch, no scheduler. `max_len` bounds prompt and output together.

    With `recurrent` layers they are as the runner's with chunks of one token, and with `sight` items see each other.
    """
    sampling = request.sampling
    spec = spec_of(request, index)
    tokens, carries = list(request.prompt_token_ids), list[int]()
    shown, until, read = shown_by(request, sight=sight)
    adapter = [] if request.adapter is None else [adapter_code(request.adapter.digest)]

    def carried(position: int) -> list[int]:
        while recurrent and len(carries) <= position:
            carries.append(mix([carries[-1] if carries else 0, shown[len(carries)]]))
        return carries[position : position + 1]

    def state_at(position: int, keep: int | None) -> int:
        end = until.get(position, position) + 1
        return mix([*shown[first_seen(position, keep) : end], *carried(position), *adapter, *read])

    def state_after(position: int) -> int:
        return together([mix(states[keep][first_seen(position, keep) : position + 1]) for keep in keeps])

    states = {keep: [state_at(position, keep) for position in range(len(tokens))] for keep in keeps}
    prompt_logprobs: tuple[float, ...] = ()
    if sampling.prompt_logprobs is not None and index == 0:
        prompt_logprobs = tuple(
            logprobs_of(state_after(position - 1), tokens[position]).logprob for position in range(1, len(tokens))
        )
    output: list[int] = []
    logprobs: list[float | None] = []
    while True:
        state = state_after(len(tokens) - 1)
        history = (len(request.prompt_token_ids), *tokens) if spec.has_penalties else ()
        scores = _scores(state, len(tokens), spec, history, vocab_size)
        allowed = allowed_tokens(request, output, vocab_size)
        if not allowed:
            return Expected(tuple(output), "error", NOTHING_LEFT, tuple(logprobs), prompt_logprobs)
        token = max(allowed, key=lambda token: (scores[token], -token))
        logprobs.append(None if sampling.logprobs is None else logprobs_of(state, token).logprob)
        tokens.append(token)
        shown.append(token)
        output.append(token)
        reason: tuple[str, int | None] | None = None
        if token == request.eos_token_id and not (sampling.ignore_eos and request.grammar is None):
            reason = ("stop", None)
        elif token in request.stop_token_ids:
            reason = ("stop", token)
        elif len(output) == request.max_tokens or len(tokens) >= max_len:
            reason = ("length", None)
        if reason is not None:
            return Expected(tuple(output), *reason, tuple(logprobs), prompt_logprobs)
        for keep in states:
            states[keep].append(state_at(len(tokens) - 1, keep))


def shown_by(request: Request, *, sight: bool) -> tuple[list[int], dict[int, int], list[int]]:
    """What layer 0 takes for a prompt, the last position that its tokens see, and what cross attention reads."""
    shown = list(request.prompt_token_ids)
    until: dict[int, int] = {}
    read: list[int] = []
    for item in () if request.media is None else request.media.items:
        for number, place in enumerate(item.places.tolist()):
            shown[place] = embedding_code(item.digest, number)
        if sight:
            until |= last_seen(np.array(runs_of(item), np.int64).reshape(-1, 2))
        read += [embedding_code(item.digest, len(item.places) + number) for number in range(item.unplaced)]
    return shown, until, read


def allowed_tokens(request: Request, output: Sequence[int], vocab_size: int) -> set[int]:
    """The tokens that may follow `output`, as sets: what masks.py must agree with."""
    sampling = request.sampling
    forced = forced_token(request, output)
    allowed = set(range(vocab_size) if sampling.allowed_token_ids is None else sampling.allowed_token_ids)
    words = request.bad_words_token_ids
    allowed -= {word[0] for word in words if len(word) == 1}
    if len(output) < sampling.min_tokens:
        allowed -= {request.eos_token_id, *request.stop_token_ids}
    tails = {word[-1] for word in words if len(word) > 1 and tuple(output[1 - len(word) :]) == tuple(word[:-1])}
    allowed = allowed - tails or allowed
    if request.grammar is not None:
        by_grammar = allowed_by_grammar(request, output)
        if forced & by_grammar:
            return forced
        ends = {request.eos_token_id} if len(output) >= sampling.min_tokens else set()
        return allowed & by_grammar or by_grammar & ends
    return forced or allowed


def forced_token(request: Request, output: Sequence[int]) -> set[int]:
    """The token that thoughts over their budget have to go on with, if they are."""
    budget = request.thinking
    if budget is None:
        return set()
    thoughts = [] if budget.opened else None
    for token in output:
        if thoughts is None:
            thoughts = [] if token == budget.begin else None
        elif token == budget.end[-1]:
            return set()
        else:
            thoughts.append(token)
    if thoughts is None or len(thoughts) < budget.tokens:
        return set()
    over = thoughts[budget.tokens :]
    said = max(
        said
        for said in range(min(len(over), len(budget.end) - 1) + 1)
        if tuple(over[len(over) - said :]) == budget.end[:said]
    )
    return {budget.end[said]}


def allowed_by_grammar(request: Request, output: Sequence[int]) -> set[int]:
    """What a state that is told the whole output at once says may follow."""
    assert request.grammar is not None
    state = GRAMMARS[request.grammar].start(may_end=not request.sampling.ignore_eos)
    state.advance(np.asarray(output, np.int32))
    [mask] = type(state).masks([state])
    assert isinstance(mask, np.ndarray), mask
    return set(np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist())
