"""Continuous batching: what runs when, and that every answer is the oracle's."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from buckets import Bucket, Grid, StepShape
from jaxengine.batch import StepResult
from jaxengine.errors import ConfigError
from tests.harness import EOS, Rig, make_grid, make_request


def prompt(length: int, start: int = 1) -> list[int]:
    return [(start + 7 * i) % EOS for i in range(length)]


def test_a_request_alone_yields_the_oracles_tokens() -> None:
    rig = Rig()
    rig.add(make_request("a", prompt(19), max_tokens=9))
    rig.run()
    rig.assert_oracle()
    assert len(rig.collected["a", 0].tokens) == 9


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("caching", [False, True])
def test_mixed_requests_in_both_modes(deterministic: bool, caching: bool) -> None:
    rig = Rig(deterministic=deterministic, caching=caching, num_pages=18)
    rig.add(
        make_request("long", prompt(50), max_tokens=4),
        make_request("short", prompt(3), max_tokens=12),
        make_request("shared", [*prompt(24), 9], max_tokens=5),
        make_request("several", prompt(26), n=3, max_tokens=6, seed=5),
        make_request("scored", prompt(21), prompt_logprobs=2, logprobs=1, max_tokens=3),
        make_request("one", [5], n=2, max_tokens=3),
    )
    rig.run()
    rig.assert_oracle()


class TestSteps:
    def test_decode_rows_come_first_and_prefill_rows_take_the_rest_of_the_budget(self) -> None:
        rig = Rig(max_num_batched_tokens=10)
        rig.add(make_request("a", prompt(4), max_tokens=8))
        rig.step()
        rig.add(make_request("b", prompt(30, start=2)))
        batch = rig.step()
        assert batch is not None
        assert [row.tokens for row in batch.decode] == [(rig.collected["a", 0].tokens[0],)]
        assert sum(len(row.tokens) for row in batch.prefill) == 8  # 9 are left; a row ends at 8
        assert all(row.sampling is None for row in batch.prefill)

    def test_rows_of_one_prompt_share_a_step_and_only_the_last_is_sampled(self) -> None:
        rig = Rig(grid=make_grid(max_num_seqs=4, prefill=[(4, 8)]))
        rig.add(make_request("a", prompt(27)))
        batch = rig.step()
        assert batch is not None
        assert [len(row.tokens) for row in batch.prefill] == [8, 8, 8, 3]
        assert [row.start for row in batch.prefill] == [0, 8, 16, 24]
        assert [len(row.pages) for row in batch.prefill] == [2, 4, 6, 7]
        assert [row.sampling is not None for row in batch.prefill] == [False, False, False, True]

    def test_the_last_uncached_token_of_a_prompt_rides_in_the_decode_bucket(self) -> None:
        rig = Rig()
        rig.add(make_request("a", prompt(9)))
        rig.run()
        rig.add(make_request("b", prompt(9)))
        batch = rig.step()
        assert batch is not None
        assert batch.prefill == ()
        assert batch.decode[0].start == 8

    def test_a_lone_prompt_ignores_the_threshold_and_others_cap_it(self) -> None:
        rig = Rig(threshold=8, grid=make_grid(max_num_seqs=4, prefill=[(4, 8)]))
        rig.add(make_request("a", prompt(60)))
        alone = rig.step()
        assert alone is not None
        assert sum(len(row.tokens) for row in alone.prefill) == 32
        rig.add(make_request("b", prompt(5, start=3)))
        beside = rig.step()
        assert beside is not None
        assert [len(row.tokens) for row in beside.prefill] == [8, 5]
        rig.run()
        rig.assert_oracle()

    def test_nothing_to_do_is_no_batch(self) -> None:
        assert Rig().scheduler.schedule() is None

    def test_real_and_padded_tokens_are_counted_by_shape(self) -> None:
        rig = Rig(grid=make_grid(max_num_seqs=4, prefill=[(4, 8)]))
        rig.add(make_request("a", prompt(27), max_tokens=3))
        rig.run()
        stats = rig.scheduler.stats
        prefill, decode = StepShape(Bucket(4, 8), None), StepShape(None, Bucket(1, 1))
        assert {shape: dataclasses.astuple(count) for shape, count in stats.shapes.items()} == {
            prefill: (1, 27, 32),
            decode: (2, 2, 2),
        }
        assert (stats.num_tokens, stats.num_padded_tokens) == (29, 34)
        assert (stats.num_running, stats.num_waiting, stats.num_preemptions) == (0, 0, 0)


class TestPromptLogprobs:
    def test_the_prompt_is_cut_into_single_tokens_in_the_decode_bucket(self) -> None:
        rig = Rig(max_num_seqs=4)
        rig.add(make_request("a", prompt(6), prompt_logprobs=1))
        first, second = rig.step(), rig.step()
        assert first is not None
        assert second is not None
        assert first.prefill == ()
        targets = [row.sampling and row.sampling.target for row in (*first.decode, *second.decode)]
        assert targets == [*prompt(6)[1:], None]
        assert [row.start for row in (*first.decode, *second.decode)] == list(range(6))

    def test_the_prefix_cache_is_not_read(self) -> None:
        rig = Rig()
        rig.add(make_request("a", prompt(20)))
        rig.run()
        rig.add(make_request("b", prompt(20), prompt_logprobs=0))
        rig.run()
        rig.assert_oracle()
        assert len(rig.collected["b", 0].prompt_logprobs) == 19

    def test_what_was_reported_before_a_preemption_is_not_reported_again(self) -> None:
        rig = Rig(num_pages=9, page_size=4, max_num_seqs=3, caching=False)
        rig.add(make_request("a", prompt(8), max_tokens=20), make_request("b", prompt(15), prompt_logprobs=1))
        rig.run()
        assert rig.scheduler.stats.num_preemptions > 0
        rig.assert_oracle()

    def test_prompts_in_prefill_rows_go_on_beside_them(self) -> None:
        rig = Rig(max_num_seqs=4, max_num_batched_tokens=8, num_pages=80)
        rig.add(make_request("scored", prompt(60), prompt_logprobs=1), make_request("plain", prompt(40, start=2)))
        for _ in range(10):
            batch = rig.step()
            assert batch is not None
            assert batch.decode
            assert batch.prefill


class TestSeveralSequences:
    def test_the_prompt_is_computed_once_even_without_a_prefix_cache(self) -> None:
        rig = Rig(caching=False)
        rig.add(make_request("a", prompt(21), n=4, max_tokens=5, seed=3))
        rig.run()
        rig.assert_oracle()
        # 21 prompt tokens, the last of them again for 3 children, and 4 tokens computed on by each sequence.
        assert rig.scheduler.stats.num_tokens == 21 + 3 + 4 * 4

    def test_the_prompt_is_shared_when_there_is_room_for_one_at_a_time(self) -> None:
        rig = Rig(caching=False, max_num_seqs=1)
        rig.add(make_request("a", prompt(21), n=4, max_tokens=2))
        rig.run()
        rig.assert_oracle()
        assert rig.scheduler.stats.num_tokens == 21 + 3 + 4

    def test_a_shared_prompt_gives_way_when_pages_run_out(self) -> None:
        # 5 of 6 pages hold the prompt, and a child needs its own copy of the last one.
        rig = Rig(num_pages=7, page_size=4, max_num_seqs=2)
        rig.add(make_request("a", prompt(19), n=3, max_tokens=5), make_request("b", prompt(22, start=2)))
        rig.run()
        rig.assert_oracle()

    def test_forks_do_not_wait_for_another_prompt(self) -> None:
        rig = Rig(max_num_batched_tokens=16, num_pages=60)
        rig.add(make_request("a", prompt(5), n=3), make_request("long", prompt(90, start=2)))
        for _ in range(3):
            rig.step()
        assert {key for key in rig.collected if key[0] == "a"} == {("a", 0), ("a", 1), ("a", 2)}
        assert ("long", 0) not in rig.collected

    def test_sequences_with_another_seed_differ(self) -> None:
        rig = Rig()
        rig.add(make_request("a", prompt(5), n=3, seed=2**63 - 2))
        rig.run()
        rig.assert_oracle()
        assert len({tuple(rig.collected["a", index].tokens) for index in range(3)}) == 3

    def test_many_sequences_are_made_one_by_one(self) -> None:
        rig = Rig(max_num_seqs=2)
        rig.add(make_request("a", prompt(5), n=1000, max_tokens=1))
        for _ in range(3):
            rig.step()
        assert rig.scheduler.stats.num_waiting <= 2
        rig.abort("a")
        assert not rig.scheduler.has_unfinished
        assert rig.ledger.usage == 0


class TestPreemption:
    def test_the_least_urgent_gives_way_and_is_computed_again(self) -> None:
        rig = Rig(num_pages=9, page_size=4, caching=False)
        rig.add(make_request("a", prompt(12), max_tokens=16), make_request("b", prompt(12, start=2), max_tokens=16))
        order: list[str] = []
        while rig.scheduler.has_unfinished:
            rig.step()
            order += [
                key[0]
                for key, known in rig.collected.items()
                if known.finish_reason is not None and key[0] not in order
            ]
        assert order == ["a", "b"]
        assert rig.scheduler.stats.num_preemptions >= 1
        rig.assert_oracle()

    def test_priority_decides_who_gives_way(self) -> None:
        rig = Rig(num_pages=9, page_size=4, policy="priority")
        rig.add(
            make_request("late", prompt(12), max_tokens=16, priority=1),
            make_request("early", prompt(12, start=2), max_tokens=16, priority=0),
        )
        rig.run()
        rig.assert_oracle()
        assert rig.scheduler.stats.num_preemptions >= 1
        assert list(rig.collected) == [("early", 0), ("late", 0)]

    def test_a_sequence_that_fills_the_pool_alone_ends_with_length(self) -> None:
        rig = Rig(num_pages=5, page_size=4, max_model_len=90)
        rig.add(make_request("a", prompt(10), max_tokens=50))
        rig.run()
        rig.assert_oracle()
        known = rig.collected["a", 0]
        assert known.finish_reason == "length"
        assert len(known.tokens) == 7  # 16 places, and the last token needs none

    def test_newcomers_leave_room_for_running_sequences_to_grow(self) -> None:
        rig = Rig(num_pages=9, page_size=4, max_num_seqs=4, caching=False)
        rig.add(make_request("a", prompt(12), max_tokens=4))
        rig.step()
        rig.add(make_request("b", prompt(20, start=2), max_tokens=2))  # 5 of the 5 pages left
        rig.run()
        assert rig.scheduler.stats.num_preemptions == 0


class TestEndings:
    def test_abort_takes_exactly_one_request(self) -> None:
        rig = Rig()
        rig.add(*(make_request(name, prompt(9), n=2, max_tokens=9) for name in ("1", "11", "0_1")))
        rig.step()
        assert rig.scheduler.abort("1")
        assert not rig.scheduler.abort("1")
        assert not rig.scheduler.abort("")
        rig.aborted.add("1")
        rig.run()
        rig.assert_oracle()

    def test_abort_while_the_step_is_under_way(self) -> None:
        rig = Rig()
        rig.add(make_request("a", prompt(9)), make_request("b", prompt(9, start=2)))
        batch = rig.scheduler.schedule()
        assert batch is not None
        rig.abort("a")
        result = rig.runner.sample(batch, rig.runner.forward(batch), {}).wait()
        updates = rig.scheduler.commit(batch, result)
        assert [update.request_id for update in updates] == ["b"]
        rig.ledger.check()

    def test_stop_ends_one_sequence_and_leaves_its_siblings(self) -> None:
        rig = Rig()
        rig.add(make_request("a", prompt(9), n=2, max_tokens=8))
        for _ in range(4):
            rig.step()
        rig.scheduler.stop("a", 0)
        rig.scheduler.stop("a", 0)
        rig.scheduler.stop("unknown", 0)
        rig.run()
        assert rig.collected["a", 0].finish_reason is None
        assert rig.collected["a", 1].finish_reason == "length"

    def test_abort_all_leaves_nothing(self) -> None:
        rig = Rig()
        rig.add(*(make_request(name, prompt(9), n=3) for name in "abcdef"))
        rig.step()
        rig.step()
        assert sorted(rig.scheduler.abort_all()) == list("abcdef")
        assert not rig.scheduler.has_unfinished
        assert rig.ledger.usage == 0

    def test_updates_say_what_came_from_the_prefix_cache_and_how_often_it_was_preempted(self) -> None:
        rig = Rig()
        rig.add(make_request("a", prompt(21)))
        rig.run()
        rig.add(make_request("b", prompt(21), n=2, max_tokens=1))
        batch = rig.scheduler.schedule()
        assert batch is not None
        result = rig.runner.sample(batch, rig.runner.forward(batch), {}).wait()
        (update,) = rig.scheduler.commit(batch, result)
        assert (update.num_cached_tokens, update.num_preemptions, update.first_scheduled_time) == (20, 0, 1.0)
        assert (update.finish_reason, update.stop_reason) == ("length", None)


class TestContract:
    def test_commit_takes_the_batch_in_flight_once(self) -> None:
        rig = Rig()
        rig.add(make_request("a", prompt(3)))
        batch = rig.scheduler.schedule()
        assert batch is not None
        result = StepResult(np.array([1], np.int32), (None,))
        with pytest.raises(ValueError, match="once"):
            rig.scheduler.commit(dataclasses.replace(batch), result)
        with pytest.raises(RuntimeError, match="in flight"):
            rig.scheduler.schedule()
        with pytest.raises(ValueError, match="1 sampled rows, its result 2 tokens"):
            rig.scheduler.commit(batch, StepResult(np.array([1, 2], np.int32), (None, None)))
        rig.scheduler.commit(batch, result)
        with pytest.raises(ValueError, match="once"):
            rig.scheduler.commit(batch, result)

    def test_pages_that_were_lost_are_an_error_and_not_an_endless_wait(self) -> None:
        rig = Rig(num_pages=10)
        rig.ledger.add(10_000, [1] * 20, salt=None)
        rig.ledger.grow(10_000, 20)
        rig.add(make_request("a", prompt(30)))
        with pytest.raises(RuntimeError, match="does not fit 9 free pages: pages were lost"):
            rig.scheduler.schedule()

    def test_a_grid_that_is_too_small_is_refused(self) -> None:
        with pytest.raises(ConfigError, match=r"at most 2 decode rows, fewer than max_num_seqs \(4\)"):
            Rig(grid=make_grid(max_num_seqs=2))
        with pytest.raises(ConfigError, match="no prefill bucket"):
            Rig(grid=Grid([StepShape(None, Bucket(4, 1))]))
