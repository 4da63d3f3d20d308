"""The contract between the two halves: an immutable `Batch` goes down to the device, a `StepResult` comes up.

The host half writes no array of a padded shape and the device half never sees a request. NumPy arrays in here are
read-only by agreement: whoever receives one does not write to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from buckets import Bucket

Int32s = NDArray[np.int32]
Floats = NDArray[np.float32]
Bitmask = NDArray[np.uint32]
"""`ceil(vocab_size / 32)` words; bit `t % 32` of word `t // 32` is set when token `t` may be sampled."""


@dataclass(frozen=True, slots=True)
class SamplingSpec:
    """The part of a request's sampling that is the same at every step. Built once per sequence.

    `top_k` 0, `top_p` 1, `min_p` 0 and penalties of 0, 0 and 1 are neutral. `num_logprobs` is None, or how many of the most
    likely tokens to report beside the sampled one (0: only the sampled one; -1: the whole vocabulary).
    `bias_ids`/`bias_values` are added to the logits.
    """

    temperature: float
    seed: int
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    bias_ids: tuple[int, ...] = ()
    bias_values: tuple[float, ...] = ()
    num_logprobs: int | None = None

    @property
    def has_penalties(self) -> bool:
        return (self.presence_penalty, self.frequency_penalty, self.repetition_penalty) != (0.0, 0.0, 1.0)


@dataclass(frozen=True, slots=True)
class RowSampling:
    """How to sample the token that follows a row. Its position is the row's `start + len(tokens)`.

    `history` is the sequence's prompt and output ids so far, given only when penalties apply; its first `num_prompt_tokens`
    are the prompt. `allowed` masks the vocabulary. `target` asks for the log probability of a known next token (prompt
    log probabilities) in place of the sampled one.
    """

    spec: SamplingSpec
    history: Int32s | None = None
    num_prompt_tokens: int = 0
    allowed: Bitmask | None = None
    target: int | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """A run of consecutive new tokens of one sequence, with the pages that cover positions `[0, start + len(tokens))`.

    `sampling` is None when nothing is to be sampled after the row's last token (a prompt that goes on in a later row).
    """

    tokens: tuple[int, ...]
    start: int
    pages: Int32s
    sampling: RowSampling | None


@dataclass(frozen=True, slots=True)
class Batch:
    """One device step: rows in a prefill bucket, rows in a decode bucket, or both.

    `len(prefill) <= prefill_bucket.batch` and each row has at most `prefill_bucket.seq` tokens; decode rows have one token.
    `copies` are `(source, destination)` page ids to copy before anything is written (copy on write).
    """

    prefill: tuple[Row, ...]
    decode: tuple[Row, ...]
    prefill_bucket: Bucket | None
    decode_bucket: Bucket | None
    copies: tuple[tuple[int, int], ...] = ()

    def sampled_rows(self) -> list[Row]:
        """The rows that yield a token, in the order in which `StepResult` reports them: prefill, then decode."""
        return [row for row in (*self.prefill, *self.decode) if row.sampling is not None]

    @property
    def num_tokens(self) -> int:
        """Real tokens of the step, without padding."""
        return sum(len(row.tokens) for row in self.prefill) + len(self.decode)

    @property
    def num_padded_tokens(self) -> int:
        """Token places of the step, padding included."""
        return sum(bucket.tokens for bucket in (self.prefill_bucket, self.decode_bucket) if bucket is not None)


@dataclass(frozen=True, slots=True)
class RowLogprobs:
    """Raw log probabilities after one row: of the sampled (or target) token, and of the most likely ones, best first."""

    logprob: float
    rank: int
    top_ids: Int32s
    top_logprobs: Floats


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one step yielded for each of `Batch.sampled_rows()`: a token, and log probabilities where asked for."""

    tokens: Int32s
    logprobs: tuple[RowLogprobs | None, ...]


class Pending(Protocol):
    """A step that is under way on the device."""

    def wait(self) -> StepResult:
        """Block until the step is done and copy its result to the host: the only such copy of the loop."""
        ...


Hidden = TypeVar("Hidden")
"""The final hidden states of a step's sampled rows, on the device: opaque to the host half."""


class Runner(Protocol[Hidden]):
    """The device half as the engine loop sees it."""

    def forward(self, batch: Batch) -> Hidden:
        """Launch page copies and the forward pass of one step; return without waiting."""
        ...

    def sample(self, batch: Batch, hidden: Hidden, masks: Mapping[int, Bitmask]) -> Pending:
        """Launch the sampling of `batch.sampled_rows()`; return without waiting.

        `masks` take the place of `RowSampling.allowed` in the sampled rows that they number: those that were not known yet when
        the batch was made.
        """
        ...

    def close(self) -> None:
        """Free the device."""
        ...
