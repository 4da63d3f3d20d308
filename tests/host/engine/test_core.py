"""The loop: what each sequence yields, and one bad request or one bad step ends exactly what it must."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from jaxengine.contract.batch import Batch, StepResult
from jaxengine.contract.messages import Abort
from jaxengine.contract.request import Request
from jaxengine.errors import ContextLengthError, EngineDeadError
from jaxengine.host.engine.core import EngineCore
from tests.fakes import FakePending, FakeRunner, oracle
from tests.harness import VOCAB, Collected, Rig, make_request


class FailingRunner(FakeRunner):
    """Fails in a named phase of its `fail_at`-th step."""

    phase = "launch"
    fail_at = 3

    def launch(self, batch: Batch) -> FakePending:
        pending = super().launch(batch)
        self.fail("launch", batch.number)
        return FailingPending(pending.result, self, batch.number)

    def fail(self, phase: str, number: int) -> None:
        if number == self.fail_at and phase == self.phase:
            raise MemoryError(f"out of device memory in {phase}")


@dataclass
class FailingPending(FakePending):
    runner: FailingRunner
    number: int

    def wait(self) -> StepResult:
        self.runner.fail("wait", self.number)
        return super().wait()


def make_core(rig: Rig) -> EngineCore:
    return EngineCore(rig.scheduler, rig.runner)


Results = dict[tuple[str, int], Collected]


def drain(core: EngineCore) -> Results:
    """Run to the end; what each sequence yielded."""
    results: Results = {}
    for _ in range(300):
        if not core.has_unfinished:
            return results
        for update in core.step():
            results.setdefault((update.request_id, update.index), Collected()).take(update)
    raise AssertionError("not done after 300 steps")


def assert_oracle(results: Results, request: Request, rig: Rig) -> None:
    for index in range(request.sampling.n):
        answer = oracle(request, index, vocab_size=VOCAB, max_len=rig.max_len)
        assert results[request.request_id, index].expected() == answer


@pytest.mark.parametrize("max_in_flight", [1, 2, 3])
def test_outputs_are_the_oracles(max_in_flight: int) -> None:
    rig = Rig(max_in_flight=max_in_flight)
    core = make_core(rig)
    requests = [make_request("a", range(1, 20)), make_request("b", range(5, 9), n=3, max_tokens=4)]
    for request in requests:
        core.add(request)
    results = drain(core)
    for request in requests:
        assert_oracle(results, request, rig)
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
    assert_oracle(drain(core), request, rig)


def test_stop_ends_one_sequence_and_no_other() -> None:
    rig = Rig()
    core = make_core(rig)
    other = make_request("other", range(1, 9), max_tokens=9)
    core.add(make_request("stops", range(1, 9), n=2, max_tokens=9))
    core.add(other)
    results: Results = {}
    for _ in range(30):
        for update in core.step():
            results.setdefault((update.request_id, update.index), Collected()).take(update)
        if ("stops", 1) in results:
            core.stop("stops", 1)
            break
    core.stop("stops", 1)
    core.stop("nobody", 0)
    before = len(results["stops", 1].tokens)
    results |= {key: value for key, value in drain(core).items() if key[0] == "stops" and key[1] == 1}
    assert len(results["stops", 1].tokens) == before
    assert not core.has_unfinished
    core.check_idle()


def test_stopping_the_last_sequence_leaves_an_idle_engine() -> None:
    rig = Rig()
    core = make_core(rig)
    core.add(make_request("a", range(1, 9), max_tokens=9))
    for _ in range(3):
        core.step()
    core.end(Abort(stopped=(("a", 0),)))
    assert not core.has_unfinished
    assert core.step() == []
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
    results = drain(core)
    assert list(results) == [("11", 0)]
    assert_oracle(results, other, rig)


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
        def launch(self, batch: Batch) -> FakePending:
            events.append(f"launch {batch.number}")
            return TellsPending(super().launch(batch).result, batch.number)

    @dataclass
    class TellsPending(FakePending):
        number: int

        def wait(self) -> StepResult:
            events.append(f"wait {self.number}")
            return super().wait()

    for max_in_flight, expected in (
        (3, ["launch 1", "launch 2", "launch 3", "wait 1", "wait 2", "wait 3"]),
        (2, ["launch 1", "launch 2", "wait 1", "launch 3", "wait 2", "wait 3"]),
        (1, ["launch 1", "wait 1", "launch 2", "wait 2", "launch 3", "wait 3"]),
    ):
        events.clear()
        rig = Rig(max_in_flight=max_in_flight)
        rig.runner = Tells(40, 4, VOCAB)
        core = make_core(rig)
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
    results = drain(core)
    assert_oracle(results, request, rig)
    assert_oracle(results, other, rig)
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
    cached = {update.admission.num_cached_tokens for _ in range(9) for update in core.step()}
    assert cached == {0}


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
