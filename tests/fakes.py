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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from buckets import Bucket
from jaxengine.contract.batch import (
    Batch,
    Bitmask,
    Floats,
    FromHost,
    Int32s,
    Move,
    Pending,
    Pool,
    Row,
    RowLogprobs,
    Runner,
    SamplingSpec,
    Score,
    SlotState,
    StepResult,
    ToHost,
    Weights,
)
from jaxengine.contract.request import Request
from jaxengine.grammar.matching import Grammar
from jaxengine.host.scheduler.changing_masks import NOTHING_LEFT
from jaxengine.host.scheduler.slot_sampling import spec_of

UNWRITTEN = -1
EMBEDDING_SIZE = 8
CHOICES = 3
"""Tokens listed in `RowLogprobs.top_ids`."""


def first_seen(position: int, keep: int | None) -> int:
    """The first position that a token sees where layers keep so many."""
    return 0 if keep is None else max(0, position + 1 - keep)


def seen(values: np.ndarray, position: int, keep: int | None, start: int) -> np.ndarray:
    """Of `values`, which begin where a row that begins at `start` sees first, those that the token at `position` sees."""
    before = first_seen(start, keep)
    return values[first_seen(position, keep) - before : position + 1 - before]


def together(of_groups: Sequence[int]) -> int:
    """One state of those of all groups."""
    return of_groups[0] if len(of_groups) == 1 else mix(of_groups, "groups")


def mix(values: Sequence[int] | np.ndarray, salt: str = "") -> int:
    """A 63-bit hash of integers."""
    data = np.asarray(values, np.int64).tobytes()
    return int.from_bytes(hashlib.blake2b(data, digest_size=8, person=salt.encode()).digest(), "little") >> 1


@dataclass
class Slot:
    """What a slot holds: its state, the mask in force, the token sampled last, and the tokens that penalties look at."""

    state: SlotState
    allowed: Bitmask | None
    last_token: int | None = None
    history: list[int] | None = None


