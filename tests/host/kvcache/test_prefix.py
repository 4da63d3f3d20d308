import pytest

from jaxengine.host.kvcache.pages import LedgerError
from jaxengine.host.kvcache.prefix import Prefixes, PrefixIndex, keyed_hash

PREFIXES = Prefixes()


def chain(*pages, salt=None, prefixes=PREFIXES):
    """The entries of consecutive pages from the start of a sequence."""
    parent, entries = prefixes.root(salt), []
    for tokens in pages:
        entries.append(prefixes.entry(parent, tokens))
        parent = entries[-1].digest
    return entries


def test_equal_content_after_an_equal_prefix_is_found():
    index = PrefixIndex()
    first, second = chain([1, 2], [3, 4])
    index.insert(first, 0, 7)
    index.insert(second, 0, 9)
    assert [index.find(entry) for entry in chain([1, 2], [3, 4])] == [7, 9]


@pytest.mark.parametrize(
    ("pages", "salt"),
    [(([3, 4],), None), (([0, 0], [3, 4]), None), (([1, 2], [3, 4]), ""), (([1, 2], [3, 4]), "tenant")],
    ids=["no prefix", "another prefix", "empty salt", "another salt"],
)
def test_equal_tokens_in_another_context_are_not_found(pages, salt):
    index = PrefixIndex()
    for page, entry in enumerate(chain([1, 2], [3, 4]), start=1):
        index.insert(entry, 0, page)
    assert index.find(chain(*pages, salt=salt)[-1]) is None


def test_digests_differ_between_processes():
    assert Prefixes().root(None) != Prefixes().root(None), "the hash is keyed with a secret"


def test_digests_are_equal_under_a_secret_that_is_shared():
    first, second, other = (Prefixes(hash=keyed_hash(secret)) for secret in (b"shared", b"shared", b"another"))
    assert chain([1, 2], [3, 4], prefixes=first) == chain([1, 2], [3, 4], prefixes=second)
    assert chain([1, 2], prefixes=first)[0].digest != chain([1, 2], prefixes=other)[0].digest


def test_any_unicode_is_a_salt():
    assert PREFIXES.root("\ud800") != PREFIXES.root("ü")


def test_a_collision_of_digests_is_not_a_match():
    index, prefixes = PrefixIndex(), Prefixes(hash=lambda data: b"always the same")
    (mine,), (other,) = (chain(tokens, prefixes=prefixes) for tokens in ([1, 2], [8, 9]))
    index.insert(mine, 0, 3)
    assert index.find(other) is None
    index.insert(other, 0, 4)
    assert index.find(mine) == 3
    assert len(index) == 1


def test_the_first_page_of_equal_content_is_kept():
    index = PrefixIndex()
    (entry,) = chain([1, 2])
    index.insert(entry, 0, 3)
    index.insert(entry, 0, 5)
    assert index.find(entry) == 3
    assert 5 not in index


def test_the_longest_idle_page_is_evicted_first():
    index = PrefixIndex()
    entries = chain([1], [2], [3])
    for page, entry in enumerate(entries, start=1):
        index.insert(entry, 0, page)
        index.rest(page)
    index.wake(1)
    index.rest(1)
    assert [index.evict() for _ in range(3)] == [2, 3, 1]
    assert [index.find(entry) for entry in entries] == [None] * 3


def test_an_index_that_disagrees_with_itself_is_found():
    index = PrefixIndex()
    (entry,) = chain([1])
    index.insert(entry, 0, 1)
    index._pages[0, entry.digest] = 2
    with pytest.raises(LedgerError, match=r"disagree about pages \[1, 2\]"):
        index.idle_pages()


def test_an_idle_page_that_is_not_indexed_is_found():
    index = PrefixIndex()
    index.rest(4)
    with pytest.raises(LedgerError, match=r"\[4\] are not indexed"):
        index.idle_pages()
