"""From the running sequences to the rows of one step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from buckets import Bucket, Grid
from buckets.cut import cut_rows
from jaxengine.batch import Row
from jaxengine.scheduler.limits import SchedulerLimits
from jaxengine.scheduler.policy import prefill_shares, spare_decode_rows
from jaxengine.scheduler.sequence import Sequence


@dataclass(slots=True)
class Assembly:
    """The rows of a step under construction, and whose they are.

    `computed` says how many positions of each sequence the step computes; `sampled` names, in the order of
    `Batch.sampled_rows()`, the sequence of each sampled row and whether the row reports on a known prompt token.
    """

    prefill: list[Row] = field(default_factory=list)
    decode: list[Row] = field(default_factory=list)
    prefill_bucket: Bucket | None = None
    computed: list[tuple[Sequence, int]] = field(default_factory=list)
    sampled_prefill: list[tuple[Sequence, bool]] = field(default_factory=list)
    sampled_decode: list[tuple[Sequence, bool]] = field(default_factory=list)

    @property
    def sampled(self) -> list[tuple[Sequence, bool]]:
        return self.sampled_prefill + self.sampled_decode


def assemble(running: Iterable[Sequence], grid: Grid, limits: SchedulerLimits, *, page_size: int) -> Assembly:
    """Choose the rows of a step: decode rows first, then prefill rows into what is left of the token budget.

    Every sequence past its prefill rows gets one decode row. Those with more than one position to compute (prompt log
    probabilities; replay in deterministic mode) share the spare rows of the decode bucket, several rows of one sequence side
    by side: keys and values are written before any row attends.
    """
    step = Assembly()
    several: list[Sequence] = []
    prefilling: list[Sequence] = []
    rows, computed, sampled = step.decode, step.computed, step.sampled_decode
    for sequence in running:
        if sequence.decodes:
            sampling = sequence.sampling.constant or sequence.sampling.next_token(sequence.tokens)
            rows.append(Row((sequence.last_token,), sequence.num_computed, sequence.pages, sampling))
            computed.append((sequence, 1))
            sampled.append((sequence, False))
        elif sequence.num_computed < sequence.prefill_end:
            prefilling.append(sequence)
        else:
            several.append(sequence)
    if several:
        _add_single_token_rows(step, several, limits, page_size=page_size)
    if prefilling:
        _add_prefill_rows(step, prefilling, grid, limits, page_size=page_size)
    return step


def _add_single_token_rows(step: Assembly, several: list[Sequence], limits: SchedulerLimits, *, page_size: int) -> None:
    spare = spare_decode_rows(
        rows=len(step.decode) + len(several), max_rows=limits.max_num_seqs, max_tokens=limits.max_num_batched_tokens
    )
    for sequence in several:
        start = sequence.num_computed
        take = min(sequence.num_tokens - start, 1 + spare)
        spare -= take - 1
        for position in range(start, start + take):
            row = _row(sequence, position, 1, page_size=page_size)
            step.decode.append(row)
            if row.sampling is not None:
                step.sampled_decode.append((sequence, row.sampling.target is not None))
        step.computed.append((sequence, take))


def _add_prefill_rows(
    step: Assembly, prefilling: list[Sequence], grid: Grid, limits: SchedulerLimits, *, page_size: int
) -> None:
    whole_rows = limits.deterministic
    threshold = limits.long_prefill_token_threshold
    budget = limits.max_num_batched_tokens - len(step.decode)
    if whole_rows:
        row = grid.prefill_buckets[0].seq
        budget = max(budget, row)  # less than a row takes nothing, and prompts would wait for ever
        threshold = 0 if threshold == 0 else max(row, threshold // row * row)
    left = [sequence.prefill_end - sequence.num_computed for sequence in prefilling]
    fill = grid.fill_prefill(prefill_shares(left, threshold=threshold), max_tokens=budget, whole_rows=whole_rows)
    assert fill is not None, "the budget holds at least a token for every running sequence"
    step.prefill_bucket = fill.bucket
    for sequence, take in zip(prefilling, fill.takes, strict=True):
        if take == 0:
            continue
        start = sequence.num_computed
        for offset, length in cut_rows(start, take, fill.bucket.seq, aligned=whole_rows):
            row_ = _row(sequence, start + offset, length, page_size=page_size)
            step.prefill.append(row_)
            if row_.sampling is not None:
                step.sampled_prefill.append((sequence, False))
        step.computed.append((sequence, take))


def _row(sequence: Sequence, start: int, length: int, *, page_size: int) -> Row:
    end = start + length
    return Row(
        tokens=tuple(sequence.tokens[start:end].tolist()),
        start=start,
        pages=sequence.pages[: -(-end // page_size)],
        sampling=sequence.row_sampling(end),
    )
