"""What pages hold beside tokens: any other picture, place or part of one is other content."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from jaxengine.contract.media import PromptMedia
from jaxengine.contract.media_content import MediaContent
from tests.media_items import make_item


def content(*items: tuple[str, list[int]], start: int = 0, end: int = 8) -> bytes:
    media = PromptMedia(items=tuple(make_item(name, places) for name, places in items))
    return MediaContent(media).between(start, end)


def test_text_has_no_content() -> None:
    assert content(("cat", [8, 9]), end=8) == b""
    assert content(("cat", [8, 9]), start=16, end=24) == b""
    assert content(("cat", [1, 9]), start=4, end=8) == b""


def test_content_says_which_part_of_what_stands_where() -> None:
    one = content(("cat", [2, 3, 4]))
    assert one == content(("cat", [2, 3, 4]), ("dog", [8]))
    assert one != content(("dog", [2, 3, 4]))
    assert one != content(("cat", [3, 4, 5]))
    assert content(("cat", [*range(6, 12)]), start=8, end=16) != content(("cat", [*range(7, 13)]), start=8, end=16)
    assert content(("cat", [2]), ("dog", [3])) != content(("dog", [2]), ("cat", [3]))


def test_places_count_from_the_page() -> None:
    assert content(("cat", [1, 2])) == content(("cat", [9, 10]), start=8, end=16)


def test_what_is_read_is_all_that_cross_attention_reads() -> None:
    sounds = [make_item(name, unplaced=4) for name in ("a", "b")]
    reads = {
        MediaContent(PromptMedia(items=items)).read for items in ((), (*sounds,), (*sounds[::-1],), (*sounds[:1],))
    }
    assert len(reads) == 4


@given(st.lists(st.integers(0, 40), min_size=1, unique=True).map(sorted), st.integers(1, 9))
def test_each_place_is_in_one_page(places: list[int], size: int) -> None:
    pages = [content(("cat", places), start=start, end=start + size) for start in range(0, 41, size)]
    held = [len([place for place in places if start <= place < start + size]) for start in range(0, 41, size)]
    assert [len(page) for page in pages] == [32 + 4 * (2 + count) if count else 0 for count in held]
