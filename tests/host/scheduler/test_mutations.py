"""The fake runner notices: each bug put in on purpose makes outputs differ from the oracle's, or a read fail."""

from __future__ import annotations

import random
from typing import Any

import pytest

from jaxengine.contract.arrays import Int32s
from jaxengine.host.kvcache.holding import GroupPages
from jaxengine.host.kvcache.ledger import Ledger
from jaxengine.host.kvcache.pages import Pages
from jaxengine.host.kvcache.pool import PagePool
from jaxengine.host.kvcache.prefix import Digest, Entry, Prefixes, PrefixIndex
from jaxengine.host.scheduler import assembly
from jaxengine.host.scheduler.placement import Placement
from jaxengine.host.scheduler.sequence import Sequence
from jaxengine.host.scheduler.sequence_pages import SequencePages
from tests.harness import EOS, Rig, make_request

STEM = tuple((3 + i * 5) % EOS for i in range(40))
NUM_PAGES, PAGE_SIZE = 40, 4
Keeps = tuple[tuple[int | None, ...], ...]
PLAIN: Keeps = ((None,),)
WINDOWS: Keeps = ((None, 7),)
POOLS: Keeps = ((None,), (7,))
"""What the groups of each pool keep."""


def made(kind: type[Ledger] = Ledger, keeps: Keeps = PLAIN, **options: Any) -> Ledger:
    pools = [PagePool(NUM_PAGES, of_pool) for of_pool in keeps]
    for number, pool in enumerate(pools[1:]):
        random.Random(number).shuffle(pool.pages._free)  # or pools hand out the same ids at the same time
    return kind(pools, PAGE_SIZE, **options)


def play(ledger: Ledger, keeps: Keeps = PLAIN) -> Rig:
    """Several sequences, prefix hits, reused pages: a workload in which every page account matters."""
    rig = Rig(num_pages=NUM_PAGES, page_size=PAGE_SIZE, ledger=ledger, keeps=keeps)
    rig.check = False  # the ledger's own check would speak first; here the outputs must
    rig.add(
        make_request("several", STEM[:18], n=3, max_tokens=7),
        make_request("early", STEM[:30], max_tokens=3),
    )
    for _ in range(6):
        rig.step()
    rig.add(
        make_request("hit", [*STEM[:19], 90, 91], max_tokens=5),
        make_request("near miss", [*STEM[:15], 92, 93], max_tokens=5),
        make_request("other", [94, *STEM[:30]], max_tokens=9),
    )
    for _ in range(300):
        rig.step()
    return rig


def wrong_answers(rig: Rig) -> set[str]:
    """Requests with an output that is not the oracle's."""
    return {
        request.request_id
        for request in rig.requests.values()
        for key, answer in rig.expected(request).items()
        if tuple(rig.collected[key].tokens) != answer.tokens
    }


def is_noticed(ledger: Ledger, *, by: str, keeps: Keeps = PLAIN) -> bool:
    """Whether a request's output is wrong, or a position is read that nobody wrote (what a reused page hides)."""
    try:
        rig = play(ledger, keeps)
    except AssertionError as error:
        return "never written" in str(error) or "the sink is read" in str(error)
    return by in wrong_answers(rig)


def test_without_a_bug_every_answer_is_right() -> None:
    assert wrong_answers(play(made())) == set()


def test_a_page_that_is_freed_while_another_still_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def play_in_a_small_pool() -> Rig:
        rig = Rig(num_pages=22, page_size=PAGE_SIZE)
        rig.check = False
        rig.add(make_request("first", STEM[:18], max_tokens=2), make_request("alike", STEM[:18], max_tokens=20))
        rig.add(*(make_request(f"other {number}", [number, *STEM[:20]], max_tokens=9) for number in range(3)))
        for _ in range(60):
            rig.step()
        return rig

    assert wrong_answers(play_in_a_small_pool()) == set()
    monkeypatch.setattr(PagePool, "share", lambda pool, page: pool.index.wake(page))
    assert "alike" in wrong_answers(play_in_a_small_pool())


def test_a_page_that_is_freed_while_its_sequence_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    take = Pages.take

    def take_and_free_the_one_before(self: Pages) -> int:
        page = take(self)
        taken.append(page)
        if len(taken) == 12:
            self.free(taken[2])
        return page

    monkeypatch.setattr(Pages, "take", take_and_free_the_one_before)
    assert wrong_answers(play(made()))


@pytest.mark.parametrize("keeps", [WINDOWS, POOLS])
def test_without_a_bug_windows_change_no_answer(keeps: Keeps) -> None:
    assert wrong_answers(play(made(keeps=keeps), keeps)) == set()


@pytest.mark.parametrize("keeps", [WINDOWS, POOLS])
def test_a_page_that_goes_back_while_a_window_still_sees_it(keeps: Keeps, monkeypatch: pytest.MonkeyPatch) -> None:
    drop = GroupPages.drop_unseen
    monkeypatch.setattr(GroupPages, "drop_unseen", lambda group, at, size: drop(group, at + size, size))
    assert is_noticed(made(keeps=keeps), by="other", keeps=keeps)


