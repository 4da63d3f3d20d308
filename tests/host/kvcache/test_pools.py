import pytest

from jaxengine.host.kvcache import Ledger, PagePool
from jaxengine.host.kvcache.pools import Pools


def test_every_page_is_held_idle_or_free():
    ledger, tokens = Ledger([PagePool(10), PagePool(10)], 4), list(range(9))
    pools = ledger.pools
    ledger.add(1, tokens, ledger.chain(None))
    assert ledger.grow(1, len(tokens))
    ledger.commit(1, tokens, len(tokens))
    assert (pools.num_pages, pools.num_held, pools.num_idle, pools.num_free) == (20, 6, 0, 12)
    ledger.release(1)
    assert (pools.num_held, pools.num_idle, pools.num_free) == (0, 4, 14)
    assert ledger.reset_prefix_cache()
    assert (pools.num_held, pools.num_idle, pools.num_free) == (0, 0, 18)


def test_the_fullest_pool_is_what_is_used():
    pools = Pools([PagePool(10), PagePool(4, (None, None))])
    for pool, taken in zip(pools, (1, 2), strict=True):
        for _ in range(taken):
            pool.take()
    assert pools.num_available == (8, 1)
    assert pools.usage == pytest.approx(2 / 3)


def test_what_the_least_pool_holds_is_what_all_hold():
    pools = Pools([PagePool(10), PagePool(6, (None, None))])
    assert pools.longest_sequence(page_size=4, ahead=4) == 2 * 4
    assert pools.tokens_held(page_size=4, ahead=4, max_model_len=4) == 2 * 4
    windowed = Pools([PagePool(10), PagePool(6, (3,))])
    assert windowed.longest_sequence(page_size=4, ahead=4) == 9 * 4, "a window of three takes three pages at most"


def test_groups_are_numbered_through_the_pools():
    pools = Pools([first := PagePool(10), second := PagePool(6, (3, None))])
    assert pools.groups == ((first, None), (second, 3), (second, None))
