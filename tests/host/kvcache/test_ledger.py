import pytest

from jaxengine.host.kvcache import SINK, Ledger, LedgerError, PagePool, PrefixStats
from jaxengine.host.kvcache.prefix import Prefixes


def admit(ledger, sequence_id, tokens, *, salt=None, **options):
    """Add a sequence, compute all its tokens and publish them; return how many were cached."""
    cached = ledger.add(sequence_id, tokens, ledger.chain(salt), **options)
    assert ledger.grow(sequence_id, len(tokens))
    ledger.commit(sequence_id, tokens, len(tokens))
    ledger.check()
    return cached


def only_group(ledger, sequence_id=1):
    [group] = ledger._holdings[sequence_id].groups
    return group


def pages(ledger, sequence_id):
    [group] = ledger.pages(sequence_id).tolist()
    return group


def test_pages_cover_the_tokens():
    ledger = Ledger([PagePool(10)], 4)
    ledger.add(1, [0] * 9, ledger.chain(None))
    assert pages(ledger, 1) == []
    assert ledger.pages_needed(1, 9) == (3,)
    assert ledger.grow(1, 9)
    assert len(pages(ledger, 1)) == 3
    assert SINK not in pages(ledger, 1)
    assert ledger.pages_needed(1, 12) == (0,)
    assert ledger.pages_needed(1, 13) == (1,)
    assert ledger.pools.num_available == (6,)
    assert ledger.pools.usage == pytest.approx(3 / 9)


def test_growth_that_does_not_fit_changes_nothing():
    ledger = Ledger([PagePool(4)], 4)
    ledger.add(1, [0] * 8, ledger.chain(None))
    assert ledger.grow(1, 8)
    before = pages(ledger, 1)
    assert not ledger.grow(1, 17)
    assert pages(ledger, 1) == before
    assert ledger.pools.num_available == (1,)
    ledger.check()


def test_growing_to_less_changes_nothing():
    ledger = Ledger([PagePool(4)], 4)
    ledger.add(1, [0] * 8, ledger.chain(None))
    assert ledger.grow(1, 8)
    assert ledger.grow(1, 3)
    assert len(pages(ledger, 1)) == 2


def test_a_prefix_is_found_page_by_page():
    ledger = Ledger([PagePool(20)], 4)
    assert admit(ledger, 1, list(range(10))) == 0
    assert admit(ledger, 2, [*range(8), 99, 99, 99]) == 8
    assert pages(ledger, 2)[:2] == pages(ledger, 1)[:2]
    assert pages(ledger, 2)[2] != pages(ledger, 1)[2]
    assert admit(ledger, 3, [*range(7), 99, 99]) == 4


def test_one_token_is_always_left_to_compute():
    ledger = Ledger([PagePool(20)], 4)
    admit(ledger, 1, list(range(8)))
    assert admit(ledger, 2, list(range(8))) == 4
    assert admit(ledger, 3, list(range(9))) == 8


@pytest.mark.parametrize(
    ("options", "cached"),
    [
        ({}, 16),
        ({"max_cached": 11}, 8),
        ({"max_cached": 0}, 0),
    ],
)
def test_what_is_taken_from_the_cache_can_be_bounded(options, cached):
    ledger = Ledger([PagePool(30)], 4)
    admit(ledger, 1, list(range(18)))
    assert admit(ledger, 2, list(range(18)), **options) == cached


def test_a_cached_prefix_outlives_its_sequence():
    ledger = Ledger([PagePool(10)], 4)
    admit(ledger, 1, list(range(9)))
    kept = pages(ledger, 1)[:2]
    ledger.release(1)
    assert ledger.pools.num_available == (9,)
    assert ledger.pools.usage == 0
    assert admit(ledger, 2, list(range(9))) == 8
    assert pages(ledger, 2)[:2] == kept


def test_the_deepest_page_of_a_chain_is_evicted_first():
    ledger = Ledger([PagePool(5)], 4)
    admit(ledger, 1, list(range(16)))
    ledger.release(1)
    admit(ledger, 2, [77])
    ledger.release(2)
    assert admit(ledger, 3, list(range(16))) == 12


def test_the_chain_used_last_is_evicted_last():
    ledger = Ledger([PagePool(7)], 4)
    old, new = [1] * 8, [2] * 8
    admit(ledger, 1, old)
    admit(ledger, 2, new)
    ledger.release(1)
    ledger.release(2)
    admit(ledger, 3, [*old, 0])
    ledger.release(3)
    admit(ledger, 4, [7] * 16)
    ledger.release(4)
    assert ledger.add(5, [*old, 0], ledger.chain(None)) == 8
    assert ledger.add(6, [*new, 0], ledger.chain(None)) == 0


