import threading
import time

import numpy as np
import pytest

from jaxengine.contract.page_name import PageName
from jaxengine.contract.tiers import Answer, Ask, Load, Loaded, Save
from jaxengine.device.tiers import outer_transfers
from jaxengine.device.tiers.arena import Arena
from jaxengine.device.tiers.keys import Keys
from jaxengine.device.tiers.news import News
from jaxengine.device.tiers.outer_stores import OuterStores
from jaxengine.device.tiers.outer_transfers import OuterTransfers
from jaxengine.device.tiers.worker import Worker
from tests.device.tiers.blocks import BOUNDS
from tests.device.tiers.memory_store import MemoryStore

LAYOUT = {BOUNDS: ((2, 4, 2), np.dtype(np.float32))}


def name(number):
    return PageName(0, b"digest %d" % number, b"parent", b"tokens")


class Tier:
    """Blocks with a store in memory behind them."""

    def __init__(self, store):
        self.news, self.store = News(), store
        self.arena = Arena(0, 8, LAYOUT)
        self.in_order = Worker("in order", self.news.fail)
        stores = OuterStores(Keys(b"namespace", b"secret"), {0: LAYOUT}, [store])
        self.transfers = OuterTransfers(stores, [self.arena], self.in_order, self.news)

    def write(self, block, value):
        self.in_order.submit(lambda: self.arena.write(block, {BOUNDS: np.full((2, 4, 2), value, np.float32)}))

    def next(self, count=1):
        found, end = [], time.monotonic() + 60
        while len(found) < count:
            assert time.monotonic() < end
            self.news.wait(1.0)
            found += self.news.take()
        return found

    def close(self):
        self.in_order.close()
        self.transfers.close()
        self.in_order.close()


@pytest.fixture
def tier():
    tier = Tier(MemoryStore())
    yield tier
    tier.close()


def test_what_was_saved_is_found_and_loaded(tier):
    for number in range(3):
        tier.write(number, number)
        tier.transfers.save(Save(0, number, name(number)))
        tier.write(number, 99)  # which comes later, and is not what is saved
    end = time.monotonic() + 60
    while len(tier.store.blocks) < 3:
        assert time.monotonic() < end
        time.sleep(0.001)
    tier.transfers.ask(Ask(7, (name(0), name(5), name(2))))
    assert tier.next() == [Answer(7, (True, False, True))]
    tier.transfers.load(Load(0, 4, name(2)))
    tier.transfers.load(Load(0, 5, name(5)))
    assert set(tier.next(2)) == {Loaded(0, 4, "memory"), Loaded(0, 5, None)}
    assert (tier.arena.read(4)[BOUNDS] == 2).all()
    assert tier.news.traffic["memory to host"].bytes == 64
    assert tier.news.traffic["host to outer"].bytes == 3 * 64


def test_pages_under_way_are_saved_before_the_end():
    tier, seen = Tier(MemoryStore()), []
    tier.store.close = lambda: seen.append(len(tier.store.blocks))
    for number in range(8):
        tier.write(number, number)
        tier.transfers.save(Save(0, number, name(number)))
    tier.close()
    assert seen == [8]


def test_a_slow_store_gets_less_and_holds_nobody_up(monkeypatch):
    monkeypatch.setattr(outer_transfers, "SAVING_BYTES", 3 * 64)
    store, go = MemoryStore(), threading.Event()
    inner, stored = store.store, []

    def slow(key, block):
        go.wait(60)
        stored.append(key)
        return inner(key, block)

    store.store = slow
    tier = Tier(store)
    for number in range(8):
        tier.write(number, number)
        tier.transfers.save(Save(0, number, name(number)))
    tier.transfers.ask(Ask(1, (name(0),)))
    assert tier.next() == [Answer(1, (False,))]
    go.set()
    tier.close()
    assert len(stored) == 3


def test_a_page_of_other_weights_is_kept_under_their_keys(tier):
    """Weights are replaced between what asks for it and what does it."""
    before, go = tier.transfers._stores.keys, threading.Event()
    tier.in_order.submit(lambda: go.wait(60))
    tier.write(0, 1)
    tier.transfers.save(Save(0, 0, name(0)))
    tier.transfers._stores.renew(b"other weights")
    go.set()
    tier.transfers.ask(Ask(1, (name(0),)))
    assert tier.next() == [Answer(1, (False,))]
    end = time.monotonic() + 60
    while not tier.store.blocks:
        assert time.monotonic() < end
        time.sleep(0.001)
    assert list(tier.store.blocks) == [before.key(0, name(0).digest)]


def test_a_store_that_is_wrong_costs_hits(tier, caplog):
    def wrong(*arguments):
        raise RuntimeError("a fault of the store")

    tier.store.has = tier.store.fetch = tier.store.store = wrong
    tier.write(0, 1)
    tier.transfers.save(Save(0, 0, name(0)))
    tier.transfers.ask(Ask(1, (name(0), name(1))))
    tier.transfers.load(Load(0, 3, name(0)))
    assert set(tier.next(2)) == {Answer(1, (False, False)), Loaded(0, 3, None)}
