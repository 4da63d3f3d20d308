"""What sequences gain by the result of a step: its places dealt to them, drafts checked, ends found."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from jaxengine.contract.batch import RowLogprobs, StepResult
from jaxengine.contract.pooling import Pooled
from jaxengine.contract.rows import ONE, Pool, Row, Sample, Score, Want
from jaxengine.contract.updates import Admission
from jaxengine.host.scheduler.assembly import Assembly
from jaxengine.host.scheduler.drafts import Drafts
from jaxengine.host.scheduler.results import apply_result
from jaxengine.host.scheduler.sequence import Sequence, State
from jaxengine.host.scheduler.steady import Steady
from jaxengine.options.speculation import NgramSpeculation
from tests.fakes import embedding_of, mix
from tests.harness import Rig, make_request, make_sequence

SPECULATION = NgramSpeculation(num_tokens=3, min_length=1, max_length=2)
NOBODY = Steady(0)


def launched(*asked: tuple[Sequence, Want, tuple[int, ...]]) -> Assembly:
    """A step in flight that runs these tokens of these sequences."""
    step = Assembly()
    for sequence, want, tokens in asked:
        row = Row(sequence.slot, tokens, len(tokens), sequence.num_computed, want)
        step.asked.append((sequence, row))
        step.num_kept += row.num_kept
        sequence.pending += not isinstance(want, Score) or want.sample
        sequence.num_computed += len(tokens)
        sequence.state = State.RUNNING
    return step


def result_of(*tokens: int) -> StepResult:
    """Of each place, a token and a log probability to know it by."""
    logprobs = tuple(RowLogprobs(float(-at), 1, (), ()) for at in range(len(tokens)))
    return StepResult(np.array(tokens, np.int32), logprobs)


def drafts_of(sequence: Sequence) -> Drafts:
    assert sequence.drafts is not None
    return sequence.drafts


def drafted(*drafts: int, **options: object) -> tuple[Sequence, Assembly]:
    """A sequence whose drafts are in flight, and their step."""
    sequence = make_sequence(make_request("a", [1, 2, 3], max_tokens=9, **options), speculation=SPECULATION)  # type: ignore[arg-type]
    sequence.num_computed, sequence.ahead = 2, len(drafts)
    return sequence, launched((sequence, Sample(1 + len(drafts)), (3, *drafts)))


class TestPlaces:
    def test_each_row_takes_as_many_as_it_kept(self) -> None:
        scored, ended, plain = (make_sequence(make_request(name, [1, 2, 3], logprobs=1)) for name in "abc")
        step = launched(
            (scored, Score((2, 3), sample=True), (1, 2, 3)), (ended, Sample(2), (3, 4)), (plain, ONE, (1, 2, 3))
        )
        ended.state = State.FINISHED
        applied = apply_result(step, result_of(0, 0, 10, 20, 21, 30), NOBODY)
        assert [update.request_id for update in applied.updates] == ["a", "c"]
        assert applied.ended == []
        first, second = applied.updates
        assert ([row.logprob for row in first.prompt_logprobs], first.token_ids) == ([0, -1], (10,))
        assert (second.token_ids, second.logprobs[0].logprob) == ((30,), -5)
        assert (scored.tokens[-1], scored.pending, ended.num_tokens) == (10, 0, 3)

    def test_a_row_that_is_scored_alone_gains_no_token(self) -> None:
        sequence = make_sequence(make_request("a", [1, 2, 3], prompt_logprobs=1))
        step = launched((sequence, Score((2,), sample=False), (1,)))
        (update,) = apply_result(step, result_of(0), NOBODY).updates
        assert (update.token_ids, len(update.prompt_logprobs), update.finish_reason) == ((), 1, None)
        assert (sequence.num_tokens, sequence.pending) == (3, 0)

    def test_another_number_of_them_is_refused_and_changes_nothing(self) -> None:
        sequence = make_sequence(make_request("a", [1, 2, 3]))
        step = launched((sequence, ONE, (1, 2, 3)))
        with pytest.raises(ValueError, match="kept 1 places, its result has 2 tokens"):
            apply_result(step, result_of(10, 11), NOBODY)
        assert (sequence.num_tokens, sequence.pending) == (3, 1)

    def test_a_pooled_prompt_shares_steps_and_yields_its_last_state(self) -> None:
        rig = Rig(max_num_batched_tokens=12)
        prompt = tuple(range(1, 21))
        pooled = dataclasses.replace(make_request("pooled", prompt, max_tokens=1), pooling=Pooled(task="embed"))
        rig.add(pooled, make_request("a", range(3, 8)))
        embeddings = []
        take = rig.scheduler.commit

        def note(*arguments: object) -> list[object]:
            updates = take(*arguments)
            embeddings.extend(update.pooled for update in updates if update.pooled is not None)
            return updates

        rig.scheduler.commit = note
        wants = []
        while rig.scheduler.has_unfinished:
            batch = rig.step()
            wants += [] if batch is None else [row.want for row in batch.rows]
        assert wants.count(Pool()) == 1
        states = [mix(prompt[: position + 1]) for position in range(20)]
        assert [embedding.tolist() for embedding in embeddings] == [embedding_of(mix(states)).tolist()]
        assert rig.collected["pooled", 0].tokens == []
        assert rig.collected["pooled", 0].finish_reason == "stop"


class TestEnds:
    @pytest.mark.parametrize("publishes_at", [4, 5])
    def test_who_may_have_filled_a_page_is_told(self, publishes_at: int) -> None:
        plain, other = (make_sequence(make_request(name, [1, 2, 3], max_tokens=9)) for name in "ab")
        step = launched((other, ONE, (3,)))
        step.plain.append(plain)
        step.num_kept += 1
        plain.pending, plain.state = 1, State.RUNNING
        plain.publishes_at = other.publishes_at = publishes_at
        applied = apply_result(step, result_of(10, 20), NOBODY)
        assert [update.token_ids for update in applied.updates] == [(10,), (20,)]
        assert applied.filled == ([plain, other] if publishes_at == 4 else [])

    def test_who_ends_is_left_to_the_caller(self) -> None:
        sequence = make_sequence(make_request("a", [1, 2, 3], max_tokens=1))
        applied = apply_result(launched((sequence, ONE, (1, 2, 3))), result_of(10), NOBODY)
        (update,) = applied.updates
        assert (update.token_ids, update.finish_reason) == ((10,), "length")
        assert applied.ended == [sequence]
        assert sequence.state is State.RUNNING

    def test_a_grammar_that_gave_up_ends_its_sequence_without_the_token(self) -> None:
        sequence = make_sequence(make_request("a", [1, 2, 3]))
        step = launched((sequence, ONE, (1, 2, 3)))
        sequence.grammar_error = "nothing is left"
        (update,) = apply_result(step, result_of(10), NOBODY).updates
        assert (update.token_ids, update.finish_reason, update.stop_reason) == ((), "error", "nothing is left")

    def test_updates_say_what_came_from_the_prefix_cache_and_how_often_it_was_preempted(self) -> None:
        rig = Rig()
        rig.add(make_request("a", range(1, 22)))
        rig.run()
        rig.add(make_request("b", range(1, 22), max_tokens=1))
        batch = rig.scheduler.schedule()
        assert batch is not None
        result = rig.runner.launch(batch).wait()
        (update,) = rig.scheduler.commit(batch, result)
        assert update.admission == Admission(20, 0, 1.0)
        assert (update.finish_reason, update.stop_reason) == ("length", None)


class TestDrafts:
    def test_what_follows_a_wrong_one_is_dropped(self) -> None:
        sequence, step = drafted(4, 5, 6)
        (update,) = apply_result(step, result_of(4, 9, -1, -1), NOBODY).updates
        assert (update.token_ids, update.num_draft_tokens, update.num_accepted_tokens) == ((4, 9), 3, 1)
        assert (sequence.num_tokens, sequence.num_computed, sequence.ahead) == (5, 4, 0)

    def test_what_follows_the_end_is_dropped(self) -> None:
        sequence, step = drafted(1, 2, 3, stop_token_ids=[2])
        (update,) = apply_result(step, result_of(1, 2, 3, 1), NOBODY).updates
        assert (update.token_ids, len(update.logprobs)) == ((1, 2), 2)
        assert (update.finish_reason, update.stop_reason, update.num_accepted_tokens) == ("stop", 2, 3)
        assert sequence.proposal == ()

    def test_new_ones_are_proposed_as_far_as_there_is_room(self) -> None:
        sequence, step = drafted(1, 2, 3)
        apply_result(step, result_of(1, 2, 3, 1), NOBODY)
        assert sequence.proposal == (2, 3, 1)
        apply_result(launched((sequence, ONE, (1,))), result_of(2), NOBODY)
        apply_result(launched((sequence, ONE, (2,))), result_of(3), NOBODY)
        assert sequence.max_length - sequence.num_tokens == 3
        assert sequence.proposal == (1, 2)

    def test_a_sequence_rests_after_one_of_which_nothing_was_right(self) -> None:
        sequence, step = drafted(4, 5, 6)
        apply_result(step, result_of(1, -1, -1, -1), NOBODY)
        assert (sequence.tokens[-1], sequence.proposal) == (1, ())
        drafts_of(sequence).propose(np.array([1, 2, 1]), room=9)
        assert sequence.proposal == (), "though there is something to propose"

    def test_right_ones_are_several_tokens_of_one_step(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("tests.fakes._scores", lambda state, position, *_: np.eye(96, dtype=int)[position % 3])
        rig = Rig(speculation=SPECULATION, num_pages=60)
        rig.add(make_request("a", [0, 1, 2, 0, 1, 2, 0], max_tokens=14))
        rig.run()
        assert rig.collected["a", 0].tokens == [at % 3 for at in range(7, 21)]
        assert rig.steps <= 5

    def test_wrong_ones_change_nothing(self) -> None:
        rig = Rig(speculation=SPECULATION, num_pages=60)
        rig.add(*(make_request(f"r{number}", [5, 6, 7] * 6, seed=number, temperature=1.0) for number in range(3)))
        rig.run()
        rig.assert_oracle()

    def test_whose_mask_depends_on_its_output_is_not_looked_up_for(self) -> None:
        rig = Rig(speculation=SPECULATION, num_pages=60)
        rig.add(make_request("a", [5] * 12, max_tokens=9, min_tokens=3, eos_token_id=1))
        while rig.scheduler.has_unfinished:
            batch = rig.step()
            assert batch is None or all(row.num_kept <= 1 for row in batch.rows)
        rig.assert_oracle()
