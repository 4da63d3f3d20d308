"""Blocks of the host's memory: what goes there, what is found there, what is given up for it."""

from __future__ import annotations

from collections import Counter

import pytest

from jaxengine.contract.batch import FromHost, ToHost
from jaxengine.contract.page_name import PageName
from jaxengine.contract.tiers import Load, Loaded, Save
from jaxengine.host.kvcache import Ledger, LedgerError, PagePool
from jaxengine.host.kvcache.host_tier import HostTier
from jaxengine.host.kvcache.prefix import Prefixes

PROMPT = list(range(100, 113))  # three pages of 4 and one token more


def entries(count: int, *, stem: int = 0):
    prefixes = Prefixes(hash=lambda data: data[-24:])
    return [prefixes.entry(b"parent", [stem, number, 0, 0]) for number in range(count)]


def test_what_leaves_is_found_when_its_move_was_made() -> None:
    tier, (one, *_) = HostTier([3]), entries(1)
    [blocks] = tier.blocks
    blocks.leave(7, one, 0)
    assert blocks.find(one, 0) is None
    assert (blocks.num_free, blocks.num_arriving) == (2, 1)
    blocks.leave(8, one, 0)  # it is on its way
    assert tier.take_moves() == (ToHost(0, 7, 0),)
    assert blocks.find(one, 0) == 0
    assert blocks.find(one, 1) is None
    blocks.leave(9, one, 0)  # it is there
    assert tier.take_moves() == ()
    blocks.check(Counter())


def test_the_block_that_was_idle_for_longest_is_given_up_and_none_that_is_held() -> None:
    tier, found = HostTier([3]), entries(6)
    [blocks] = tier.blocks
    for page, entry in enumerate(found[:3], 1):
        blocks.leave(page, entry, 0)
    tier.take_moves()
    first, second, _ = (blocks.find(entry, 0) for entry in found[:3])
    assert blocks.find(found[0], 0) == first  # looked at last
    blocks.hold(second)
    blocks.leave(4, found[3], 0)
    blocks.leave(5, found[4], 0)
    blocks.leave(6, found[5], 0)  # there is no block that is not held
    assert len(tier.take_moves()) == 2
    assert [blocks.find(entry, 0) is not None for entry in found] == [False, True, False, True, True, False]
    blocks.check(Counter([second]))
    with pytest.raises(LedgerError, match="counted as held"):
        blocks.check(Counter())
    blocks.let_go(second)
    blocks.check(Counter())


def test_no_more_leaves_with_a_step_than_the_device_may_hold() -> None:
    tier = HostTier([9], most_leaving=2)
    for page, entry in enumerate(entries(3), 1):
        tier.blocks[0].leave(page, entry, 0)
    assert len(tier.take_moves()) == 2
    assert tier.underway.num_dropped == 1
    tier.blocks[0].leave(4, entries(1, stem=1)[0], 0)
    assert len(tier.take_moves()) == 1


def test_a_snapshot_counts_as_all_that_a_launch_takes() -> None:
    tier, (one, two) = HostTier([9], most_leaving=20, snapshots=3), entries(2)
    pages, snapshots = tier.blocks
    snapshots.leave(1, one, 1)
    snapshots.leave(2, two, 1)
    for page, entry in enumerate(entries(6, stem=1), 1):
        pages.leave(page, entry, 0)
    assert Counter(move.pool for move in tier.take_moves()) == {1: 1, 0: 4}


def test_a_page_that_is_still_to_be_written_does_not_leave() -> None:
    """Moves to the host are made before those from it: what the page held before would be kept under another name."""
    tier, (one, two) = HostTier([3]), entries(2)
    [blocks] = tier.blocks
    blocks.leave(7, one, 0)
    tier.take_moves()
    tier.write([FromHost(0, 0, 8)])
    blocks.leave(8, two, 0)
    assert tier.take_moves() == (FromHost(0, 0, 8),)
    assert tier.underway.num_dropped == 1
    blocks.leave(8, two, 0)
    assert tier.take_moves() == (ToHost(0, 8, 1),)


def test_what_arrives_is_offered_to_outer_stores_after_its_move() -> None:
    tier, (one,) = HostTier([3], outer=True), entries(1)
    tier.blocks[0].leave(7, one, 2)
    assert tier.take_later() == []
    tier.take_moves()
    assert tier.take_later() == [Save(0, 0, PageName(2, *one))]


def test_what_is_loaded_is_found_and_what_is_not_there_leaves_a_free_block() -> None:
    tier, (one, two) = HostTier([1, 4]), entries(2)
    names = [PageName(1, *entry) for entry in (one, two)]
    assert all(tier.blocks[1].load(name) for name in names)
    assert tier.blocks[1].load(names[0])  # it is on its way
    assert not tier.blocks[1].load(PageName(1, b"", b"", b""))  # half of the blocks are for what comes
    assert tier.take_later() == [Load(1, block, name) for block, name in enumerate(names)]
    assert tier.is_loading
    assert tier.loaded(Loaded(1, 0, "disk")) == names[0]
    assert tier.loaded(Loaded(1, 1, None)) == names[1]
    assert not tier.is_loading
    assert tier.blocks[1].source(0) == "disk"
    assert (tier.blocks[1].find(one, 1), tier.blocks[1].find(two, 1)) == (0, None)
    assert tier.blocks[1].num_free == 3
    tier.blocks[1].hold(0)
    tier.blocks[1].let_go(0)
    assert tier.blocks[1].source(0) == "host"
    tier.check(())


