"""What messages ask of an engine, and what is put off so that no step waits for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest

from jaxengine.contract.facts import EngineFacts
from jaxengine.contract.messages import (
    Abort,
    Add,
    Close,
    Done,
    EngineDead,
    Event,
    Message,
    Profile,
    Refused,
    Reply,
    Reset,
    StepOutputs,
)
from jaxengine.contract.transfer import TransferParams
from jaxengine.errors import RequestError, UnsupportedError
from jaxengine.grammar.matching import Grammar
from jaxengine.host.engine import loop
from jaxengine.host.engine.host import EngineHost
from jaxengine.host.engine.thread import EngineThread
from jaxengine.options.transfer import Address
from tests.fakes import GRAMMARS
from tests.grammar.characters import character_grammars
from tests.harness import EOS, VOCAB, Rig, make_request
from tests.host.engine.test_core import make_core

FACTS = EngineFacts(vocab_size=VOCAB, max_model_len=96)


def make_host(rig: Rig, **options: Any) -> EngineHost:
    return EngineHost(make_core(rig), FACTS, **options)


class Slow:
    """A compiler that is told when to be done."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.closed = False

    def is_ready(self, source: str) -> bool:
        return self.done.is_set()

    def compile(self, source: str) -> Grammar:
        if source not in GRAMMARS:
            raise RequestError("structured_outputs cannot be used: no such grammar")
        return GRAMMARS[source]

    def begin(self, source: str) -> Future[Grammar]:
        future: Future[Grammar] = Future()
        threading.Thread(target=lambda: (self.done.wait(), future.set_result(None))).start()  # type: ignore[arg-type]
        return future

    def close(self) -> None:
        self.closed = True


