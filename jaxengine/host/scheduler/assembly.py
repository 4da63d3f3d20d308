"""From the running sequences to the rows of one step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from buckets import Bucket, Grid
from jaxengine.contract.batch import Row, Sample, SlotState
from jaxengine.host.scheduler.limits import SchedulerLimits
from jaxengine.host.scheduler.policy import prompt_shares, spare_rows
from jaxengine.host.scheduler.sequence import ONE, Sequence

new_tuple = tuple.__new__
"""Makes named tuples in half the time that their own constructor takes, which is a function of Python's."""

CRAWL = 4
"""Prompts crawl when no bucket that holds the decoding rows has room for this part of them, as far as the budget goes."""


@dataclass(slots=True)
class Assembly:
    """The rows of a step under construction, and whose they are.

    `kept` names the sequence of each row that something is asked of, in the order of the rows. `known` are those of which tokens
    are computed that are known: their pages may be full with it. `crawls` says that prompts got next to nothing because no bucket
    has room for the decoding rows and for much of them.
    """

    rows: list[Row] = field(default_factory=list)
    kept: list[tuple[Sequence, Row]] = field(default_factory=list)
    known: list[Sequence] = field(default_factory=list)
    begin: list[SlotState] = field(default_factory=list)
    bucket: Bucket | None = None
    num_tokens: int = 0
    num_kept: int = 0
    masked: bool = False
    crawls: bool = False


def assemble(
    running: Iterable[Sequence], grid: Grid, limits: SchedulerLimits, *, prompts_first: bool = False
) -> Assembly:
    """Choose the rows of a step: decoding rows first, then prompts into what is left of the token budget.

    Every sequence that decodes has one row, of one token and its drafts. In deterministic mode positions that have been
    generated before are computed again in rows of one token, several rows of one sequence side by side: keys and values are
    written before any row attends. Where a cache does not rewind, it takes one token after the other: there it is one row.

    Args:
        prompts_first: leave decoding rows out if prompts wait. They take turns where prompts crawl: with buckets like Gaudi's, of
            which the large ones have few rows.
    """
    step = Assembly()
    decoding: list[Sequence] = []
    again: list[Sequence] = []
    prompts: list[Sequence] = []
    rows, kept = step.rows, step.kept
    for sequence in running:
        pending = sequence.pending
        length = sequence.num_tokens + pending
        if length >= sequence.max_length or (sequence.speculation is not None and sequence.waits):
            continue
        if pending and sequence.plain and not prompts_first:
            # as nearly all rows of nearly every step are: what `_add_decoding` would do, without asking what else there may be
            start = sequence.num_computed
            row = new_tuple(Row, (sequence.slot, None, 1, start, ONE))
            rows.append(row)
            kept.append((sequence, row))
            sequence.num_computed = start + 1
            sequence.pending = pending + 1
        elif length - sequence.num_computed == 1 and not (sequence.num_wanted_logprobs and sequence.scores):
            decoding.append(sequence)
        elif sequence.num_computed < sequence.row_end:
            prompts.append(sequence)
        else:
            again.append(sequence)
    step.num_tokens = step.num_kept = len(rows)
    if prompts_first and prompts:
        decoding, again = [], []
    num_rows = len(rows) + len(decoding) + len(again)
    draft_room = _draft_room(grid, limits, decoding, rows=num_rows, num_prompts=len(prompts))
    for sequence in decoding:
        drafts: tuple[int, ...] = ()
        if sequence.proposal:
            covered = sequence.covered_end - sequence.num_computed - 1
            drafts = sequence.proposal[: max(0, min(draft_room, covered))]
            draft_room -= len(drafts)
            if not drafts:
                sequence.rest()  # it has waited for this
        _add_decoding(step, sequence, drafts)
    if again:
        _add_again(step, again, limits, num_prompts=len(prompts))
    if prompts:
        _add_prompts(step, prompts, grid, limits)
    elif step.rows:
        fill = grid.fill(len(step.rows), step.num_tokens, (), max_tokens=step.num_tokens)
        assert fill is not None
        step.bucket = fill.bucket
    return step


