"""The loop: outputs in a caller's terms, and one bad request or one bad step ends exactly what it must."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from jaxengine.batch import Batch, Masks, StepResult
from jaxengine.engine.core import EngineCore
from jaxengine.engine.postprocess import Postprocessor
from jaxengine.errors import ContextLengthError, EngineDeadError
from jaxengine.outputs import RequestOutput
from jaxengine.request import Request
from jaxengine.scheduler.updates import SequenceUpdate
from tests.fakes import FakePending, FakeRunner, oracle
from tests.harness import VOCAB, Rig, make_request


class FailingRunner(FakeRunner):
    """Fails in a named phase of its `fail_at`-th step."""

    phase = "launch"
    fail_at = 3

    def launch(self, batch: Batch, masks: Masks) -> FakePending:
        pending = super().launch(batch, masks)
        self.fail("launch", batch.number)
        return FailingPending(pending.result, self, batch.number)

    def fail(self, phase: str, number: int) -> None:
        if number == self.fail_at and phase == self.phase:
            raise MemoryError(f"out of device memory in {phase}")


@dataclass(frozen=True)
class FailingPending(FakePending):
    runner: FailingRunner
    number: int

    def wait(self) -> StepResult:
        self.runner.fail("wait", self.number)
        return self.result


class ChokesOn(Postprocessor):
    """Cannot build outputs of one request."""

    def __init__(self, request_id: str) -> None:
        super().__init__(None)
        self._bad = request_id

    def process(self, updates: Sequence[SequenceUpdate]) -> tuple[list[RequestOutput], list[tuple[str, int]]]:
        if any(update.request_id == self._bad for update in updates):
            raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "a token that is no text")
        return super().process(updates)


class StopsAfter(Postprocessor):
    """Finds a stop string at the `count`-th token of every sequence whose request id starts with `prefix`."""

    def __init__(self, prefix: str, count: int) -> None:
        super().__init__(None)
        self._prefix, self._count = prefix, count
        self._seen: dict[tuple[str, int], int] = {}

    def process(self, updates: Sequence[SequenceUpdate]) -> tuple[list[RequestOutput], list[tuple[str, int]]]:
        outputs, stopped = super().process(updates)
        for update in updates:
            key = (update.request_id, update.index)
            self._seen[key] = self._seen.get(key, 0) + 1
            if update.request_id.startswith(self._prefix) and self._seen[key] == self._count:
                stopped.append(key)
        return outputs, stopped


def make_core(rig: Rig, *, postprocessor: Postprocessor | None = None, overlap: bool = True) -> EngineCore:
    return EngineCore(rig.scheduler, rig.runner, postprocessor or Postprocessor(None), overlap=overlap)


def drain(core: EngineCore) -> dict[str, RequestOutput]:
    """Run to the end; the last output of each request."""
    last: dict[str, RequestOutput] = {}
    for _ in range(300):
        if not core.has_unfinished:
            return last
        last |= {output.request_id: output for output in core.step()}
    raise AssertionError("not done after 300 steps")


def assert_oracle(output: RequestOutput, request: Request, rig: Rig) -> None:
    assert output.finished
    for completion in output.outputs:
        answer = oracle(request, completion.index, vocab_size=VOCAB, max_len=rig.max_len)
        assert completion.token_ids == answer.tokens
        assert completion.finish_reason == answer.finish_reason


@pytest.mark.parametrize("overlap", [True, False])
def test_outputs_are_the_oracles(overlap: bool) -> None:
    rig = Rig()
    core = make_core(rig, overlap=overlap)
    requests = [make_request("a", range(1, 20)), make_request("b", range(5, 9), n=3, max_tokens=4)]
    for request in requests:
        core.add(request)
    last = drain(core)
    for request in requests:
        assert_oracle(last[request.request_id], request, rig)
    core.check_idle()


def test_an_idle_step_tells_nothing() -> None:
    assert make_core(Rig()).step() == []


def test_check_idle_is_for_an_idle_engine() -> None:
    rig = Rig()
    core = make_core(rig)
    core.check_idle()
    core.add(make_request("a", [1, 2, 3]))
    core.step()
    with pytest.raises(AssertionError, match="pages are held"):
        core.check_idle()


def test_a_refused_request_leaves_no_trace() -> None:
    rig = Rig()
    core = make_core(rig)
    with pytest.raises(ContextLengthError):
        core.add(make_request("a", [1] * 200))
    request = make_request("a", [1, 2, 3])
    core.add(request)
    assert_oracle(drain(core)["a"], request, rig)


def test_a_request_whose_output_cannot_be_followed_is_not_scheduled() -> None:
    class Refuses(Postprocessor):
        def add(self, request: Request) -> None:
            raise RuntimeError("no detokenizer")

    core = make_core(Rig(), postprocessor=Refuses(None))
    with pytest.raises(RuntimeError, match="no detokenizer"):
        core.add(make_request("a", [1, 2, 3]))
    assert not core.has_unfinished


def test_a_request_whose_output_cannot_be_built_ends_alone(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    core = make_core(rig, postprocessor=ChokesOn("bad"))
    good = make_request("good", range(1, 9))
    core.add(make_request("bad", range(1, 9), n=2))
    core.add(good)
    last = drain(core)
    assert_oracle(last["good"], good, rig)
    assert last["bad"].finished
    assert [completion.finish_reason for completion in last["bad"].outputs] == ["abort", "abort"]
    assert "request bad is aborted" in caplog.text
    core.check_idle()


def test_a_stop_string_ends_the_sequence_in_the_scheduler_too() -> None:
    rig = Rig()
    core = make_core(rig, postprocessor=StopsAfter("stops", 3))
    other = make_request("other", range(1, 9), max_tokens=9)
    core.add(make_request("stops", range(1, 9), n=2, max_tokens=9))
    core.add(other)
    last = drain(core)
    assert_oracle(last["other"], other, rig)
    assert {len(completion.token_ids) for completion in last["stops"].outputs} == {3}
    core.check_idle()


def test_abort_is_exact_and_tells_nothing_more() -> None:
    rig = Rig()
    core = make_core(rig)
    other = make_request("11", range(1, 9))
    core.add(make_request("1", range(1, 9)))
    core.add(other)
    core.step()
    assert core.abort("1")
    assert not core.abort("1")
    last = drain(core)
    assert list(last) == ["11"]
    assert_oracle(last["11"], other, rig)


@pytest.mark.parametrize("phase", ["launch", "wait"])
def test_a_failed_step_ends_the_engine_and_frees_everything(phase: str) -> None:
    rig = Rig()
    rig.runner = FailingRunner(40, 4, VOCAB)
    rig.runner.phase = phase
    core = make_core(rig)
    core.add(make_request("a", range(1, 9), n=2))
    core.add(make_request("b", range(1, 40)))
    with pytest.raises(
        EngineDeadError, match=f"out of device memory in {phase}.*2 requests in flight are lost"
    ) as error:
        drain(core)
    assert isinstance(error.value.__cause__, MemoryError)
    assert not core.has_unfinished
    core.check_idle()
    for call in (core.step, lambda: core.add(make_request("c", [1]))):
        with pytest.raises(EngineDeadError, match="the engine has stopped"):
            call()
    core.close()
    assert rig.runner.closed


@pytest.mark.parametrize("fail_at", range(1, 9))
def test_the_nth_step_fails(fail_at: int) -> None:
    """Wherever a step fails, nothing stays held."""
    rig = Rig(num_pages=12)
    rig.runner = FailingRunner(12, 4, VOCAB)
    rig.runner.fail_at = fail_at
    core = make_core(rig)
    for number in range(4):
        core.add(make_request(f"r{number}", range(1, 12), n=1 + number % 2, max_tokens=9))
    with pytest.raises(EngineDeadError):
        drain(core)
    core.check_idle()


def test_a_step_is_launched_before_the_one_before_it_is_waited_for() -> None:
    events: list[str] = []

    class Tells(FakeRunner):
        def launch(self, batch: Batch, masks: Masks) -> FakePending:
            events.append(f"launch {batch.number}")
            return TellsPending(super().launch(batch, masks).result, batch.number)

    @dataclass(frozen=True)
    class TellsPending(FakePending):
        number: int

        def wait(self) -> StepResult:
            events.append(f"wait {self.number}")
            return self.result

    for overlap, expected in (
        (True, ["launch 1", "launch 2", "wait 1", "launch 3", "wait 2", "wait 3"]),
        (False, ["launch 1", "wait 1", "launch 2", "wait 2", "launch 3", "wait 3"]),
    ):
        events.clear()
        rig = Rig()
        rig.runner = Tells(40, 4, VOCAB)
        core = make_core(rig, overlap=overlap)
        core.add(make_request("a", range(1, 9), max_tokens=3))
        drain(core)
        assert events == expected


def test_masks_that_need_the_last_token_wait_for_it_and_for_nothing_else() -> None:
    rig = Rig()
    core = make_core(rig)
    request = make_request("a", range(1, 9), max_tokens=6, bad_words=((8, 9), (10, 11, 12)), min_tokens=3)
    other = make_request("b", range(2, 9), max_tokens=6)
    core.add(request)
    core.add(other)
    last = drain(core)
    assert_oracle(last["a"], request, rig)
    assert_oracle(last["b"], other, rig)
    assert rig.runner.steps == 6


def test_the_prefix_cache_can_be_forgotten_while_nothing_runs() -> None:
    rig = Rig()
    core = make_core(rig)
    core.add(make_request("a", range(1, 20)))
    core.step()
    assert not core.reset_prefix_cache()
    drain(core)
    assert core.reset_prefix_cache()
    core.add(make_request("b", range(1, 20)))
    assert drain(core)["b"].num_cached_tokens == 0


def test_close_frees_the_device_and_what_was_in_flight() -> None:
    rig = Rig()
    core = make_core(rig)
    core.add(make_request("a", range(1, 9)))
    core.step()
    core.close()
    core.close()
    assert rig.runner.closed
    core.check_idle()
    with pytest.raises(EngineDeadError, match="closed"):
        core.step()