def test_a_prefix_whose_window_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    def only_the_last_page(pages: GroupPages, position: int, page_size: int) -> int:
        return 0 if pages.keep is None else max(0, position - 1) // page_size

    monkeypatch.setattr(GroupPages, "first_seen", only_the_last_page)
    assert is_noticed(made(keeps=WINDOWS), by="hit", keeps=WINDOWS)


def test_groups_that_find_each_other_s_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    find, insert = PrefixIndex.find, PrefixIndex.insert
    monkeypatch.setattr(PrefixIndex, "find", lambda index, entry, group: find(index, entry, 0))
    monkeypatch.setattr(PrefixIndex, "insert", lambda index, entry, group, page: insert(index, entry, 0, page))
    assert is_noticed(made(keeps=WINDOWS), by="hit", keeps=WINDOWS)


def test_pools_that_find_each_other_s_pages() -> None:
    """An id that one pool gave is another page in the other."""
    ledger = made(keeps=POOLS)
    full, windowed = ledger.pools
    windowed.index.find = lambda entry, group: full.index.find(entry, 0)
    assert is_noticed(ledger, by="hit", keeps=POOLS)


def test_a_page_that_goes_back_to_the_other_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger, drop = made(keeps=POOLS, enable_prefix_caching=False), GroupPages.drop_unseen

    def confuse(group: GroupPages, position: int, page_size: int) -> None:
        right = group.pool
        group.pool = ledger.pools[0]
        try:
            drop(group, position, page_size)
        finally:
            group.pool = right

    monkeypatch.setattr(GroupPages, "drop_unseen", confuse)
    assert is_noticed(ledger, by="other", keeps=POOLS)


def test_a_prefix_match_that_ignores_the_last_token_of_a_page() -> None:
    class OffByOne(Prefixes):
        def entry(self, parent: Digest, tokens: list[int], shown: bytes = b"") -> Entry:
            return super().entry(parent, tokens[:-1], shown)

    assert "near miss" in wrong_answers(play(made(prefixes=OffByOne())))


def test_a_prefix_match_that_counts_one_token_too_many() -> None:
    class CountsOneMore(Ledger):
        def add(self, *arguments: Any, **options: Any) -> int:
            cached = super().add(*arguments, **options)
            return cached + 1 if cached else 0

    assert is_noticed(made(CountsOneMore), by="hit")


def test_a_chunk_of_a_prompt_that_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    add = assembly._add_known

    def lose_tokens(step: object, sequence: Sequence, take: int) -> None:
        if sequence.num_computed:
            sequence.num_computed += 1
            take -= 1
        add(step, sequence, take)

    monkeypatch.setattr(assembly, "_add_known", lose_tokens)
    assert is_noticed(made(enable_prefix_caching=False), by="other")


def test_an_answer_from_the_wrong_order_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    add = assembly._add_row

    def swap(step: assembly.Assembly, *arguments: object, **options: object) -> None:
        add(step, *arguments, **options)
        step.asked.reverse()

    monkeypatch.setattr(assembly, "_add_row", swap)
    assert wrong_answers(play(made()))


def test_pages_that_are_found_before_the_step_that_writes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    publish = SequencePages.publish

    def too_early(pages: SequencePages, sequence: Sequence) -> None:
        computed, sequence.num_computed = sequence.num_computed, sequence.covered_end
        publish(pages, sequence)
        sequence.num_computed = computed

    def play_chunks() -> None:
        rig = Rig(max_num_batched_tokens=8, threshold=4)
        rig.add(make_request("chunked", STEM[:30]))
        rig.step()
        rig.add(make_request("alike", STEM[:30]))
        rig.run()
        rig.assert_oracle()

    play_chunks()
    monkeypatch.setattr(SequencePages, "publish", too_early)
    with pytest.raises(AssertionError, match="never written"):
        play_chunks()


def test_a_page_table_that_changed_and_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    take, sent = SequencePages.take_tables, set()

    def send_once(pages: SequencePages) -> tuple[tuple[int, Int32s], ...]:
        tables = [(slot, table) for slot, table in take(pages) if slot not in sent]
        sent.update(slot for slot, _ in tables)
        return tuple(tables)

    monkeypatch.setattr(SequencePages, "take_tables", send_once)
    with pytest.raises(IndexError, match="out of bounds"):
        play(made())


def test_a_slot_that_two_sequences_have_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Placement._run

    def share_slot(placement: Placement, sequence: Sequence) -> None:
        run(placement, sequence)
        sequence.slot = 1

    monkeypatch.setattr(Placement, "_run", share_slot)
    with pytest.raises(AssertionError, match="in a slot that has sampled nothing"):
        play(made())


def test_a_sequence_that_goes_on_in_another_slot_without_beginning_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sequence, "begins", property(lambda _: False, lambda *_: None))
    with pytest.raises(AssertionError, match="in which nothing began"):
        play(made())