def test_what_was_forgotten_is_not_found_when_it_comes() -> None:
    tier, (one, two) = HostTier([3]), entries(2)
    tier.blocks[0].load(PageName(0, *one))
    tier.blocks[0].leave(5, two, 0)
    tier.forget()
    assert tier.take_moves() == ()
    tier.loaded(Loaded(0, 0, "disk"))
    assert tier.blocks[0].find(one, 0) is None
    assert tier.blocks[0].num_free == 3
    tier.check(())


def test_filled_pages_are_written_through_while_nothing_more_urgent_leaves() -> None:
    ledger = Ledger([PagePool(9)], 4, tier=(tier := HostTier([8], most_leaving=2, outer=True)))
    fill(ledger, 1, PROMPT)
    assert len(tier.take_moves()) == 2
    assert len(tier.take_later()) == 2
    fill(ledger, 2, list(range(200, 232)))  # the third page is evicted before its turn comes
    assert [len(tier.take_moves()) for _ in range(6)] == [2, 2, 2, 2, 1, 0]
    assert not tier.has_pending or tier.take_later()
    ledger.check()


def fill(ledger: Ledger, sequence_id: int, tokens: list[int]) -> None:
    """Compute and publish a sequence, and forget it."""
    ledger.add(sequence_id, tokens, ledger.chain(None))
    assert ledger.grow(sequence_id, len(tokens))
    ledger.commit(sequence_id, tokens, len(tokens))
    ledger.release(sequence_id)


def test_a_prefix_goes_to_the_host_when_its_pages_are_needed_and_comes_back_to_others() -> None:
    ledger = Ledger([PagePool(5)], 4, tier=(tier := HostTier([8])))
    fill(ledger, 1, PROMPT)
    fill(ledger, 2, list(range(200, 216)))  # takes all four pages
    leaving = tier.take_moves()
    assert len([move for move in leaving if isinstance(move, ToHost)]) == 3
    ledger.check()
    assert ledger.add(3, PROMPT, ledger.chain(None), from_host=False) == 0
    ledger.release(3)
    assert ledger.add(3, PROMPT, ledger.chain(None)) == 12
    assert ledger.pages_needed(3, len(PROMPT)) == (4,)
    ledger.release(3)  # before it has any page
    ledger.check()
    assert ledger.add(4, PROMPT, ledger.chain(None)) == 12
    assert ledger.grow(4, len(PROMPT), start=12)
    pages = ledger.pages(4)[0].tolist()
    assert ledger.coming(4) == tuple(
        FromHost(0, move.block, page)
        for move, page in zip(sorted(leaving, key=lambda move: move.page), pages[:3], strict=True)
    )
    ledger.check()
    assert ledger.add(5, PROMPT, ledger.chain(None)) == 0  # it waits for what another brings
    assert ledger.awaits(5)
    ledger.release(5)
    ledger.arrived(4, PROMPT)
    assert ledger.coming(4) == ()
    assert ledger.add(5, PROMPT, ledger.chain(None)) == 12
    assert ledger.pages(5)[0].tolist() == pages[:3]
    for sequence in (4, 5):
        ledger.release(sequence)
    ledger.check()
    assert (ledger.stats.hits, ledger.stats.external_hits) == (0, 12)


def test_a_window_takes_from_the_host_only_what_it_sees() -> None:
    ledger = Ledger([PagePool(20, (None, 6))], 4, tier=HostTier([30]))
    fill(ledger, 1, PROMPT)
    for sequence in range(2, 6):
        fill(ledger, sequence, list(range(300 + 50 * sequence, 313 + 50 * sequence)))
    assert ledger.tier is not None
    ledger.tier.take_moves()
    assert ledger.add(9, PROMPT, ledger.chain(None)) == 12
    assert ledger.grow(9, len(PROMPT), start=12, ahead=4)
    full, window = ledger.pages(9).tolist()
    assert window[0] == 0
    coming = {move.page for move in ledger.coming(9)}
    assert coming == {*full[:3], *window[1:3]}
    ledger.check()
    ledger.release(9)
    ledger.check()


def test_nothing_is_forgotten_while_a_sequence_waits() -> None:
    ledger = Ledger([PagePool(5)], 4, tier=HostTier([8]))
    fill(ledger, 1, PROMPT)
    fill(ledger, 2, list(range(200, 216)))
    assert ledger.tier is not None
    ledger.tier.take_moves()
    ledger.add(3, PROMPT, ledger.chain(None))
    ledger.grow(3, len(PROMPT), start=12)
    assert not ledger.reset_prefix_cache()
    ledger.release(3)
    assert ledger.reset_prefix_cache()
    ledger.check()
    assert ledger.add(4, PROMPT, ledger.chain(None)) == 0
