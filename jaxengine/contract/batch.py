"""The contract between the two halves: an immutable `Batch` goes down to the device, a `StepResult` comes up.

The host half writes no array of a padded shape and the device half never sees a request. NumPy arrays in here are
read-only by agreement: whoever receives one does not write to it.

A running sequence has a *slot*, 1 to max_num_seqs (0 is the sink of padding). What the device keeps of it lies there: how it is
sampled, the token it sampled last, and where drafts are made there these, and how long the sequence is. It is written when the
sequence begins (`Batch.begin`) and is not sent again.

Drafts are tokens that may follow the last one, computed in one row with it. Which of them are right (equal to what is sampled in
their place) is decided on the device, so that the next step can be launched before the host knows how long a sequence is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from buckets import Bucket
from jaxengine.contract.sampling_options import GREEDY_BELOW, OPTIONS, Needs, SamplingOptions

if TYPE_CHECKING:
    from jaxengine.contract.media import Encoding, SlotMedia
    from jaxengine.contract.tiers import Tiers

Int32s = NDArray[np.int32]
Floats = NDArray[np.float32]
Bitmask = NDArray[np.uint32]
"""`ceil(vocab_size / 32)` words; bit `t % 32` of word `t // 32` is set when token `t` may be sampled."""
Masks = tuple[Bitmask, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheTraits:
    """What follows for scheduling from what a model's layers keep of a sequence.

    `rewinds`: tokens that were written can be forgotten, as those behind a wrong draft. A prompt that is cut into rows at
    multiples of `cut` positions is computed in the same order as whole. Pages do both, cut anywhere.
    """

    rewinds: bool = True
    cut: int = 1


PAGES_ONLY = CacheTraits()


@dataclass(kw_only=True)
class SamplingSpec(SamplingOptions):
    """The part of a request's sampling that is the same at every step. Built once per sequence, and read-only by agreement.

    `temperature` is 0 where the request is greedy. `num_logprobs` is None, or how many of the most likely tokens to report beside
    the sampled one (0: only the sampled one; -1: the whole vocabulary). `bias_ids`/`bias_values` are added to the logits. The
    slot's mask is looked at only where `masked`.
    """

    seed: int
    bias_ids: tuple[int, ...] = ()
    bias_values: tuple[float, ...] = ()
    num_logprobs: int | None = None
    masked: bool = False

    @property
    def needs(self) -> Needs:
        """What a sampling program looks at."""
        flags = {Needs.MASK: self.masked, Needs.BIAS: self.bias_ids, Needs.LOGPROBS: self.num_logprobs is not None}
        # As the device will see it: a temperature is a float32 there.
        flags[Needs.RANDOM] = np.float32(self.temperature) >= np.float32(GREEDY_BELOW)
        needs = Needs(sum(flag for flag, needed in flags.items() if needed))
        for option in OPTIONS:
            if getattr(self, option.name) != option.default:
                needs |= option.needs
        return needs

    @property
    def has_penalties(self) -> bool:
        return Needs.PENALTIES in self.needs


@dataclass(frozen=True, slots=True)
class SlotState:
    """What a slot holds from now on: a sequence that begins, or goes on after it was preempted.

    `allowed` masks the vocabulary until `Runner.masks` brings another mask; None allows all. `history` is the sequence's
    prompt and output ids so far, given only when penalties apply; its first `num_prompt` are the prompt. Its tokens go through
    the adapter in the adapter slot `adapter`, from 1 on; 0: through none. `media` is what its prompt shows, or None; what a
    row has of it was encoded by launches before the row's step.
    """

    slot: int
    spec: SamplingSpec
    allowed: Bitmask | None = None
    history: Int32s | None = None
    num_prompt: int = 0
    adapter: int = 0
    media: SlotMedia | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """Sample the token after each of the row's last `last` tokens, as if those before it were the sequence's own.

    All but the first of these are drafts. What stands behind a wrong one is nothing to the sequence.
    """

    last: int = 1


ONE = Sample()
"""What is asked of nearly all rows: the token after the last one."""


@lru_cache
def sample(last: int) -> Sample:
    """One `Sample` for all rows that are asked for as much."""
    return Sample(last) if last > 1 else ONE


@dataclass(frozen=True, slots=True)
class Score:
    """Report the log probability of each of `targets`: of token j + 1 of the row (or what follows it) after token j.

    They belong to the row's first places. With `sample` there is one less than the row has tokens, and the token after the last
    is sampled.
    """

    targets: tuple[int, ...]
    sample: bool


@dataclass(frozen=True, slots=True)
class Pool:
    """Bring up what the model pools of the row, or with `each` of every token of it.

    An engine that generates has the final hidden state of the row's last token. What is of more than the last token is asked of
    rows that are whole prompts.
    """

    each: bool = False


@dataclass(frozen=True, slots=True)
class Align(Pool):
    """Bring up where in the sound the tokens of a text are heard, of a row that is a whole prompt.

    That is of each token from the one at `first` on how much it attends to each of the first `frames` places, `[tokens, frames]`,
    by the model's heads for that.
    """

    first: int = 0
    frames: int = 0


Want = Sample | Score | Pool | None
"""What is asked of a row; None of one whose prompt goes on in a later row."""


class Row(NamedTuple):
    """A run of `num_tokens` new tokens of one sequence, from position `start` on.

    `tokens` None are those that this slot has on the device: the token it sampled last, and where there are more the drafts that
    the device keeps behind it. Such a row starts where the sequence ends on the device, and `start` is the furthest that may be:
    with all drafts right that are under way.
    """

    slot: int
    tokens: tuple[int, ...] | None
    num_tokens: int
    start: int
    want: Want

    @property
    def num_kept(self) -> int:
        """Places whose final hidden states are needed: the row's last ones, but for a `Score` that does not sample all."""
        want = self.want
        if isinstance(want, Sample):
            return want.last
        if isinstance(want, Score):
            return len(want.targets) + want.sample
        return 0 if want is None else 1


