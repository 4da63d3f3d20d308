"""From the running sequences to the rows of one step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from buckets import Bucket, Grid
from jaxengine.contract.batch import SlotState
from jaxengine.contract.rows import Row, Rows
from jaxengine.host.scheduler.draft_length import DraftLength
from jaxengine.host.scheduler.limits import SchedulerLimits
from jaxengine.host.scheduler.policy import prompt_shares, spare_rows
from jaxengine.host.scheduler.sequence import Sequence
from jaxengine.host.scheduler.steady import NO_ROWS, Steady, SteadyRows
from jaxengine.host.scheduler.whole_items import has_runs, whole_take

CRAWL = 4
"""Prompts crawl when no bucket that holds the decoding rows has room for this part of them, as far as the budget goes."""


@dataclass(slots=True)
class Assembly:
    """The rows of a step under construction, and whose they are.

    The first rows are those of `steady` sequences, then those of `plain` ones: the next token of each, which the device has
    sampled last. Then come those of `drafted` ones: the same with `num_drafts` drafts of the device each. `asked` names the
    sequence of each other row that something is asked of, in the order of the rows. `known` are those of which tokens may be
    computed that are known: their pages may be full with it. `masking` sample under masks that change. `beginning` are those that
    `begin`. `drafting` says that the device makes drafts behind the step, `lengths_known` that no row is one of its drafts, or
    starts behind drafts that were not checked yet. `crawls` says that prompts got next to nothing because no bucket has room for
    the decoding rows and for much of them, or for an item that goes into one row.
    """

    steady: SteadyRows = NO_ROWS
    plain: list[Sequence] = field(default_factory=list)
    drafted: list[Sequence] = field(default_factory=list)
    num_drafts: int = 0
    rows: Rows = field(default_factory=Rows)
    asked: list[tuple[Sequence, Row]] = field(default_factory=list)
    known: list[Sequence] = field(default_factory=list)
    begin: list[SlotState] = field(default_factory=list)
    beginning: list[Sequence] = field(default_factory=list)
    bucket: Bucket | None = None
    num_tokens: int = 0
    num_kept: int = 0
    masking: list[Sequence] = field(default_factory=list)
    crawls: bool = False
    drafting: bool = False
    lengths_known: bool = True


def assemble(
    running: Iterable[Sequence],
    grid: Grid,
    limits: SchedulerLimits,
    *,
    steady: Steady,
    prompts_first: bool = False,
    draft_length: DraftLength | None = None,
) -> Assembly:
    """Choose the rows of a step: decoding rows first, then prompts into what is left of the token budget.

    Every sequence that decodes has one row, of one token and its drafts. In deterministic mode positions that have been
    generated before are computed again in rows of one token, several rows of one sequence side by side: keys and values are
    written before any row attends. Where a cache does not rewind, it takes one token after the other: there it is one row.

    Args:
        steady: who of them is in every step; nobody where prompts come first.
        prompts_first: leave decoding rows out if prompts wait.
        draft_length: says how many drafts rows carry, where the device makes them.
    """
    step = Assembly()
    kinds = _by_kind(running, prompts_first=prompts_first)
    decoding, again, prompts = kinds.decoding, kinds.again, kinds.prompts
    step.plain = kinds.plain
    step.steady, steady_starts = steady.plan()
    step.rows.add_next_tokens(step.steady.slots, steady_starts)
    step.rows.add_next_tokens(kinds.slots, kinds.starts)
    step.num_tokens = step.num_kept = len(step.rows)
    if prompts_first and prompts:
        decoding, again = [], []
    num_rows = len(step.rows) + len(decoding) + len(again)
    most = limits.num_drafts
    if draft_length is not None:
        most = draft_length.choose(
            grid,
            num_rows,
            drafters=sum(sequence.max_offered > 0 and not sequence.lapsed for sequence in decoding),
            num_prompts=len(prompts),
            max_tokens=min(limits.max_num_batched_tokens, grid.max_tokens),
        )
        step.drafting = most > 0
        step.lengths_known = not any(sequence.ahead for sequence in step.plain)
    draft_room = _draft_room(grid, limits, decoding, rows=num_rows, num_prompts=len(prompts))
    if step.drafting:
        decoding = _add_drafted(step, decoding, most, room=draft_room)
        draft_room -= most * len(step.drafted)
    for sequence in decoding:
        draft_room -= _add_decoding(step, sequence, min(most, draft_room))
    if again:
        _add_again(step, again, limits, num_prompts=len(prompts))
    if prompts:
        _add_prompts(step, prompts, grid, limits)
    if step.rows and step.bucket is None:
        fill = grid.fill(len(step.rows), step.num_tokens, (), max_tokens=step.num_tokens)
        assert fill is not None
        step.bucket = fill.bucket
    return step


@dataclass(slots=True)
class _Kinds:
    """Running sequences by what their next row is.

    `plain` ones go on behind the token that the device sampled last, with these slots and starts. Those of `decoding` have one
    token to compute, those of `again` several that were generated before, one by one, and those of `prompts` a run of them.
    """

    plain: list[Sequence] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    decoding: list[Sequence] = field(default_factory=list)
    again: list[Sequence] = field(default_factory=list)
    prompts: list[Sequence] = field(default_factory=list)


def _by_kind(running: Iterable[Sequence], *, prompts_first: bool) -> _Kinds:
    """The sequences that can be in the next step, without steady ones. The rows of plain ones count as planned."""
    kinds = _Kinds()
    plain, slots, starts = kinds.plain, kinds.slots, kinds.starts
    for sequence in running:
        if sequence.steady:
            continue
        pending = sequence.pending
        if pending and sequence.plain and not prompts_first:
            start = sequence.num_computed
            if start + 1 < sequence.max_length:
                slots.append(sequence.slot)
                starts.append(start)
                plain.append(sequence)
                sequence.num_computed = start + 1
                sequence.pending = pending + 1
        elif sequence.waits:
            pass
        elif sequence.length - sequence.num_computed == 1 and not sequence.scores:
            if sequence.num_computed < sequence.covered_end:  # else it waited for an encoder when pages were handed out
                kinds.decoding.append(sequence)
        elif sequence.num_computed < sequence.row_end:
            if sequence.num_computed < sequence.prompt_end:
                kinds.prompts.append(sequence)
        else:
            kinds.again.append(sequence)
    return kinds


def _draft_room(grid: Grid, limits: SchedulerLimits, decoding: list[Sequence], *, rows: int, num_prompts: int) -> int:
    """Drafts that decoding rows may carry.

    Alone, what is left of the bucket that promises most tokens for its cost, going by how often drafts were right: where places
    cost nothing that is all of them, on a CPU hardly any while many decode. Beside prompts half of what a bucket leaves.
    """
    proposals = [sequence for sequence in decoding if sequence.proposal]
    most = limits.max_num_batched_tokens
    if limits.num_device_drafts:
        return min(most, grid.max_tokens) - rows - num_prompts
    if limits.speculation is None or not proposals:
        return 0
    rooms = {bucket: min(most, bucket.tokens) - rows - num_prompts for bucket in grid.buckets if bucket.batch >= rows}
    if num_prompts:
        return max(0, max(rooms.values(), default=0) // 2)

    def promise(bucket: Bucket) -> float:
        room, tokens = rooms[bucket], float(rows)
        for sequence in proposals:
            take = min(len(sequence.proposal), room)
            tokens += take * (0.0 if sequence.drafts is None else sequence.drafts.hits)
            room -= take
        return tokens / grid.costs[bucket]

    # of equal promises the smallest bucket's: the grid has the largest first
    return rooms[max((bucket for bucket in reversed(grid.buckets) if rooms.get(bucket, -1) >= 0), key=promise)]


def _add_drafted(step: Assembly, sequences: list[Sequence], num_drafts: int, *, room: int) -> list[Sequence]:
    """Rows of sequences of which the device has the last token and so many drafts: a short way, as nearly all are like that.

    Returns:
        The sequences that are not.
    """
    drafted, slots, starts, others = step.drafted, list[int](), list[int](), list[Sequence]()
    take, most = 1 + num_drafts, room // num_drafts
    for sequence in sequences:
        start = sequence.num_computed
        if (
            sequence.offered < num_drafts
            or start + take > sequence.covered_end
            or start + take >= sequence.max_length
            or sequence.sampling.mask_changes
            or len(drafted) >= most
        ):
            others.append(sequence)
            continue
        slots.append(sequence.slot)
        starts.append(start)
        drafted.append(sequence)
        sequence.num_computed = start + take
        sequence.pending += 1
        sequence.ahead += num_drafts
        sequence.offered = 0 if sequence.lapsed else sequence.max_offered
    if drafted:
        step.rows.add_next_tokens(slots, starts, num_drafts)
        step.num_drafts, step.lengths_known = num_drafts, False
        step.num_tokens += take * len(drafted)
        step.num_kept += take * len(drafted)
    return others


def _add_decoding(step: Assembly, sequence: Sequence, draft_room: int) -> int:
    """The row of a sequence that has one token to compute, and of the drafts that may follow it; return how many these are."""
    if sequence.max_offered:
        covered = sequence.covered_end - sequence.num_computed - 1
        num_drafts = max(0, min(draft_room, covered, sequence.next_drafts))
        tokens = _tokens(sequence, 1) if sequence.offered < 0 else None
        _add_row(step, sequence, tokens, 1 + num_drafts, num_drafts=num_drafts)
        return num_drafts
    if not sequence.proposal:
        _add_row(step, sequence, None if sequence.pending else _tokens(sequence, 1), 1)
        return 0
    assert sequence.drafts is not None
    assert not sequence.pending, "drafts follow a token that is known"
    covered = sequence.covered_end - sequence.num_computed - 1
    drafts = sequence.proposal[: max(0, min(draft_room, covered))]
    if not drafts:
        sequence.drafts.rest(sequence.num_tokens)  # it has waited for this
    _add_row(step, sequence, (*_tokens(sequence, 1), *drafts), 1 + len(drafts), num_drafts=len(drafts))
    return len(drafts)


def _add_again(step: Assembly, sequences: list[Sequence], limits: SchedulerLimits, *, num_prompts: int) -> None:
    rows = len(step.rows) + len(sequences) + num_prompts
    spare = spare_rows(rows=rows, max_rows=limits.max_num_seqs, max_tokens=limits.max_num_batched_tokens)
    spare = spare if limits.cache.rewinds else 0
    for sequence in sequences:
        take = min(min(sequence.num_tokens, sequence.covered_end) - sequence.num_computed, 1 + spare)
        spare -= take - 1
        for _ in range(take):
            _add_known(step, sequence, 1)


def _add_prompts(step: Assembly, prompts: list[Sequence], grid: Grid, limits: SchedulerLimits) -> None:
    left = [sequence.prompt_end - sequence.num_computed for sequence in prompts]
    budget = limits.budget(beside=step.num_tokens)
    whole = [sequence.whole for sequence in prompts]
    shares = prompt_shares(left, threshold=limits.prompt_threshold)
    if any(whole):
        shares = [tokens if kept else share for tokens, kept, share in zip(left, whole, shares, strict=True)]
    # Places whose hidden states are kept: every sequence has one of right, prompts that are scored share the rest.
    spare = limits.max_kept - step.num_kept - len(prompts)
    for at, sequence in enumerate(prompts):
        if sequence.scores:
            shares[at] = min(shares[at], 1 + spare)
            spare -= shares[at] - 1
    if any(map(has_runs, prompts)):
        room = min(budget, grid.max_tokens) - step.num_tokens
        prompts, left, shares, whole = _whole_items(prompts, left, shares, room=room, limits=limits)
        if not prompts:
            step.crawls = True
            return
    fill = grid.fill(len(step.rows), step.num_tokens, shares, max_tokens=budget, whole=whole)
    assert fill is not None, "the budget holds at least a token for every running sequence"
    step.bucket = fill.bucket
    might = min(sum(shares), min(budget, grid.max_tokens) - step.num_tokens)
    beside = (
        max((bucket.tokens for bucket in grid.buckets if bucket.batch > len(step.rows)), default=0) - step.num_tokens
    )
    step.crawls = bool(step.rows) and CRAWL * min(beside, might) < might
    for sequence, tokens, take in zip(prompts, left, fill.takes, strict=False):
        if take := take if sequence.whole or has_runs(sequence) else limits.prompt_take(tokens, take):
            _add_known(step, sequence, take)
    if any(whole) and not any(fill.takes):
        step.crawls = bool(step.rows)


def _whole_items(
    prompts: list[Sequence], left: list[int], shares: list[int], *, room: int, limits: SchedulerLimits
) -> tuple[list[Sequence], list[int], list[int], list[bool]]:
    """The same prompts, with shares that are taken wholly or not at all where items see each other, as far as there is room.

    Where there is none for the first prompt none goes in: its item gets a step without decoding rows.
    """
    going: list[tuple[Sequence, int, int, bool]] = []
    for sequence, tokens, share in zip(prompts, left, shares, strict=True):
        if has_runs(sequence) and not sequence.whole:
            share = whole_take(sequence, share, room=room, limits=limits)
        if share:
            going.append((sequence, tokens, share, sequence.whole or has_runs(sequence)))
            room = max(0, room - share)
        elif not going:
            break
    return (
        [sequence for sequence, *_ in going],
        [tokens for _, tokens, *_ in going],
        [share for *_, share, _ in going],
        [whole for *_, whole in going],
    )


def _add_known(step: Assembly, sequence: Sequence, take: int) -> None:
    """A row of the sequence's next `take` tokens, which are known."""
    _add_row(step, sequence, _tokens(sequence, take), take)