def test_held_pages_are_never_evicted():
    ledger = Ledger([PagePool(4)], 4)
    admit(ledger, 1, list(range(8)))
    ledger.add(2, [9] * 8, ledger.chain(None))
    assert not ledger.grow(2, 8)
    ledger.release(2)
    assert ledger.add(3, list(range(9)), ledger.chain(None)) == 8


@pytest.mark.parametrize(("mine", "other"), [("a", "b"), ("a", None), ("", None)])
def test_salts_do_not_share(mine, other):
    ledger = Ledger([PagePool(20)], 4)
    admit(ledger, 1, list(range(9)), salt=mine)
    assert admit(ledger, 2, list(range(9)), salt=other) == 0
    assert admit(ledger, 3, list(range(9)), salt=mine) == 8


def test_a_disabled_cache_finds_nothing():
    ledger = Ledger([PagePool(20)], 4, enable_prefix_caching=False)
    assert admit(ledger, 1, list(range(9))) == 0
    ledger.release(1)
    assert admit(ledger, 2, list(range(9))) == 0
    assert ledger.stats == PrefixStats(0, 0)


def test_of_equal_pages_computed_at_once_the_first_is_kept():
    ledger = Ledger([PagePool(20)], 4)
    tokens = list(range(9))
    for sequence_id in (1, 2):
        ledger.add(sequence_id, tokens, ledger.chain(None))
        ledger.grow(sequence_id, 9)
    first, second = pages(ledger, 1), pages(ledger, 2)
    ledger.commit(1, tokens, 9)
    ledger.commit(2, tokens, 9)
    ledger.check()
    ledger.release(1)
    ledger.release(2)
    ledger.check()
    ledger.add(3, tokens, ledger.chain(None))
    assert pages(ledger, 3) == first[:2]
    assert not set(second) & set(pages(ledger, 3))


def test_a_colliding_hash_leaks_nothing():
    ledger = Ledger([PagePool(20)], 4, prefixes=Prefixes(hash=lambda data: data[-1:]))
    admit(ledger, 1, [1, 2, 3, 4, 5])
    assert admit(ledger, 2, [9, 2, 3, 4, 5]) == 0


def test_pages_that_fill_up_while_decoding_are_published():
    ledger = Ledger([PagePool(20)], 4)
    tokens = [1, 2, 3]
    admit(ledger, 1, tokens)
    for token in (4, 5, 6, 7, 8, 9):
        tokens.append(token)
        ledger.grow(1, len(tokens))
        ledger.commit(1, tokens, len(tokens))
    assert admit(ledger, 2, tokens) == 8


def test_what_is_shared_is_full_and_what_is_written_is_ones_own():
    ledger = Ledger([PagePool(20)], 4)
    admit(ledger, 1, list(range(8)))
    assert admit(ledger, 2, list(range(8))) == 4, "a page is left to compute, though both are there"
    assert pages(ledger, 1)[0] == pages(ledger, 2)[0]
    assert pages(ledger, 1)[1] != pages(ledger, 2)[1]
    ledger.check()


def test_statistics_count_admissions():
    ledger = Ledger([PagePool(4)], 4)
    admit(ledger, 1, list(range(9)))
    assert ledger.stats == PrefixStats(queries=9, hits=0)
    for _ in range(3):
        assert ledger.add(2, list(range(12)), ledger.chain(None)) == 8
        assert not ledger.grow(2, 12)
        ledger.release(2)
    assert ledger.stats == PrefixStats(queries=9, hits=0)
    ledger.release(1)
    admit(ledger, 2, list(range(12)))
    assert ledger.stats == PrefixStats(queries=21, hits=8)