@dataclass
class FakeRunner:
    """Pages of token ids and slots. Reading the sink, a slot that was never written or one that began for another raises.

    Each pool has `num_pages` pages; `keeps` are those of the groups of each pool.

    With `tag_programs` a position's layer 1 also depends on whether it was computed in a row of one or of several, as the last
    bits of floating point numbers do: only deterministic mode gives the same answer alone and under load. With a `chunk` there
    is a state of each sequence in its slot, a hash of the tokens so far that knows how they were cut: a row of several goes in
    chunks of so many from its beginning.
    """

    num_pages: int
    page_size: int
    vocab_size: int
    tag_programs: bool = False
    keeps: tuple[tuple[int | None, ...], ...] = ((None,),)
    chunk: int | None = None
    max_in_flight: int = 2
    steps: int = 0
    closed: bool = False
    tokens: np.ndarray = field(init=False)
    states: np.ndarray = field(init=False)
    groups: list[tuple[int, int | None]] = field(init=False)
    slots: dict[int, Slot] = field(init=False, default_factory=dict)
    carried: dict[int, int] = field(init=False, default_factory=dict)
    tables: dict[int, Int32s] = field(init=False, default_factory=dict)
    unmasked: tuple[Batch, FakePending] | None = field(init=False, default=None)
    blocks: dict[tuple[int, int], tuple[np.ndarray, np.ndarray]] = field(init=False, default_factory=dict)
    written: list[Weights] = field(init=False, default_factory=list)
    released: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        shape = (len(self.keeps), self.num_pages, self.page_size)
        self.tokens = np.full(shape, UNWRITTEN, np.int64)
        self.states = np.full(shape, UNWRITTEN, np.int64)
        self.groups = [(pool, keep) for pool, keeps in enumerate(self.keeps) for keep in keeps]

    def prepare(self) -> dict[Bucket, float]:
        return {}

    def write(self, what: Weights) -> None:
        self.written.append(what)

    def release(self) -> None:
        assert not self.released
        assert self.unmasked is None
        self.released = True
        self.tokens[:] = self.states[:] = UNWRITTEN
        for held in (self.slots, self.carried, self.tables):
            held.clear()

    def restore(self) -> None:
        assert self.released
        self.released = False

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
            self.slots[state.slot] = Slot(state, state.allowed, history=history)
        self.tables |= batch.tables
        self._compute(batch)
        pending = FakePending(None if batch.masked else self._sample(batch))
        if batch.masked:
            self.unmasked = batch, pending
        return pending

    def masks(self, number: int, masks: Mapping[int, Bitmask]) -> None:
        """Sample the step that has waited for this."""
        assert self.unmasked is not None, "masks for a step that waits for none"
        (batch, pending), self.unmasked = self.unmasked, None
        assert batch.number == number, "masks for another step"
        for slot, mask in masks.items():
            assert self.slots[slot].state.spec.masked, "a mask for a slot that has none"
            self.slots[slot].allowed = mask
        pending.result = self._sample(batch)

    def close(self) -> None:
        self.closed = True

    def _move(self, moves: Sequence[Move]) -> None:
        assert all(move.page != 0 for move in moves), "the sink is moved"
        for move in moves:
            if isinstance(move, ToHost):
                page = move.pool, move.page
                self.blocks[move.pool, move.block] = (self.tokens[page].copy(), self.states[page].copy())
        for move in moves:
            if isinstance(move, FromHost):
                assert (move.pool, move.block) in self.blocks, "a block comes back that was never written"
                page = move.pool, move.page
                self.tokens[page], self.states[page] = self.blocks[move.pool, move.block]

    def _compute(self, batch: Batch) -> None:
        for row in batch.rows:
            for offset, token in enumerate(self._tokens_of(row)):
                for (pool, _), pages in zip(self.groups, self._pages_of(row), strict=True):
                    self.tokens[pool, *self._slot(pages, row.start + offset)] = token
        if self.chunk is not None:
            assert len({row.slot for row in batch.rows}) == len(batch.rows), "two rows go on from one state"
        for row in batch.rows:
            program = "" if not self.tag_programs else "one" if row.num_tokens == 1 else "several"
            carried = [] if self.chunk is None else self._carry(row, program)
            for (pool, keep), pages in zip(self.groups, self._pages_of(row), strict=True):
                context = self._read(self.tokens[pool], pages, keep, row)
                for position in range(row.start, row.start + row.num_tokens):
                    state = mix(
                        [*seen(context, position, keep, row.start), *carried[position - row.start :][:1]], program
                    )
                    self.states[pool, *self._slot(pages, position)] = state
        self.tokens[:, 0] = self.states[:, 0] = -self.steps  # padding writes to the sink

    def _carry(self, row: Row, program: str) -> list[int]:
        """The states after each of a row's tokens; the last is its sequence's from now on."""
        assert self.chunk is not None
        state, tokens = (self.carried[row.slot] if row.start else 0), self._tokens_of(row)
        states: list[int] = []
        for begin in range(0, len(tokens), self.chunk):
            chunk = tokens[begin : begin + self.chunk]
            states += [mix([state, *chunk[: place + 1]], program) for place in range(len(chunk))]
            state = states[-1]
        self.carried[row.slot] = state
        return states

    def _sample(self, batch: Batch) -> StepResult:
        yielded: list[tuple[int, RowLogprobs | None]] = []
        embeddings: list[Floats] = []
        for row in batch.rows:
            if row.want is None:
                continue
            states = [
                self._read(self.states[pool], pages, keep, row)
                for (pool, keep), pages in zip(self.groups, self._pages_of(row), strict=True)
            ]
            if isinstance(row.want, Pool):
                embeddings.append(embedding_of(self._state_after(states, row, row.num_tokens - 1)))
                yielded.append((0, None))
                continue
            slot = self.slots[row.slot]
            targets = row.want.targets if isinstance(row.want, Score) else ()
            first = row.num_tokens - row.num_kept if not targets else 0
            for place in range(first, first + row.num_kept):
                state = self._state_after(states, row, place)
                if place < len(targets):
                    yielded.append((0, logprobs_of(state, targets[place])))
                    continue
                token, logprobs = choose(state, row.start + place + 1, slot, self.vocab_size)
                yielded.append((token, logprobs))
                slot.last_token = token
                if slot.history is not None:
                    slot.history.append(token)
        return StepResult(
            tokens=np.array([token for token, _ in yielded], np.int32),
            logprobs=tuple(logprobs for _, logprobs in yielded),
            embeddings=tuple(embeddings),
        )

    def _tokens_of(self, row: Row) -> tuple[int, ...]:
        assert row.slot in self.slots, "a row of a slot in which nothing began"
        if row.tokens is not None:
            assert len(row.tokens) == row.num_tokens, "a row has another count than tokens"
            return row.tokens
        assert row.num_tokens == 1, "there are no drafts on this device"
        last_token = self.slots[row.slot].last_token
        assert last_token is not None, "a row goes on in a slot that has sampled nothing"
        return (last_token,)

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
        self.release, self.restore = runner.release, runner.restore

    def write(self, what: Weights) -> None:
        self.runner.write(sent(what))

    def launch(self, batch: Batch) -> DistantPending:
        return DistantPending(self.runner.launch(sent(batch)))

    def masks(self, number: int, masks: Mapping[int, Bitmask]) -> None:
        self.runner.masks(*sent((number, masks)))


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


def choose(state: int, position: int, slot: Slot, vocab_size: int) -> tuple[int, RowLogprobs | None]:
    """The token after `state`: the allowed one with the highest score, and made-up log probabilities.

    Scores depend on what a real sampler's result may depend on: the state, the seed and position unless greedy, the history
    when penalties apply, the bias.
    """
    spec = slot.state.spec
    history = () if slot.history is None else (slot.state.num_prompt, *slot.history)
    scores = _scores(state, position, spec, history, vocab_size)
    if slot.allowed is not None:
        assert spec.masked
        bits = np.unpackbits(slot.allowed.view(np.uint8), bitorder="little")
        assert len(slot.allowed) == -(-vocab_size // 32)
        assert not bits[vocab_size:].any(), "a token outside the vocabulary is allowed"
        scores = np.where(bits[:vocab_size], scores, -1)
        assert scores.max() >= 0, "every token is masked"
    token = int(scores.argmax())
    return token, None if spec.num_logprobs is None else logprobs_of(state, token)


def embedding_of(state: int) -> Floats:
    """A made-up hidden state."""
    return np.random.default_rng(state).normal(size=EMBEDDING_SIZE).astype(np.float32)


def oracle_embedding(prompt: Sequence[int]) -> Floats:
    """The hidden state after a prompt, computed alone."""
    return embedding_of(mix([mix(prompt[: end + 1]) for end in range(len(prompt))]))


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
    request: Request, index: int, *, vocab_size: int, max_len: int, keeps: tuple[int | None, ...] = (None,)
) -> Expected:
    """The answer computed alone: no pages, no batch, no scheduler. `max_len` bounds prompt and output together."""
    sampling = request.sampling
    spec = spec_of(request, index)
    tokens = list(request.prompt_token_ids)

    def state_at(position: int, keep: int | None) -> int:
        return mix(tokens[first_seen(position, keep) : position + 1])

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
