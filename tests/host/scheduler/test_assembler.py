"""Whether prompts or decoding rows come first, step after step."""

from __future__ import annotations

import pytest

from tests.harness import EOS, Rig, make_rectangles, make_request


def prompt(length: int, start: int = 1) -> list[int]:
    return [(start + 7 * i) % EOS for i in range(length)]


def test_decoding_rows_wait_for_a_step_in_which_all_prompts_can_be_done() -> None:
    rig = Rig(max_num_batched_tokens=16)
    rig.add(*(make_request(name, prompt(8, start=at)) for at, name in enumerate("abcd")))
    steps = [[row.num_tokens for row in batch.rows] for _ in range(3) if (batch := rig.step()) is not None]
    assert steps == [[8, 8], [8, 8], [1, 1, 1, 1]]
    rig.run()
    rig.assert_oracle()


@pytest.mark.parametrize(("size", "takes"), [(7, [7, 7]), (9, [9, 5])])
def test_they_do_not_wait_where_prompts_have_room_beside_them_or_take_more_steps_all_the_same(
    size: int, takes: list[int]
) -> None:
    rig = Rig(max_num_batched_tokens=16)
    rig.add(*(make_request(name, prompt(8, start=at)) for at, name in enumerate("ab")))
    rig.add(*(make_request(name, prompt(size, start=at)) for at, name in enumerate("cd", 2)))
    rig.step()
    batch = rig.step()
    assert batch is not None
    assert [row.num_tokens for row in batch.rows] == [1, 1, *takes]


def test_they_wait_for_one_step_only() -> None:
    rig = Rig(max_num_batched_tokens=16, max_num_seqs=8, num_pages=80)
    rig.add(*(make_request(name, prompt(8, start=at), max_tokens=20) for at, name in enumerate("abcd")))
    steps = [[row.num_tokens for row in batch.rows] for _ in range(2) if (batch := rig.step()) is not None]
    rig.add(*(make_request(name, prompt(8, start=at)) for at, name in enumerate("ef", 4)))
    batch = rig.step()
    assert batch is not None
    assert [*steps, [row.num_tokens for row in batch.rows]] == [[8, 8], [8, 8], [1, 1, 1, 1, 8, 4]]


def test_they_do_not_wait_while_more_requests_do() -> None:
    rig = Rig(max_num_batched_tokens=16, max_num_seqs=8, num_pages=80)
    rig.add(*(make_request(name, prompt(8, start=at)) for at, name in enumerate("abcdef")))
    rig.step()
    batch = rig.step()
    assert batch is not None
    assert [row.num_tokens for row in batch.rows] == [1, 1, 8, 6]


def test_prompts_and_decoding_rows_take_turns_where_no_bucket_holds_much_of_both() -> None:
    rig = Rig(grid=make_rectangles(max_num_seqs=4), max_in_flight=1)
    rig.add(*(make_request(name, prompt(4, start=ord(name)), max_tokens=12) for name in "abc"))
    for _ in range(6):
        rig.step()
    rig.add(make_request("late", prompt(60)))
    rows = [[row.num_tokens for row in batch.rows] for _ in range(5) if (batch := rig.step()) is not None]
    assert rows == [[1, 1, 1, 1], [32], [1, 1, 1, 1], [26], [1, 1, 1, 1]]
    rig.run()
    rig.assert_oracle()