class Rows:
    """The rows of a step by field, a list of each: nothing is made for a row that is like all the others, which most are.

    They are added while a step is put together; whoever is given them does not.
    """

    __slots__ = ("counts", "slots", "starts", "tokens", "wants")

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self.slots: list[int] = []
        self.tokens: list[tuple[int, ...] | None] = []
        self.counts: list[int] = []
        self.starts: list[int] = []
        self.wants: list[Want] = []
        for row in rows:
            self.add(row)

    def add(self, row: Row) -> None:
        """Add a row."""
        self.slots.append(row.slot)
        self.tokens.append(row.tokens)
        self.counts.append(row.num_tokens)
        self.starts.append(row.start)
        self.wants.append(row.want)

    def add_next_tokens(self, slots: Sequence[int], starts: Sequence[int], num_drafts: int = 0) -> None:
        """Add a row for the token that each of these slots sampled last and its drafts, to sample those after them."""
        self.slots += slots
        self.tokens += [None] * len(slots)
        self.counts += [1 + num_drafts] * len(slots)
        self.starts += starts
        self.wants += [sample(1 + num_drafts)] * len(slots)

    def __getitem__(self, number: int) -> Row:
        return Row(
            slot=self.slots[number],
            tokens=self.tokens[number],
            num_tokens=self.counts[number],
            start=self.starts[number],
            want=self.wants[number],
        )

    def __iter__(self) -> Iterator[Row]:
        return (self[number] for number in range(len(self)))

    def __len__(self) -> int:
        return len(self.slots)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rows) and tuple(self) == tuple(other)

    __hash__ = None  # type: ignore[assignment]  # lists are not either


@dataclass(frozen=True, slots=True)
class ToHost:
    """Keep what page `page` of a pool holds in the host's block `block`. The page itself stays as it is."""

    pool: int
    page: int
    block: int


@dataclass(frozen=True, slots=True)
class FromHost:
    """Write to page `page` of a pool what the host's block `block` holds."""

    pool: int
    block: int
    page: int


class SlotSnapshot(NamedTuple):
    """A slot, and a copy of what recurrent layers keep there, by its number. Snapshots are numbered from 1; 0 is a sink."""

    slot: int
    snapshot: int


Move = ToHost | FromHost
"""A page between the device and the host's memory. Each pool has blocks of its own, numbered from 0."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One device step: `rows` in the places of `bucket`, in this order, one row after the other without gaps.

    At most `bucket.batch` rows with `bucket.tokens` tokens in all. Several rows may belong to one sequence: keys and values
    of all rows are written before any row attends. `number` counts steps.

    `tables` are the page tables that changed: `(slot, pages)`, which the device keeps by slot until another comes. `pages [G, n]`
    has the pages of positions `[0, n * page_size)` for each cache group of the model, by the ids of the group's pool. The sink,
    page 0, stands where a group has none: where a window does not reach any more, and where nothing is written yet. Whoever
    begins in a slot has a table of its own before its first row.

    `moves` are made before anything is written: first all pages that leave the device, then those that come back. States are
    `restored` to slots before the rows are computed, and `kept` after it, before another step. `masked` says that some row is
    sampled under a mask that depends on tokens which are not known when the batch is made: `Runner.masks` brings it. After a step
    that is `drafting` the device has drafts for every row that was sampled; without, its slots have none from then on. With
    `lengths_known` no row has drafts of the device's or starts behind such: the device need not put any where its sequence ends.
    """

    number: int
    bucket: Bucket
    rows: Rows
    begin: tuple[SlotState, ...] = ()
    tables: tuple[tuple[int, Int32s], ...] = ()
    moves: tuple[Move, ...] = ()
    restored: tuple[SlotSnapshot, ...] = ()
    kept: tuple[SlotSnapshot, ...] = ()
    masked: bool = False
    drafting: bool = False
    lengths_known: bool = False

    @property
    def num_tokens(self) -> int:
        """Real tokens of the step, without padding."""
        return sum(self.rows.counts)

    @property
    def num_padded_tokens(self) -> int:
        """Token places of the step, padding included."""
        return self.bucket.tokens