def test_reset_forgets_all_prefixes():
    ledger = Ledger([PagePool(20)], 4)
    admit(ledger, 1, list(range(9)))
    assert not ledger.reset_prefix_cache(), "a running sequence would publish pages from before the reset"
    assert ledger.add(2, list(range(9)), ledger.chain(None)) == 8
    ledger.release(1)
    ledger.release(2)
    assert ledger.reset_prefix_cache()
    ledger.check()
    assert ledger.pools.num_available == (19,)
    assert admit(ledger, 3, list(range(9))) == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda ledger: ledger.add(1, [1], ledger.chain(None)), "1 is registered already"),
        (lambda ledger: ledger.grow(5, 1), "5 is not registered"),
        (lambda ledger: ledger.release(5), "5 is not registered"),
        (lambda ledger: ledger.commit(1, [0] * 20, 16), "cannot have computed 16"),
        (lambda ledger: ledger.commit(1, [0] * 3, 12), "cannot have computed 12"),
    ],
)
def test_a_broken_contract_is_named(call, message):
    ledger = Ledger([PagePool(20)], 4)
    admit(ledger, 1, list(range(9)))
    with pytest.raises(LedgerError, match=message):
        call(ledger)
    ledger.check()


def test_the_page_size_is_checked():
    with pytest.raises(ValueError, match="at least 1 token, got 0"):
        Ledger([PagePool(4)], 0)


def lose(ledger):
    only_group(ledger).pool.pages.take()


def free_early(ledger):
    only_group(ledger).pool.pages.free(only_group(ledger).ids[0])


def miscount(ledger):
    only_group(ledger).pool.pages.share(only_group(ledger).ids[0])


def hand_out_sink(ledger):
    only_group(ledger).pool.pages.free(SINK)


def show_other_pages(ledger):
    only_group(ledger).ids[0], only_group(ledger).ids[1] = only_group(ledger).ids[1], only_group(ledger).ids[0]


def cover_too_little(ledger):
    only_group(ledger).num_tokens = 40


def leave_findable(ledger):
    page, pool = only_group(ledger).ids[0], only_group(ledger).pool
    ledger.release(1)
    pool.index.wake(page)
    pool.pages.free(page)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lose, "neither free, idle nor held"),
        (free_early, "more than one of free, idle and held"),
        (miscount, "counts 2 holders and has 1"),
        (hand_out_sink, "sink, page 0, was handed out"),
        (show_other_pages, "sequence 1 shows pages"),
        (cover_too_little, "sequence 1 covers 40 tokens"),
        (leave_findable, "can still be found"),
    ],
)
def test_check_finds_damage(damage, message):
    ledger = Ledger([PagePool(20)], 4)
    admit(ledger, 1, list(range(9)))
    damage(ledger)
    with pytest.raises(LedgerError, match=message):
        ledger.check()


def test_a_sequence_grows_in_all_pools_or_in_none():
    ledger = Ledger([PagePool(10), PagePool(4, (None, None))], 4)
    ledger.add(1, [0] * 9, ledger.chain(None))
    assert ledger.pages_needed(1, 9) == (3, 6)
    assert not ledger.grow(1, 9), "the second pool has three pages"
    assert ledger.pools.num_available == (9, 3)
    assert ledger.grow(1, 4)
    assert ledger.pages(1).tolist() == [[1], [1], [2]]
    assert ledger.pools.num_available == (8, 1)
    ledger.check()


def test_several_sequences_have_another_page_each_or_none_has():
    ledger = Ledger([PagePool(8)], 4)
    for sequence_id, length in ((1, 8), (2, 4), (3, 3)):
        ledger.add(sequence_id, [0] * length, ledger.chain(None))
        assert ledger.grow(sequence_id, length)
    before = pages(ledger, 1)
    assert ledger.append([1, 3]) is None, "there are positions left on a page"
    assert [table.tolist() for table in ledger.append([1, 2])] == [[[*before, 5]], [[3, 6]]]
    assert (ledger.covered(1), ledger.covered(2)) == (12, 8)
    assert ledger.append([1, 2]) is None, "there is one page left"
    assert (pages(ledger, 1), ledger.pools.num_available) == ([*before, 5], (1,))
    ledger.check()


def test_where_windows_are_each_sequence_grows_by_itself():
    ledger = Ledger([PagePool(8, (5,))], 4)
    ledger.add(1, [0] * 4, ledger.chain(None))
    assert ledger.grow(1, 4)
    assert ledger.append([1]) is None


@pytest.mark.parametrize(("share", "leaves"), [(9, True), (3, True), (2, False)])
def test_each_pool_keeps_its_reserve(share, leaves):
    ledger = Ledger([PagePool(19), PagePool(10)], 4)
    ledger.add(1, [0] * 24, ledger.chain(None))
    assert ledger.leaves(1, 24, reserve=lambda pages: pages // share) == leaves, "six of 18 pages, and of nine"