def _tokens(sequence: Sequence, take: int) -> tuple[int, ...]:
    start = sequence.num_computed
    return tuple(sequence.tokens[start : start + take].tolist())


def _add_row(
    step: Assembly, sequence: Sequence, tokens: tuple[int, ...] | None, take: int, *, num_drafts: int = 0
) -> None:
    """Add a row, of which is asked what the sequence wants of it; note what the step will have done."""
    step.lengths_known &= not (num_drafts or sequence.ahead)
    start, end = sequence.num_computed, sequence.num_computed + take
    samples = end - num_drafts == sequence.length
    row = Row(sequence.slot, tokens, take, start, sequence.want(end, num_drafts=num_drafts))
    step.rows.add(row)
    step.num_tokens += take
    sequence.num_computed = end
    if row.want is not None:
        step.asked.append((sequence, row))
        step.num_kept += row.num_kept
    if samples:
        sequence.pending += 1
        sequence.ahead += num_drafts
        if sequence.sampling.mask_changes:
            step.masking.append(sequence)
    if sequence.begins:
        sequence.begins = False
        media = None if sequence.shown is None else sequence.shown.slot()
        step.begin.append(
            sequence.sampling.begin(sequence.slot, sequence.tokens, adapter=sequence.adapter_slot, media=media)
        )
        step.beginning.append(sequence)
    if sequence.max_offered:
        if samples:
            sequence.offered = 0 if sequence.lapsed else sequence.max_offered
        if not step.drafting:
            sequence.lapse()
    if not step.known or step.known[-1] is not sequence:
        step.known.append(sequence)
