"""Statistics of steps: every token, gap and ending is counted exactly once, and nothing is kept when nobody listens."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from buckets import Bucket
from jaxengine.contract.batch import Batch
from jaxengine.contract.metrics import DraftStats, FinishedRequest, FinishedSequence, FirstToken, StepStats
from jaxengine.contract.request import Request, SequenceHistory
from jaxengine.contract.rows import Rows
from jaxengine.contract.updates import Admission, SequenceUpdate
from jaxengine.errors import EngineDeadError
from jaxengine.host.engine.core import EngineCore
from jaxengine.host.engine.recorder import Recorder
from tests.fakes import FakePending, FakeRunner
from tests.harness import VOCAB, Rig, make_request
from tests.host.engine.test_core import make_core


class Heard:
    """Remembers everything."""

    def __init__(self) -> None:
        self.steps: list[StepStats] = []
        self.sequences: list[FinishedSequence] = []
        self.requests: list[FinishedRequest] = []
        self.lost: Counter[str] = Counter()

    def on_step(self, stats: StepStats) -> None:
        self.steps.append(stats)

    def on_finished(self, sequence: FinishedSequence, request: FinishedRequest | None) -> None:
        self.sequences.append(sequence)
        if request is not None:
            self.requests.append(request)

    def on_lost(self, finish_reason: str, num_sequences: int) -> None:
        self.lost[finish_reason] += num_sequences

    @property
    def first_tokens(self) -> list[FirstToken]:
        return [first for step in self.steps for first in step.first_tokens]

    @property
    def num_gaps(self) -> int:
        return sum(count for step in self.steps for count in step.gaps.values())


def run(core: EngineCore, *requests: Request) -> Heard:
    heard = Heard()
    core.recorder.listen(heard)
    for request in requests:
        core.add(request)
    for _ in range(500):
        if not core.has_unfinished:
            return heard
        core.step()
    raise AssertionError("not done after 500 steps")


def test_tokens_and_gaps_of_requests_that_run_together() -> None:
    rig = Rig()
    heard = run(make_core(rig), *(make_request(f"r{i}", range(i, i + 10), max_tokens=5) for i in range(7)))
    assert len(heard.first_tokens) == 7
    assert sum(first.num_prompt_tokens for first in heard.first_tokens) == 70
    assert heard.num_gaps == 7 * 4
    assert sum(step.num_generated_tokens for step in heard.steps) == 35
    assert sum(step.num_tokens for step in heard.steps) == rig.scheduler.stats.num_tokens
    assert [sequence.finish_reason for sequence in heard.sequences] == ["length"] * 7
    assert all(sequence.num_generated_tokens == sequence.max_tokens == 5 for sequence in heard.sequences)
    assert [(request.n, request.max_generated_tokens) for request in heard.requests] == [(1, 5)] * 7
    assert not heard.lost


def test_times_of_a_sequence_add_up() -> None:
    [sequence] = run(make_core(Rig()), make_request("a", range(9), max_tokens=4)).sequences
    assert min(sequence.queue_s, sequence.prefill_s, sequence.decode_s) >= 0
    assert sequence.queue_s + sequence.inference_s == pytest.approx(sequence.total_s)
    assert sequence.seconds_per_output_token == pytest.approx(sequence.decode_s / 3)


def test_a_lone_token_has_no_gap() -> None:
    heard = run(make_core(Rig()), make_request("a", range(9), max_tokens=1))
    assert heard.num_gaps == 0
    assert heard.sequences[0].seconds_per_output_token == 0


def test_every_sequence_of_a_request_counts_and_the_request_counts_once() -> None:
    heard = run(make_core(Rig()), make_request("a", range(1, 11), n=3, max_tokens=4))
    assert len(heard.first_tokens) == len(heard.sequences) == 3
    assert [first.num_cached_tokens for first in heard.first_tokens] == [0, 8, 8], "two pages of the first one's"
    [request] = heard.requests
    assert request == FinishedRequest(
        n=3, max_generated_tokens=4, arrival=0.0, num_prompt_tokens=10, num_cached_tokens=0, num_generated_tokens=12
    )


def test_cached_prompt_tokens_are_told_apart() -> None:
    core = make_core(Rig())
    run(core, make_request("a", range(10)))
    heard = run(core, make_request("b", range(10)))
    assert heard.first_tokens[0].num_cached_tokens == heard.sequences[0].num_cached_tokens == 8


def test_what_preemption_computes_again_is_no_new_token() -> None:
    rig = Rig(num_pages=14)
    heard = run(make_core(rig), *(make_request(f"r{i}", range(i, i + 9), max_tokens=20) for i in range(4)))
    assert rig.scheduler.stats.num_preemptions > 0
    assert sum(sequence.num_preemptions for sequence in heard.sequences) == rig.scheduler.stats.num_preemptions
    assert len(heard.first_tokens) == 4
    assert heard.num_gaps == 4 * 19


def test_steps_that_only_compute_a_prompt_yield_no_token() -> None:
    heard = run(make_core(Rig()), make_request("a", range(70), max_tokens=2))
    assert [step.num_generated_tokens for step in heard.steps] == [0, 0, 1, 1]
    assert [step.num_prompt_tokens for step in heard.steps] == [0, 0, 70, 0]


def test_padding_and_shape_of_steps() -> None:
    heard = run(make_core(Rig()), make_request("a", range(5), max_tokens=2))
    assert [(step.shape, step.num_tokens, step.num_padded_tokens) for step in heard.steps] == [
        (Bucket(4, 2), 5, 8),
        (Bucket(1, 1), 1, 1),
    ]


def test_the_time_between_steps_counts_only_while_there_is_work() -> None:
    core = make_core(Rig())
    heard = run(core, make_request("a", range(5), max_tokens=3))
    core.add(make_request("b", range(5), max_tokens=1))
    while core.has_unfinished:
        core.step()
    assert [step.host_gap_s is None for step in heard.steps] == [True, False, False, True]


def test_a_stop_string_finishes_the_sequence_at_once() -> None:
    rig = Rig()
    core = make_core(rig)
    heard = Heard()
    core.recorder.listen(heard)
    core.add(make_request("a", range(5), max_tokens=9, n=2))
    while heard.num_gaps < 3:
        core.step()
    core.stop("a", 1)
    assert [sequence.finish_reason for sequence in heard.sequences] == ["stop"]
    assert not heard.requests, "one of its sequences goes on"
    core.stop("a", 1)
    core.stop("a", 0)
    core.stop("a", 0)
    assert not core.has_unfinished
    assert [sequence.finish_reason for sequence in heard.sequences] == ["stop", "stop"]
    assert all(sequence.total_s >= sequence.decode_s > 0 for sequence in heard.sequences)
    generated = sum(step.num_generated_tokens for step in heard.steps)
    assert [request.num_generated_tokens for request in heard.requests] == [generated]
    assert not heard.lost


def test_a_stop_string_that_is_found_after_the_end_counts_no_second_time() -> None:
    core = make_core(Rig())
    heard = Heard()
    core.recorder.listen(heard)
    core.add(make_request("a", range(5), max_tokens=2))
    core.add(make_request("b", range(5), max_tokens=4))
    while core.has_unfinished:
        core.step()
        if heard.sequences:
            core.stop("a", 0)
    assert [sequence.finish_reason for sequence in heard.sequences] == ["length", "length"]


def test_aborted_sequences_are_lost_not_finished() -> None:
    core = make_core(Rig())
    heard = Heard()
    core.recorder.listen(heard)
    for request_id in ("stays", "goes", "queued"):
        core.add(make_request(request_id, range(6), max_tokens=5, n=2))
    core.step()
    for request_id in ("goes", "queued", "queued", "unknown"):
        core.abort(request_id)
    while core.has_unfinished:
        core.step()
    assert heard.lost == {"abort": 4}
    assert len(heard.sequences) == 2


class Fails(FakeRunner):
    """Fails in its third step."""

    def launch(self, batch: Batch) -> FakePending:
        if self.steps == 2:
            raise MemoryError("out of device memory")
        return super().launch(batch)


def test_requests_that_an_engine_takes_with_it_are_errors() -> None:
    rig = Rig()
    core = EngineCore(rig.scheduler, Fails(40, 4, VOCAB))
    heard = Heard()
    core.recorder.listen(heard)
    core.add(make_request("a", range(5)))
    core.add(make_request("b", range(5), n=2))
    for _ in range(2):
        core.step()
    with pytest.raises(EngineDeadError):
        core.step()
    assert heard.lost == {"error": 3}


def test_nothing_is_kept_when_nobody_listens() -> None:
    core = make_core(Rig())
    core.add(make_request("a", range(5)))
    core.step()
    recorder = core.recorder
    assert not any([recorder._requests, recorder._first_tokens, recorder._gaps, recorder._num_generated])
    heard = run(core)
    assert heard.steps, "steps are told"
    assert not heard.first_tokens + heard.sequences, "a request from before the first listener is not followed"


def update(
    request_id: str, *tokens: int, finish_reason: str | None = None, drafted: int = 0, accepted: int = 0
) -> SequenceUpdate:
    return SequenceUpdate(
        request_id=request_id,
        index=0,
        token_ids=tokens,
        logprobs=(None,) * len(tokens),
        finish_reason=finish_reason,
        admission=Admission(first_scheduled_time=0.0),
        num_draft_tokens=drafted,
        num_accepted_tokens=accepted,
    )


STEP = Batch(number=1, bucket=Bucket(2, 1), rows=Rows())


def followed(*request_ids: str) -> tuple[Heard, Recorder]:
    heard, recorder = Heard(), Recorder()
    recorder.listen(heard)
    for request_id in request_ids:
        recorder.add(make_request(request_id, [1, 2]), 0.0)
    return heard, recorder


def test_a_sequence_whose_grammar_gives_up_is_counted_with_a_token_or_without() -> None:
    heard, recorder = followed("later", "at once")
    recorder.take([update("later", 5), update("at once", finish_reason="error")], 1.0)
    recorder.end_step(STEP, launched=0.0, ready=1.0, more=True)
    recorder.take([update("later", finish_reason="error")], 2.0)
    recorder.end_step(STEP, launched=1.0, ready=2.0, more=False)
    assert [(sequence.finish_reason, sequence.num_generated_tokens) for sequence in heard.sequences] == [("error", 1)]
    assert heard.lost == Counter({"error": 1})
    assert heard.num_gaps == 0
    assert not recorder._requests


def test_tokens_that_come_together_share_the_time_since_the_one_before() -> None:
    heard, recorder = followed("a")
    for ready, news in (
        (1.0, update("a", 5)),
        (2.5, update("a", 6, 7, 8, drafted=3, accepted=2)),
        (3.0, update("a", 9, drafted=2, finish_reason="length")),
    ):
        recorder.take([news], ready)
        recorder.end_step(STEP, launched=ready - 0.5, ready=ready, more=True)
    assert [step.gaps for step in heard.steps] == [{}, {0.5: 3}, {0.5: 1}]
    assert [step.num_generated_tokens for step in heard.steps] == [1, 3, 1]
    assert heard.sequences[0].num_generated_tokens == 5
    assert heard.sequences[0].seconds_per_output_token == 0.5


def test_drafts_are_counted_by_step_and_by_position() -> None:
    heard, recorder = followed("a", "b")
    recorder.take([update("a", 5, 6, 7, drafted=3, accepted=2), update("b", 5, drafted=2)], 1.0)
    recorder.end_step(STEP, launched=0.0, ready=1.0, more=True)
    recorder.take([update("a", 5), update("b", 6)], 2.0)
    recorder.end_step(STEP, launched=1.0, ready=2.0, more=True)
    drafts = DraftStats(num_drafts=2, num_draft_tokens=5, num_accepted_tokens=2, accepted_at=(1, 1, 0))
    assert [step.drafts for step in heard.steps] == [drafts, DraftStats()]


def test_what_is_pooled_finishes_without_a_token() -> None:
    heard, recorder = followed("a")
    recorder.take([update("a", finish_reason="stop")], 1.0)
    recorder.end_step(STEP, launched=0.0, ready=1.0, more=False)
    assert [first.num_prompt_tokens for first in heard.first_tokens] == [2]
    assert [(sequence.finish_reason, sequence.num_generated_tokens) for sequence in heard.sequences] == [("stop", 0)]
    assert heard.steps[0].num_generated_tokens == 0
    assert not heard.lost


def test_steps_that_overlap_share_no_time_and_leave_no_gap() -> None:
    heard, recorder = followed("a")
    for launched, ready, more in ((0.0, 2.0, True), (1.0, 5.0, True), (5.5, 6.0, False), (9.0, 10.0, False)):
        recorder.end_step(STEP, launched=launched, ready=ready, more=more)
    assert [step.step_s for step in heard.steps] == [2.0, 3.0, 0.5, 1.0]
    assert [step.host_gap_s for step in heard.steps] == [None, 0.0, 0.5, None]


def test_what_was_yielded_on_another_engine_is_not_counted_again() -> None:
    history = (
        SequenceHistory((5, 6), admission=Admission(0, 0, 0.5)),
        SequenceHistory((7,), ended=True),
        SequenceHistory(),
    )
    request = replace(make_request("a", range(1, 9), n=3, max_tokens=5), history=history)
    heard = run(make_core(Rig()), request)
    assert len(heard.first_tokens) == 1, "that of the sequence that had yielded nothing"
    assert sum(step.num_generated_tokens for step in heard.steps) == 3 + 5
    assert [sequence.num_generated_tokens for sequence in heard.sequences] == [5, 5]
    [whole] = heard.requests
    assert (whole.n, whole.num_generated_tokens) == (3, 5 + 1 + 5)