def _draft_room(grid: Grid, limits: SchedulerLimits, decoding: list[Sequence], *, rows: int, num_prompts: int) -> int:
    """Drafts that decoding rows may carry.

    Alone, what is left of the bucket that promises most tokens for its cost, going by how often drafts were right: where places
    cost nothing that is all of them, on a CPU hardly any while many decode. Beside prompts half of what a bucket leaves.
    """
    proposals = [sequence for sequence in decoding if sequence.proposal]
    if limits.speculation is None or not proposals:
        return 0
    most = limits.max_num_batched_tokens
    rooms = {bucket: min(most, bucket.tokens) - rows - num_prompts for bucket in grid.buckets if bucket.batch >= rows}
    if num_prompts:
        return max(0, max(rooms.values(), default=0) // 2)

    def promise(bucket: Bucket) -> float:
        room, tokens = rooms[bucket], float(rows)
        for sequence in proposals:
            take = min(len(sequence.proposal), room)
            tokens += take * sequence.draft_hits
            room -= take
        return tokens / grid.costs[bucket]

    # of equal promises the smallest bucket's: the grid has the largest first
    return rooms[max((bucket for bucket in reversed(grid.buckets) if rooms.get(bucket, -1) >= 0), key=promise)]


def _add_decoding(step: Assembly, sequence: Sequence, drafts: tuple[int, ...]) -> None:
    """The row of a sequence that has one token to compute, named where it is known, and of the drafts that may follow it."""
    want = sequence.want(sequence.num_tokens) if sequence.pools else ONE
    tokens: tuple[int, ...] | None = None if sequence.pending else (sequence.last_token,)
    if drafts:
        assert tokens is not None, "drafts follow a token that is known"
        want, tokens = Sample(1 + len(drafts)), (*tokens, *drafts)
        sequence.drafted = len(drafts)
    take = 1 + len(drafts)
    row = Row(sequence.slot, tokens, take, sequence.num_computed, want)
    step.rows.append(row)
    step.num_tokens += take
    _ask(step, sequence, row, num_kept=take)
    _note(step, sequence, take)


def _add_again(step: Assembly, sequences: list[Sequence], limits: SchedulerLimits, *, num_prompts: int) -> None:
    rows = len(step.rows) + len(sequences) + num_prompts
    spare = spare_rows(rows=rows, max_rows=limits.max_num_seqs, max_tokens=limits.max_num_batched_tokens)
    spare = spare if limits.cache.rewinds else 0
    for sequence in sequences:
        take = min(sequence.num_tokens - sequence.num_computed, 1 + spare)
        spare -= take - 1
        for _ in range(take):
            _add_known(step, sequence, 1)


def _add_prompts(step: Assembly, prompts: list[Sequence], grid: Grid, limits: SchedulerLimits) -> None:
    left = [min(sequence.row_end, sequence.covered_end) - sequence.num_computed for sequence in prompts]
    threshold, budget = limits.long_prefill_token_threshold, limits.max_num_batched_tokens
    if limits.deterministic:
        threshold = threshold and max(threshold, limits.least_share)
        budget = max(budget, step.num_tokens + limits.least_share)
    shares = prompt_shares(left, threshold=threshold)
    # Places whose hidden states are kept: every sequence has one of right, prompts that are scored share the rest.
    spare = limits.max_kept - step.num_kept - len(prompts)
    for at, sequence in enumerate(prompts):
        if sequence.num_wanted_logprobs and sequence.scores:
            shares[at] = min(shares[at], 1 + spare)
            spare -= shares[at] - 1
    fill = grid.fill(len(step.rows), step.num_tokens, shares, max_tokens=budget)
    assert fill is not None, "the budget holds at least a token for every running sequence"
    step.bucket = fill.bucket
    might = min(sum(shares), min(budget, grid.max_tokens) - step.num_tokens)
    beside = (
        max((bucket.tokens for bucket in grid.buckets if bucket.batch > len(step.rows)), default=0) - step.num_tokens
    )
    step.crawls = bool(step.rows) and CRAWL * min(beside, might) < might
    for sequence, tokens, take in zip(prompts, left, fill.takes, strict=False):
        take = _whole(tokens, take, limits.cache.cut) if limits.deterministic else take
        if take:
            _add_known(step, sequence, take)


def _whole(left: int, take: int, cut: int) -> int:
    """Of `left` tokens of a prompt: none, or two at least, and none or two at least stay behind.

    One alone is another kernel's. What does not take all of them takes a multiple of `cut`.
    """
    if take < left:
        take -= take % cut
        take -= cut * (left - take == 1)
        return take if take > 1 else 0
    return take


def _add_known(step: Assembly, sequence: Sequence, take: int) -> None:
    """A row of the sequence's next `take` tokens, which are known."""
    start = sequence.num_computed
    end = start + take
    row = Row(sequence.slot, tuple(sequence.tokens[start:end].tolist()), take, start, sequence.want(end))
    step.rows.append(row)
    step.num_tokens += take
    if row.want is not None:
        _ask(step, sequence, row, num_kept=row.num_kept, samples=end == sequence.num_tokens)
    _note(step, sequence, take)


def _ask(step: Assembly, sequence: Sequence, row: Row, *, num_kept: int, samples: bool = True) -> None:
    step.kept.append((sequence, row))
    step.num_kept += num_kept
    if samples:
        if sequence.sampling.mask_changes:
            step.masked = True
        sequence.pending += 1


def _note(step: Assembly, sequence: Sequence, take: int) -> None:
    if sequence.begins:
        sequence.begins = False
        step.begin.append(sequence.sampling.begin(sequence.slot, sequence.tokens))
    sequence.num_computed += take
    if not step.known or step.known[-1] is not sequence:
        step.known.append(sequence)
