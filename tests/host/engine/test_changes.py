"""Engines that are paused, sleep, wake up and are given other weights, with requests in every state."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from jaxengine.contract.messages import (
    KV_CACHE,
    WEIGHTS,
    Abort,
    Add,
    Done,
    EngineDead,
    PauseGeneration,
    PauseMode,
    Refused,
    Reply,
    ResumeGeneration,
    Sleep,
    StepOutputs,
    Update,
    Wake,
)
from jaxengine.contract.runner import UnfitWeightsError, Weights
from jaxengine.contract.updates import SequenceUpdate
from jaxengine.errors import CheckpointError, EngineDeadError, OverloadedError, RequestError
from jaxengine.host.engine.host import EngineHost
from tests.fakes import GatedRunner
from tests.harness import Rig, make_request
from tests.host.engine.test_host import Opened, make_host


def refusal(reply: Reply | None) -> Exception:
    assert isinstance(reply, Refused)
    return reply.error


def run_to_end(host: EngineHost) -> None:
    while host.has_unfinished:
        host.step()


def read(source: Any) -> Weights:
    if source == "nowhere":
        raise CheckpointError("nowhere is no directory")
    return Weights(source if isinstance(source, dict) else {"all": source})


class Run:
    """An engine on its thread that takes a step when it is let, and what came of its requests."""

    def __init__(self, **options: Any) -> None:
        self.rig = Rig(**options)
        plain = self.rig.runner
        self.runner = self.rig.runner = GatedRunner(plain.num_pages, plain.page_size, plain.vocab_size)
        self.host = make_host(self.rig, read_weights=read)
        self.opened = Opened(self.host)

    def ask(self, *messages: Any) -> None:
        self.opened.send(*messages)
        for message in messages:
            if not isinstance(message, Abort):
                self.opened.wait(lambda number=message.number: number in self.opened.replies)

    def updates(self, request_id: str) -> list[SequenceUpdate]:
        outputs = [event for event in list(self.opened.events) if isinstance(event, StepOutputs)]
        return [update for event in outputs for update in event.updates if update.request_id == request_id]

    def tokens(self, request_id: str) -> list[int]:
        return [token for update in self.updates(request_id) for token in update.token_ids]

    def versions(self, request_id: str) -> list[str]:
        return [update.admission.weight_version for update in self.updates(request_id) for _ in update.token_ids]

    def step_until(self, request_id: str, count: int) -> None:
        """Allow steps one by one until the request has so many tokens."""
        while len(self.tokens(request_id)) < count:
            self.runner.allowed.release()
            taken = self.runner.steps
            self.opened.wait(lambda taken=taken: self.runner.steps > taken or len(self.tokens(request_id)) >= count)

    def ended(self, request_id: str) -> bool:
        return any(update.finish_reason for update in self.updates(request_id))

    def close(self) -> None:
        self.runner.open()
        self.opened.close()
        self.rig.scheduler.check_idle()


def request(name: str, max_tokens: int = 24) -> Any:
    return make_request(name, range(1, 20), max_tokens=max_tokens, ignore_eos=True)


def alone(name: str, salt: tuple[int, ...] = (), **options: Any) -> list[int]:
    """What a request is answered by itself."""
    rig = Rig()
    rig.runner.salt = salt
    rig.add(request(name, **options))
    rig.run()
    return rig.collected[name, 0].tokens


def test_an_engine_of_one_thread_changes_only_between_requests_and_forgets_its_cache() -> None:
    rig = Rig()
    host = make_host(rig, read_weights=read)
    host.take(Add(0, (request("a"),)))
    host.step()
    assert isinstance(refusal(host.take(Sleep(1))), RequestError)
    assert isinstance(refusal(host.take(Update(1, "there", "1", "keep"))), RequestError)
    assert not rig.runner.released
    run_to_end(host)
    assert host.take(Sleep(2)) == host.take(Sleep(2)) == Done(2)
    assert rig.runner.released
    assert host.statistics.asleep
    assert isinstance(refusal(host.take(Add(3, (make_request("b", [1]),)))), OverloadedError)
    assert isinstance(refusal(host.take(Update(4, "there", "1"))), OverloadedError)
    assert host.take(Wake(5)) == host.take(Wake(5)) == Done(5)
    assert not host.statistics.asleep
    hits = host.statistics.scheduler.prefix_cache_hits
    host.take(Add(6, (request("a"),)))
    run_to_end(host)
    assert host.statistics.scheduler.prefix_cache_hits == hits, "pages that were lost were taken for a prefix"
    rig.scheduler.check_idle()


def test_what_sleeps_wakes_up_part_by_part_and_dropped_weights_are_read_or_written() -> None:
    rig = Rig()
    host = make_host(rig, read_weights=read)
    host.take(Update(0, "first", "v1"))
    host.take(Update(1, {"part": 2}, "v2"))
    host.take(Sleep(2, 2))
    assert (host.statistics.asleep, host.statistics.sleep_level) == (True, 2)
    host.take(Wake(3, (KV_CACHE,)))
    assert host.statistics.asleep
    host.take(Wake(4, (WEIGHTS,)))
    assert (host.statistics.asleep, host.statistics.sleep_level) == (False, 0)
    assert rig.runner.written[-1].values == {"all": "first"}, "they are those of the checkpoint again"
    assert host.statistics.weight_version == "v1"
    host.take(Sleep(5, 2))
    assert host.take(Update(6, {"part": 3}, "v3")) == Done(6)
    assert host.take(Sleep(7, 1)) == Done(7), "weights that were written are kept like others"
    host.take(Wake(8))
    assert (host.statistics.asleep, host.statistics.weight_version) == (False, "v3")
    assert rig.runner.written[-1].values == {"part": 3}
    host.take(Add(9, (request("a"),)))
    run_to_end(host)
    rig.scheduler.check_idle()


def test_a_level_of_0_computes_nothing_and_keeps_all() -> None:
    run = Run()
    run.runner.open()
    run.ask(Sleep(0, 0), Add(1, (request("a"),)), Wake(2, (WEIGHTS,)))
    assert run.host.statistics.asleep
    assert not run.runner.released
    assert not run.updates("a")
    run.ask(Wake(3))
    run.opened.wait(lambda: run.ended("a"))
    assert run.tokens("a") == alone("a")
    run.close()


@pytest.mark.parametrize("mode", ["keep", "wait", "abort"])
@pytest.mark.parametrize("change", [PauseGeneration, Sleep, Update])
def test_requests_are_kept_end_first_or_are_aborted(change: type, mode: PauseMode) -> None:
    run = Run()
    run.ask(Add(0, (request("a"),)))
    run.step_until("a", 5)
    made = {
        PauseGeneration: lambda: PauseGeneration(1, mode),
        Sleep: lambda: Sleep(1, 1, mode),
        Update: lambda: Update(1, {"salt": (7,)}, "new", mode),
    }[change]()
    run.opened.send(made, Add(2, (request("b"),)) if change is not Sleep else Abort(("nobody",)))
    run.runner.open()
    run.opened.wait(lambda: 1 in run.opened.replies)
    assert run.opened.replies[1] == Done(1)
    before = len(run.tokens("a"))
    assert run.ended("a") == (mode != "keep") or change is Update
    if change is PauseGeneration:
        assert run.host.statistics.paused
        assert not run.tokens("b")
        run.ask(ResumeGeneration(3))
    if change is Sleep:
        assert run.runner.released
        run.ask(Wake(3))
    if change is not Sleep:
        run.opened.wait(lambda: run.ended("b"))
        assert run.tokens("b") == alone("b", salt=(7,) if change is Update else ())
        assert set(run.versions("b")) == {"new" if change is Update else "0"}
    run.opened.wait(lambda: run.ended("a"))
    if mode == "abort":
        assert run.updates("a")[-1].finish_reason == "abort"
        assert run.tokens("a") == alone("a")[:before]
        assert 5 <= before < 24
    elif change is Update and mode == "keep":
        versions = run.versions("a")
        switch = versions.index("new")
        assert versions == ["0"] * switch + ["new"] * (24 - switch)
        assert run.tokens("a")[:switch] == alone("a")[:switch]
        assert run.tokens("a") == continued("a", run.tokens("a")[:switch], salt=(7,)), "what was cached was used on"
    else:
        assert run.tokens("a") == alone("a")
        assert set(run.versions("a")) == {"0"}
    run.close()


def continued(name: str, tokens: list[int], *, salt: tuple[int, ...]) -> list[int]:
    """These tokens of a request, and what weights with a salt go on with."""
    rig = Rig()
    rig.runner.salt = salt
    whole = make_request(name, [*range(1, 20), *tokens], max_tokens=24 - len(tokens), ignore_eos=True)
    rig.add(whole)
    rig.run()
    return tokens + rig.collected[name, 0].tokens


def test_changes_are_made_in_the_order_in_which_they_come() -> None:
    run = Run()
    run.runner.open()
    run.ask(Add(0, (request("a"),)))
    run.opened.send(
        Update(1, {"salt": (1,)}, "1", "wait"),
        Update(2, "nowhere", "2", "wait"),
        Sleep(3, 1, "keep"),
        Update(4, {"salt": (2,)}, "2", "wait"),
        Wake(5, (WEIGHTS,)),
        Update(6, {"salt": (3,)}, "3", "wait"),
        Wake(7),
        Add(8, (request("b"),)),
    )
    run.opened.wait(lambda: 7 in run.opened.replies and 8 in run.opened.replies)
    replies = run.opened.replies
    assert {number: type(replies[number]) for number in range(1, 8)} == {
        1: Done,
        2: Refused,
        3: Done,
        4: Refused,
        5: Done,
        6: Done,
        7: Done,
    }
    assert run.host.statistics.weight_version == "3"
    assert run.tokens("a") == alone("a")
    run.close()


def test_memory_that_cannot_be_had_again_ends_the_engine() -> None:
    rig = Rig()
    host = make_host(rig)
    opened = Opened(host)

    def none_left() -> None:
        raise MemoryError("none is left")

    rig.runner.restore_state = none_left
    opened.send(Sleep(0), Wake(1))
    opened.wait(lambda: not opened.channel.is_alive)
    assert opened.replies == {0: Done(0)}
    assert isinstance(opened.events[-1], EngineDead)
    with pytest.raises(EngineDeadError, match="none is left"):
        host.take(Wake(2))


def test_weights_that_break_off_end_the_engine_and_those_of_another_model_are_the_askers_fault() -> None:
    rig = Rig()
    host = make_host(rig, read_weights=read)

    def refuses(what: Weights) -> None:
        raise UnfitWeightsError("layer 7 of shape (2,) cannot be written")

    rig.runner.write = refuses
    error = refusal(host.take(Update(0, "there", "1")))
    assert isinstance(error, RequestError)
    assert "layer 7" in str(error)
    assert host.statistics.weight_version == "0"
    assert isinstance(refusal(host.take(Update(0, "nowhere", "1"))), CheckpointError)
    assert not host.core.changes.halted

    def breaks(what: Weights) -> None:
        raise CheckpointError("a tensor is not what its header says")

    rig.runner.write = breaks
    with pytest.raises(EngineDeadError, match="not what its header says"):
        host.take(Update(0, "there", "1"))


def test_an_engine_that_is_closed_while_weights_are_read_waits_for_that() -> None:
    reading, go_on = threading.Event(), threading.Event()

    def slow(source: Any) -> Weights:
        reading.set()
        go_on.wait(20)
        return Weights({})

    rig = Rig()
    opened = Opened(make_host(rig, read_weights=slow))
    opened.send(Update(0, "there", "1", "wait"), Add(1, (request("a"),)))
    assert reading.wait(20)
    opened.wait(lambda: 1 in opened.replies)
    threading.Timer(0.05, go_on.set).start()
    opened.close()
    assert rig.runner.written