class Tracing:
    """A tracer that takes its time."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.running = False

    def start(self) -> None:
        self.gate.wait()
        if self.running:
            raise RequestError("a trace is being written already; stop it first")
        self.running = True

    def stop(self) -> None:
        self.gate.wait()
        self.running = False


class Opened:
    """A channel, and what has come by it."""

    def __init__(self, host: EngineHost) -> None:
        self.channel = EngineThread(host)
        self.events: list[Event] = []
        self.channel.open(self.events.append)

    def send(self, *messages: Message) -> None:
        for message in messages:
            self.channel.send(message)

    @property
    def replies(self) -> dict[int, Reply]:
        outputs = [event for event in list(self.events) if isinstance(event, StepOutputs)]
        return {reply.number: reply for event in outputs for reply in event.replies}

    def wait(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 20
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.001)

    def close(self) -> None:
        self.send(Close())
        self.channel.join(20)
        assert not self.channel.is_alive
        assert isinstance(self.events[-1], EngineDead)
        self.channel.close()


def with_grammar(name: str, **options: Any) -> Any:
    grammars = character_grammars()
    grammar = grammars.compiler.compile('{"grammars": [{"lark_grammar": "start: /[a-z]{4}/"}]}')
    grammars.close()
    return make_request(name, [1, 2, 3], max_tokens=9, eos_token_id=EOS, grammar=grammar, **options)


def test_a_request_waits_for_its_grammar_and_holds_up_nobody() -> None:
    rig, compiler = Rig(), Slow()
    opened = Opened(make_host(rig, compiler=compiler))
    opened.send(Add(0, (with_grammar("slow"),)), Add(1, (make_request("plain", [1, 2]),)), Reset(2))
    opened.wait(lambda: {1, 2} <= opened.replies.keys())
    assert 0 not in opened.replies
    compiler.done.set()
    opened.wait(lambda: 0 in opened.replies)
    assert opened.replies[0] == Done(0)
    opened.wait(lambda: not rig.scheduler.has_unfinished)
    opened.close()
    assert compiler.closed
    ended = [update for event in opened.events if isinstance(event, StepOutputs) for update in event.updates]
    assert {update.request_id for update in ended if update.finish_reason == "stop"} == {"slow"}
    rig.scheduler.check_idle()


def test_an_abort_reaches_a_request_that_waits_for_its_grammar() -> None:
    rig, compiler = Rig(), Slow()
    opened = Opened(make_host(rig, compiler=compiler))
    opened.send(Add(0, (with_grammar("a"), with_grammar("b"))), Abort(("a",)), Reset(1))
    opened.wait(lambda: 1 in opened.replies)
    compiler.done.set()
    opened.wait(lambda: 0 in opened.replies)
    opened.wait(lambda: not rig.scheduler.has_unfinished)
    opened.close()
    updates = [update for event in opened.events if isinstance(event, StepOutputs) for update in event.updates]
    assert {update.request_id for update in updates} == {"b"}


def test_a_grammar_that_does_not_compile_refuses_its_own_requests() -> None:
    rig, compiler = Rig(), Slow()
    opened = Opened(make_host(rig, compiler=compiler))
    bad = with_grammar("bad")
    del GRAMMARS[bad.grammar]
    opened.send(Add(0, (bad,)), Add(1, (make_request("plain", [1, 2]),)))
    compiler.done.set()
    opened.wait(lambda: {0, 1} <= opened.replies.keys())
    refused = opened.replies[0]
    assert isinstance(refused, Refused)
    assert isinstance(refused.error, RequestError)
    assert opened.replies[1] == Done(1)
    opened.close()


def test_a_trace_is_written_beside_the_steps() -> None:
    rig, tracer = Rig(), Tracing()
    opened = Opened(make_host(rig, tracer=tracer))
    opened.send(Profile(0, begin=True))
    opened.wait(lambda: 0 in opened.replies)
    assert tracer.running
    tracer.gate.clear()
    opened.send(Profile(1, begin=False), Add(2, (make_request("plain", [1, 2]),)))
    opened.wait(lambda: 2 in opened.replies and not rig.scheduler.has_unfinished)
    assert 1 not in opened.replies
    tracer.gate.set()
    opened.wait(lambda: 1 in opened.replies)
    assert not tracer.running
    opened.close()


def test_what_cannot_be_traced_is_refused() -> None:
    reply = make_host(Rig()).take(Profile(0, begin=True))
    assert isinstance(reply, Refused)
    assert isinstance(reply.error, UnsupportedError)


def test_an_idle_engine_tells_what_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    class Growing:
        num_programs = 3
        num_compilations = 0

    monkeypatch.setattr(loop, "REPORT_S", 0.01)
    programs = Growing()
    opened = Opened(make_host(Rig(), programs=programs))

    def known() -> int:
        return max(
            (event.statistics.num_programs for event in opened.events if isinstance(event, StepOutputs)), default=0
        )

    opened.wait(lambda: known() == 3)
    programs.num_programs = 4
    opened.wait(lambda: known() == 4)
    time.sleep(0.1)
    count = len(opened.events)
    time.sleep(0.1)
    assert len(opened.events) == count, "nothing has changed"
    opened.close()


def test_what_belongs_to_an_engine_is_closed_once_in_order() -> None:
    rig, closed = Rig(), list[str]()
    host = make_host(rig, closing=[lambda: closed.append("first"), lambda: closed.append("second")])
    host.close()
    host.close()
    assert closed == ["first", "second"]
    assert rig.runner.closed


def test_an_engine_that_a_request_names_is_known_before_the_request_runs() -> None:
    known: list[Address] = []
    rig = Rig()
    host = make_host(rig, know_peer=known.append)
    source = Address("127.0.0.1", 9)
    for number, transfer in enumerate(
        (None, TransferParams(hands_over=True), TransferParams(takes_over=True), TransferParams(False, True, source))
    ):
        request = replace(make_request(f"{number}", range(1, 9)), transfer=transfer)
        assert host.take(Add(number, (request,))) == Done(number)
    assert known == [source]
    host.close()
