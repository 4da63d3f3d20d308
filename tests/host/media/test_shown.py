"""How far rows reach in a prompt with pictures, what it needs of them, and what a slot is told."""

from __future__ import annotations

import numpy as np

from jaxengine.contract.media import PromptMedia
from jaxengine.host.media.pool import EmbeddingPool
from jaxengine.host.media.shown import NEVER, Shown, runs_of
from tests.media_items import make_item

CAT = make_item("cat", [2, 3, 4, 5])
DOG = make_item("dog", [8, 9, 11, 12])


def shown(*, sight: bool = False) -> Shown:
    return Shown(PromptMedia(items=(CAT, DOG), offset=3), "r", None, page_size=2, sight=sight)


def held(of: Shown, *numbers: int) -> Shown:
    pool = EmbeddingPool(20, page_size=2)
    taken = pool.take([(of.keys[number], of.media.items[number]) for number in numbers])
    assert taken is not None
    of.hold(dict(zip(numbers, taken, strict=True)))
    return of


def test_places_that_follow_each_other_are_a_run() -> None:
    assert runs_of(CAT) == [(2, 6)]
    assert runs_of(DOG) == [(8, 10), (11, 13)]
    assert runs_of(make_item("sound", unplaced=3)) == []


def test_rows_end_anywhere_without_sight() -> None:
    assert [shown().whole_end(end) for end in range(14)] == [*range(14)]
    assert not shown().has_runs(0)


def test_rows_do_not_end_within_what_sees_itself() -> None:
    seeing = shown(sight=True)
    assert [seeing.whole_end(end) for end in range(14)] == [0, 1, 2, 2, 2, 2, 6, 7, 8, 8, 10, 11, 11, 13]
    assert [seeing.next_end(end) for end in range(14)] == [0, 1, 2, 6, 6, 6, 6, 7, 8, 10, 10, 11, 13, 13]
    assert seeing.has_runs(12)
    assert not seeing.has_runs(13)


def test_an_item_is_needed_while_one_of_its_places_is_to_be_computed() -> None:
    assert [shown().needed(start) for start in (0, 5, 6, 12, 13)] == [[0, 1], [0, 1], [1], [1], []]


def test_rows_reach_to_the_first_place_that_is_not_encoded() -> None:
    waiting = held(shown(), 0, 1)
    assert waiting.ready_end == 2
    waiting.held[0].item = None
    assert waiting.ready_end == 8
    waiting.held[1].item = None
    assert waiting.ready_end == NEVER


def test_what_a_row_has_passed_is_let_go() -> None:
    running = held(shown(), 0, 1)
    assert running.take_passed(5) == []
    [cat] = running.take_passed(6)
    assert cat.key == running.keys[0]
    assert [*running.held] == [1]


def test_a_slot_is_told_where_embeddings_lie() -> None:
    slot = held(shown(sight=True), 1).slot()
    assert slot.places.tolist() == [2, 3, 4, 5, 8, 9, 11, 12]
    assert slot.embeddings.tolist() == [-1, -1, -1, -1, 2, 3, 4, 5]  # pages 1 and 2; the cat's are computed
    assert slot.spans.tolist() == [[2, 6], [8, 10], [11, 13]]
    assert (slot.offset, slot.pages, slot.num_read) == (3, None, 0)
    assert slot.embeddings.dtype == slot.places.dtype == slot.spans.dtype == np.int32


def test_a_sound_that_is_read_is_needed_always() -> None:
    sound = Shown(PromptMedia(items=(make_item("sound", unplaced=3),)), "r", None, page_size=2, sight=False)
    assert sound.needed(100) == [0]
    slot = held(sound, 0).slot()
    assert slot.pages is not None
    assert (slot.pages.tolist(), slot.num_read) == ([1, 2], 3)
    assert sound.ready_end == 0
    assert sound.take_passed(1000) == []
