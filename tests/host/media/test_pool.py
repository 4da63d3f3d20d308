"""Pages of embeddings: found, held, given up for others, and accounted for."""

from __future__ import annotations

import random

import pytest

from jaxengine.contract.media import MediaItem
from jaxengine.host.media.pool import EmbeddingPool, Key, PooledItem
from tests.media_items import make_item


def wanted(name: str, count: int = 4, salt: str | None = None) -> tuple[Key, MediaItem]:
    item = make_item(name, range(count))
    return (item.digest, salt), item


def encode(*items: PooledItem) -> None:
    for pooled in items:
        pooled.item = None


def test_an_item_is_found_by_its_digest_and_salt() -> None:
    pool = EmbeddingPool(20, page_size=2)
    [cat] = pool.take([wanted("cat")]) or []
    [again, dog, salted] = pool.take([wanted("cat"), wanted("dog"), wanted("cat", salt="tenant")]) or []
    assert again is cat
    assert cat.holders == 2
    assert len({*cat.pages.tolist(), *dog.pages.tolist(), *salted.pages.tolist()}) == 6
    pool.check([cat, again, dog, salted])


def test_an_item_named_twice_has_its_pages_once() -> None:
    pool = EmbeddingPool(3, page_size=2)
    taken = pool.take([wanted("cat"), wanted("cat")])
    assert taken is not None
    assert taken[0] is taken[1]
    assert pool.usage == 1.0


def test_the_one_idle_for_longest_is_given_up() -> None:
    pool = EmbeddingPool(7, page_size=2)
    items = pool.take([wanted("cat"), wanted("dog"), wanted("house")]) or []
    encode(*items)
    for pooled in (items[1], items[0], items[2]):
        assert pool.drop(pooled)
    assert pool.usage == 0.0
    [tree] = pool.take([wanted("tree")]) or []
    assert wanted("dog")[0] not in pool
    assert wanted("cat")[0] in pool
    assert set(tree.pages) == set(items[1].pages)


def test_what_is_wanted_and_idle_is_not_given_up_for_the_rest() -> None:
    pool = EmbeddingPool(5, page_size=2)
    items = pool.take([wanted("cat"), wanted("dog")]) or []
    encode(*items)
    for pooled in items:
        pool.drop(pooled)
    assert pool.take([wanted("cat"), wanted("tree"), wanted("lake")]) is None
    pool.check([])
    taken = pool.take([wanted("tree"), wanted("cat")])
    assert taken is not None
    assert taken[1].encoded
    pool.check(taken)


def test_what_was_never_encoded_is_not_found() -> None:
    pool = EmbeddingPool(5, page_size=2)
    [cat] = pool.take([wanted("cat")]) or []
    assert pool.drop(cat)
    assert wanted("cat")[0] not in pool
    pool.check([])


@pytest.mark.parametrize("seed", range(30))
def test_no_page_is_lost(seed: int) -> None:
    draw = random.Random(seed)
    pool = EmbeddingPool(draw.randint(5, 30), page_size=draw.randint(1, 4))
    held: list[PooledItem] = []
    for _ in range(300):
        if held and draw.random() < 0.5:
            pool.drop(held.pop(draw.randrange(len(held))))
        elif draw.random() < 0.1:
            encode(*held)
        else:
            names = [draw.choice("abcdefgh") for _ in range(draw.randint(1, 3))]
            held += pool.take([wanted(name, count=1 + ord(name) % 5) for name in names]) or []
        pool.check(held)
    for pooled in held:
        pool.drop(pooled)
    pool.forget()
    assert pool.usage == 0.0
