"""The contract between the two halves: an immutable `Batch` goes down to the device, a `StepResult` comes up.

The host half writes no array of a padded shape and the device half never sees a request. `rows.py` has the rows of a batch,
`runner.py` who takes it.

A running sequence has a *slot*, 1 to max_num_seqs (0 is the sink of padding). What the device keeps of it lies there: how it is
sampled, the token it sampled last, and where drafts are made there these, and how long the sequence is. It is written when the
sequence begins (`Batch.begin`) and is not sent again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from buckets import Bucket
from jaxengine.contract.arrays import Bitmask, Floats, Int32s
from jaxengine.contract.rows import Rows
from jaxengine.contract.sampling_options import GREEDY_BELOW, OPTIONS, Needs, SamplingOptions

if TYPE_CHECKING:
    from jaxengine.contract.media import SlotMedia


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