@dataclass(frozen=True, slots=True)
class RowLogprobs:
    """Raw log probabilities after one place: of the sampled (or target) token, and of the most likely ones, best first."""

    logprob: float
    rank: int
    top_ids: Int32s
    top_logprobs: Floats


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one step yielded: a token for each kept place of its rows in order, and log probabilities where asked for.

    The tokens of `Pool` rows and of scored places mean nothing; behind a wrong draft stands -1. `pooled` are what the model makes
    of the `Pool` rows in order, `[D]`, or `[tokens, D]` of those that want each, or as `Align` says. After a step that is both
    masked and drafting `drafts [rows, k]` are those that the device has for each row, on which the next masks depend.
    """

    tokens: Int32s
    logprobs: tuple[RowLogprobs | None, ...]
    pooled: tuple[Floats, ...] = ()
    drafts: Int32s | None = None


class Pending(Protocol):
    """A step that is under way on the device."""

    def wait(self) -> StepResult:
        """Block until the step is done and copy its result to the host: the only such copy of the loop."""
        ...


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A directory of the file system that all hosts of an engine see; None is that of the start."""

    directory: str | None


@dataclass(frozen=True, slots=True)
class Weights:
    """Other numbers for some of a model's parameters, by their paths: arrays of the host or of devices, or what makes them.

    Where they are all `of` a checkpoint, other hosts can read them there themselves.
    """

    values: Mapping[str, Any]
    of: Checkpoint | None = None


class UnfitWeightsError(ValueError):
    """Weights that cannot be written: the model has no such parameters, they have other shapes, or some are missing."""


class Runner(Protocol):
    """The device half, and all that a start, a loop or an operator does to it. Steps run in the order in which they are launched.

    Whoever does the same things in the same order to runners on several hosts has one model on all of them.
    """

    @property
    def max_in_flight(self) -> int:
        """Steps that may be launched and not waited for: 2 keep a device busy that computes one after the other."""
        ...

    def prepare(self) -> Mapping[Bucket, float]:
        """Do what is left to do before the first step: run every program once, find out scales that have to be measured.

        Returns:
            The seconds that a step of each bucket took, where that was measured.
        """
        ...

    def launch(self, batch: Batch) -> Pending:
        """Launch moves of pages, the slots that begin, the forward pass and the sampling of one step; return without waiting.

        If `batch.masked` the sampling is launched by `masks`, which the loop calls before it launches or waits for another step.
        """
        ...

    def encode(self, encoding: Encoding) -> None:
        """Launch an encoder, whose embeddings go to the pool for steps that are launched later; return without waiting."""
        ...

    @property
    def tiers(self) -> Tiers:
        """What lies behind the device's pages."""
        ...

    def move(self, moves: Sequence[Move]) -> None:
        """Launch moves of pages where no step follows that would bring them; return without waiting."""
        ...

    def masks(self, number: int, masks: Mapping[int, Masks]) -> None:
        """Bring step `number`, the last that was launched, the masks it has waited for, by slot; they stay until others come.

        A slot has one for each place of its row that is sampled, of which the later ones hold if the drafts before are right.

        To make them is work for the host while the device computes the forward pass.
        """
        ...

    def write(self, what: Weights) -> None:
        """Replace weights, for the steps that are launched from now on. Of weights that were dropped all have to be written.

        Raises:
            UnfitWeightsError: nothing was changed.
        """
        ...

    def load_adapter(self, path: str) -> str:
        """Read the adapter in a directory, check it against the model and keep it in the host's memory.

        Another thread than the loop's may do so, beside steps.

        Returns:
            The digest of its files, by which it is known from then on.

        Raises:
            CheckpointError: its files are missing, damaged, or of another model; nothing is kept.
            UnsupportedError: something of it is not built.
            RequestError: its rank is larger than the slots'.
        """
        ...

    def place_adapter(self, digest: str, slot: int) -> None:
        """Write an adapter that was loaded to an adapter slot, for steps that are launched from now on; return without waiting.

        Raises:
            KeyError: none of this digest is kept.
        """
        ...

    def drop_adapter(self, digest: str) -> None:
        """Forget an adapter in the host's memory; slots that hold it stay as they are.

        Raises:
            KeyError: none of this digest is kept.
        """
        ...

    def release(self, *, drop_weights: bool = False) -> None:
        """Give the device's memory back while nothing runs; cache and slots are lost, those of adapters too.

        Weights come back with `restore_weights`, or where they are dropped with `write`.
        """
        ...

    def restore_weights(self) -> None:
        """Take the memory of the weights again: they are the same."""
        ...

    def restore_state(self) -> None:
        """Take the memory of cache and slots again: they are empty. Nothing compiles."""
        ...

    def close(self) -> None:
        """Free the device. Closing twice is fine."""
        ...
