"""Every request ends within a bound, whatever arrives before or after it."""

from __future__ import annotations

from tests.harness import EOS, Rig, make_request


def prompt(length: int, start: int = 1) -> list[int]:
    return [(start + 7 * i) % EOS for i in range(length)]


def test_a_long_prompt_behind_a_stream_of_short_ones() -> None:
    rig = Rig(num_pages=40, max_num_seqs=4, max_num_batched_tokens=8, max_model_len=96)
    for number in range(8):
        rig.add(make_request(f"before {number}", prompt(6, start=number), max_tokens=4))
    rig.add(make_request("long", prompt(80), max_tokens=4))
    for number in range(100):
        rig.add(make_request(f"after {number}", prompt(6, start=number), max_tokens=4))
        rig.step()
        if ("long", 0) in rig.collected and rig.collected["long", 0].finish_reason:
            break
    # 8 short ones before it in rounds of 4, and at least 4 of its 80 prompt tokens a step once it runs.
    assert number < 50
    rig.run()
    rig.assert_oracle()


def test_a_long_prompt_that_needs_most_of_the_pool() -> None:
    rig = Rig(num_pages=21, page_size=4, max_num_seqs=4, caching=False)
    for number in range(4):
        rig.add(make_request(f"before {number}", prompt(8, start=number), max_tokens=6))
    rig.add(make_request("long", prompt(70), max_tokens=2))
    for number in range(60):
        rig.add(make_request(f"after {number}", prompt(8, start=number), max_tokens=6))
        rig.step()
        if ("long", 0) in rig.collected and rig.collected["long", 0].finish_reason:
            break
    assert number < 25


def test_short_prompts_behind_a_stream_of_long_ones() -> None:
    rig = Rig(num_pages=60, max_num_seqs=4, max_num_batched_tokens=16, threshold=8)
    rig.add(make_request("long", prompt(80), max_tokens=3), make_request("short", prompt(5, start=2), max_tokens=3))
    for number in range(30):
        rig.add(make_request(f"after {number}", prompt(80, start=number), max_tokens=3))
        rig.step()
        if ("short", 0) in rig.collected and rig.collected["short", 0].finish_reason:
            break
    assert number < 6


def test_a_prompt_goes_on_in_deterministic_mode_when_others_leave_it_one_token() -> None:
    rig = Rig(deterministic=True, max_num_seqs=4, max_num_batched_tokens=4)
    for number in range(3):
        rig.add(make_request(f"r{number}", prompt(4, start=number), max_tokens=30))
    for _ in range(5):
        rig.step()
    rig.add(make_request("late", prompt(20, start=9), max_tokens=2))
    for _ in range(11):
        rig.step()
    assert rig.collected["late", 0].finish_reason == "length"
