"""Continuous batching: what runs when, and that every answer is the oracle's."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from buckets import Bucket
from jaxengine.contract.batch import StepResult
from jaxengine.contract.rows import Sample, Score
from jaxengine.errors import ConfigError
from jaxengine.options.speculation import NgramSpeculation
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
    def test_decoding_rows_come_first_and_prompts_take_the_rest_of_the_budget(self) -> None:
        rig = Rig(max_num_batched_tokens=10, max_in_flight=1)
        rig.add(make_request("a", prompt(4), max_tokens=8))
        rig.step()
        rig.add(make_request("b", prompt(30, start=2)))
        batch = rig.step()
        assert batch is not None
        assert [row.num_tokens for row in batch.rows] == [1, 9]
        assert batch.rows[0].tokens == (rig.collected["a", 0].tokens[0],)
        assert [row.want for row in batch.rows] == [Sample(), None]

    def test_a_prompt_is_one_row_and_only_its_end_is_sampled(self) -> None:
        rig = Rig(max_num_batched_tokens=20)
        rig.add(make_request("a", prompt(27)))
        first, second = rig.step(), rig.step()
        assert first is not None
        assert second is not None
        (row,), (rest,) = first.rows, second.rows
        assert (row.start, row.num_tokens, row.want) == (0, 20, None)
        assert (rest.start, rest.num_tokens, rest.want) == (20, 7, Sample())

    def test_any_mix_is_one_launch(self) -> None:
        rig = Rig(max_num_batched_tokens=16)
        rig.add(make_request("a", prompt(4), max_tokens=8), make_request("b", prompt(40, start=2)))
        rig.step()
        batch = rig.step()
        assert batch is not None
        assert batch.bucket == Bucket(4, 4)
        assert [row.num_tokens for row in batch.rows] == [1, 15]

    def test_a_sequence_has_one_slot_and_begins_there_once(self) -> None:
        rig = Rig(max_num_seqs=2)
        rig.add(*(make_request(name, prompt(5, start=ord(name)), max_tokens=3) for name in "abc"))
        begun: list[int] = []
        while rig.scheduler.has_unfinished:
            batch = rig.step()
            if batch is not None:
                begun += [state.slot for state in batch.begin]
                assert all(1 <= row.slot <= 2 for row in batch.rows)
        assert sorted(begun) == [1, 1, 2] or sorted(begun) == [1, 2, 2]

    def test_a_token_that_is_not_known_yet_is_taken_from_the_device(self) -> None:
        rig = Rig()
        rig.add(make_request("a", prompt(5), max_tokens=4))
        rows = [batch.rows[0] for _ in range(4) if (batch := rig.step()) is not None]
        assert [row.tokens is None for row in rows] == [False, True, True, True]
        assert [row.start for row in rows] == [0, 5, 6, 7]
        assert rig.step() is None  # all its tokens are planned
        rig.assert_oracle()

    def test_a_stop_that_is_found_late_costs_one_row(self) -> None:
        rig = Rig()
        request = make_request("a", prompt(5), max_tokens=9)
        rig.add(request)
        rig.run()
        tokens = rig.collected["a", 0].tokens
        again = Rig()
        again.add(make_request("a", prompt(5), max_tokens=9, stop_token_ids=[tokens[3]]))
        again.run()
        again.assert_oracle()
        assert again.steps == 1 + tokens.index(tokens[3]) + 1

    def test_the_last_uncached_token_of_a_prompt_is_a_row_of_one(self) -> None:
        rig = Rig()
        rig.add(make_request("a", prompt(9)))
        rig.run()
        rig.add(make_request("b", prompt(9)))
        batch = rig.step()
        assert batch is not None
        (row,) = batch.rows
        assert (row.start, row.num_tokens, batch.bucket) == (8, 1, Bucket(1, 1))

    def test_a_lone_prompt_ignores_the_threshold_and_others_cap_it(self) -> None:
        rig = Rig(threshold=8)
        rig.add(make_request("a", prompt(60)))
        alone = rig.step()
        assert alone is not None
        assert [row.num_tokens for row in alone.rows] == [32]
        rig.add(make_request("b", prompt(5, start=3)))
        beside = rig.step()
        assert beside is not None
        assert [row.num_tokens for row in beside.rows] == [8, 5]
        rig.run()
        rig.assert_oracle()

    def test_nothing_to_do_is_no_batch(self) -> None:
        assert Rig().scheduler.schedule() is None

    def test_real_and_padded_tokens_are_counted_by_bucket(self) -> None:
        rig = Rig()
        rig.add(make_request("a", prompt(27), max_tokens=3))
        rig.run()
        stats = rig.scheduler.stats
        assert stats.shapes == {
            Bucket(4, 8): (1, 27, 32),
            Bucket(1, 1): (2, 2, 2),
        }
        assert (stats.num_tokens, stats.num_padded_tokens) == (29, 34)
        assert (stats.num_running, stats.num_waiting, stats.num_preemptions) == (0, 0, 0)


class TestSharing:
    def test_prompts_that_begin_alike_and_come_together_compute_what_they_share_once(self) -> None:
        rig = Rig(num_pages=400, page_size=8, max_num_seqs=16, max_num_batched_tokens=64, max_model_len=250)
        for number in range(16):
            rig.add(make_request(f"r{number}", [*prompt(200), number], max_tokens=1))
        rig.run()
        rig.assert_oracle()
        assert rig.scheduler.stats.num_tokens == 201 + 15

    def test_pages_are_found_as_soon_as_their_step_is_launched(self) -> None:
        rig = Rig(page_size=4)
        rig.add(make_request("a", prompt(21), max_tokens=9))
        batch = rig.scheduler.schedule()
        assert batch is not None
        rig.add(make_request("b", prompt(21)))
        following = rig.scheduler.schedule()
        assert following is not None
        assert [row.start for row in following.rows] == [21, 20]

    def test_pages_that_output_fills_are_found_by_the_next_turn(self) -> None:
        rig = Rig(page_size=4)
        rig.add(make_request("a", prompt(5), max_tokens=12))
        rig.run()
        rig.add(make_request("b", [*prompt(5), *rig.collected["a", 0].tokens, 9]))
        batch = rig.step()
        assert batch is not None
        assert [row.start for row in batch.rows] == [16]

    def test_who_waits_for_a_page_is_overtaken_and_who_has_none_to_wait_for_runs(self) -> None:
        rig = Rig(page_size=4, max_num_batched_tokens=16, num_pages=60)
        rig.add(make_request("a", prompt(30)), make_request("alike", prompt(29)), make_request("other", [9, 8, 7]))
        first = rig.step()
        assert first is not None
        assert [row.num_tokens for row in first.rows] == [16]
        rig.abort("a")
        second = rig.step()
        assert second is not None
        assert sorted(row.start for row in second.rows) == [0, 16]
        rig.run()
        rig.assert_oracle()


class TestPromptLogprobs:
    def test_the_places_of_a_prompt_are_scored_as_far_as_they_may_be_kept(self) -> None:
        rig = Rig(max_num_seqs=4)
        rig.add(make_request("a", prompt(6), prompt_logprobs=1))
        first, second = rig.step(), rig.step()
        assert first is not None
        assert second is not None
        (row,), (rest,) = first.rows, second.rows
        assert (row.start, row.want) == (0, Score(tuple(prompt(6)[1:5]), sample=False))
        assert (rest.start, rest.want) == (4, Score((prompt(6)[5],), sample=True))

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

    def test_other_prompts_go_on_beside_them(self) -> None:
        rig = Rig(max_num_seqs=4, max_num_batched_tokens=8, num_pages=80)
        rig.add(make_request("scored", prompt(60), prompt_logprobs=1), make_request("plain", prompt(40, start=2)))
        for _ in range(7):
            batch = rig.step()
            assert batch is not None
            assert [row.num_tokens for row in batch.rows] == [3, 5]


class TestSeveralSequences:
    @pytest.mark.parametrize("max_num_seqs", [1, 4])
    def test_the_pages_of_the_prompt_are_computed_once(self, max_num_seqs: int) -> None:
        rig = Rig(max_num_seqs=max_num_seqs)
        rig.add(make_request("a", prompt(21), n=4, max_tokens=5, seed=3))
        rig.run()
        rig.assert_oracle()
        # 21 prompt tokens, of which others find 5 pages of 4, and 4 tokens computed on by each sequence
        assert rig.scheduler.stats.num_tokens == 21 + 3 + 4 * 4

    def test_without_a_prefix_cache_each_computes_the_prompt(self) -> None:
        rig = Rig(caching=False)
        rig.add(make_request("a", prompt(21), n=4, max_tokens=5, seed=3))
        rig.run()
        rig.assert_oracle()
        assert rig.scheduler.stats.num_tokens == 4 * 21 + 4 * 4

    def test_a_prompt_is_scored_once(self) -> None:
        rig = Rig()
        rig.add(make_request("a", prompt(21), n=3, max_tokens=2, prompt_logprobs=1))
        rig.run()
        rig.assert_oracle()
        assert [len(rig.collected["a", index].prompt_logprobs) for index in range(3)] == [20, 0, 0]

    def test_shared_pages_give_way_when_there_are_too_few(self) -> None:
        rig = Rig(num_pages=7, page_size=4, max_num_seqs=2)
        rig.add(make_request("a", prompt(19), n=3, max_tokens=5), make_request("b", prompt(22, start=2)))
        rig.run()
        rig.assert_oracle()

    def test_they_do_not_wait_for_a_later_prompt(self) -> None:
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
        assert rig.ledger.pools.usage == 0


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
        rig.add(make_request("a", prompt(8)), make_request("b", prompt(8, start=2)))
        batch = rig.scheduler.schedule()
        assert batch is not None
        rig.abort("a")
        result = rig.runner.launch(batch).wait()
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
        assert rig.ledger.pools.usage == 0


class TestContract:
    def test_commit_takes_the_batch_in_flight_once(self) -> None:
        rig = Rig()
        rig.add(make_request("a", prompt(3)))
        batch = rig.scheduler.schedule()
        assert batch is not None
        result = StepResult(np.array([1], np.int32), (None,))
        with pytest.raises(ValueError, match="once"):
            rig.scheduler.commit(dataclasses.replace(batch), result)
        rig.scheduler.schedule()
        with pytest.raises(RuntimeError, match="2 steps in flight"):
            rig.scheduler.schedule()
        with pytest.raises(ValueError, match="kept 1 places, its result has 2 tokens"):
            rig.scheduler.commit(batch, StepResult(np.array([1, 2], np.int32), (None, None)))
        rig.scheduler.commit(batch, result)
        with pytest.raises(ValueError, match="once"):
            rig.scheduler.commit(batch, result)

    def test_pages_that_were_lost_are_an_error_and_not_an_endless_wait(self) -> None:
        rig = Rig(num_pages=10)
        rig.ledger.add(10_000, [1] * 20, rig.ledger.chain(None))
        rig.ledger.grow(10_000, 20)
        rig.add(make_request("a", prompt(30)))
        with pytest.raises(RuntimeError, match="does not fit 4 free pages though nothing runs: pages were lost"):
            rig.scheduler.schedule()

    def test_a_grid_that_is_too_small_is_refused(self) -> None:
        with pytest.raises(ConfigError, match=r"largest bucket has 2 rows, fewer than max_num_seqs \(4\)"):
            Rig(grid=make_grid(max_num_seqs=2))

    def test_drafts_are_refused_in_deterministic_mode(self) -> None:
        with pytest.raises(ConfigError, match="leave out speculative_config or deterministic"):
            Rig(deterministic=True, speculation=NgramSpeculation(num_tokens=3))
