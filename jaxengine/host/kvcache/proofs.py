"""What is true of the ledger's accounts at any time, whatever was done before. `Ledger.check` asks for all of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from jaxengine.host.kvcache.holding import GroupPages, Holding
from jaxengine.host.kvcache.pages import SINK, LedgerError
from jaxengine.host.kvcache.pool import PagePool
from jaxengine.host.kvcache.prefix import Prefixes


def check_pool(number: int, pool: PagePool, holdings: Collection[Holding]) -> None:
    """Free, idle and held pages are all pages, each once; counts equal holders.

    Raises:
        LedgerError: the message names the pages.
    """
    check_held(
        f"pool {number}",
        pool,
        Counter(page for holding in holdings for group in holding.groups if group.pool is pool for page in group.held),
    )


def check_held(who: str, pool: PagePool, holders: Mapping[int, int]) -> None:
    """The same of a pool of which it is known how often each page is held.

    Raises:
        LedgerError: the message names the pages of `who`.
    """
    free, idle = pool.pages.free_pages(), pool.index.idle_pages()
    states = Counter([*free, *idle, *holders])
    if SINK in states:
        raise LedgerError(f"{who}: the sink, page {SINK}, was handed out")
    if twice := [page for page, count in states.items() if count > 1]:
        raise LedgerError(f"{who}: pages {sorted(twice)} are more than one of free, idle and held")
    if lost := set(range(1, pool.num_pages)) - states.keys():
        raise LedgerError(f"{who}: pages {sorted(lost)} are neither free, idle nor held")
    if stray := states.keys() - set(range(pool.num_pages)):
        raise LedgerError(f"{who}: there are no pages {sorted(stray)}")
    for page, count in enumerate(pool.pages.references):
        if count != holders.get(page, 0):
            raise LedgerError(f"{who}: page {page} counts {count} holders and has {holders.get(page, 0)}")
    if stray := {page for page in free if page in pool.index}:
        raise LedgerError(f"{who}: free pages {sorted(stray)} can still be found by their content")


def check_holdings(holdings: Mapping[int, Holding], *, page_size: int) -> None:
    """Every sequence holds pages for the tokens that it covers, all that it still sees, and shows what it holds.

    Raises:
        LedgerError: the message names the sequence.
    """
    for sequence_id, holding in holdings.items():
        for number, (group, shown) in enumerate(zip(holding.groups, holding.view.tolist(), strict=True)):
            _check_group(f"sequence {sequence_id}", number, group, shown, page_size=page_size)


def _check_group(who: str, number: int, group: GroupPages, shown: list[int], *, page_size: int) -> None:
    fitting = len(group.ids) == -(-group.num_tokens // page_size)
    if not fitting or len(set(group.held)) != len(group.held):
        raise LedgerError(f"{who} covers {group.num_tokens} tokens of group {number} with pages {group.ids}")
    if SINK in group.held or any(group.ids[: group.num_dropped]):
        raise LedgerError(f"{who} has given back {group.num_dropped} pages of group {number} and shows {group.ids}")
    if group.num_dropped > group.first_seen(group.num_tokens, page_size):
        raise LedgerError(f"{who} has given back pages of group {number} that it still sees")
    if shown[: len(group.ids)] != group.ids or any(shown[len(group.ids) :]):
        raise LedgerError(f"{who} shows pages {shown}, holds {group.ids}")


def check_announced(prefixes: Prefixes, holdings: Collection[Holding]) -> None:
    """What is announced is what sequences are about to compute.

    Raises:
        LedgerError: it is not.
    """
    if prefixes.announced != Counter(holding.announced for holding in holdings if holding.announced):
        raise LedgerError("announced pages are not those that sequences are about to compute")
