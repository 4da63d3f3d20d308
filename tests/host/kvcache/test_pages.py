import pytest

from jaxengine.host.kvcache.pages import SINK, LedgerError, Pages


def test_every_page_but_the_sink_is_handed_out_once():
    pages = Pages(5)
    taken = [pages.take() for _ in range(4)]
    assert sorted(taken) == [1, 2, 3, 4]
    assert SINK not in taken
    assert pages.num_free == 0


def test_holders_are_counted():
    pages = Pages(3)
    page = pages.take()
    pages.share(page)
    assert pages.drop(page) is False
    assert pages.drop(page) is True
    pages.free(page)
    assert pages.take() == page, "last in, first out"


@pytest.mark.parametrize("num_pages", [1, 0, -3])
def test_a_pool_needs_a_page_beside_the_sink(num_pages):
    with pytest.raises(ValueError, match=f"num_pages={num_pages}"):
        Pages(num_pages)


def test_a_page_freed_twice_is_found():
    pages = Pages(4)
    page = pages.take()
    pages.free(page)
    pages.free(page)
    with pytest.raises(LedgerError, match=rf"\[{page}\] are in the free list more than once"):
        pages.free_pages()
