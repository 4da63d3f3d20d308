"""What passes between front and loop survives pickling: each value by itself, and a whole engine in another process."""

from __future__ import annotations

import multiprocessing
import pickle
import typing
from queue import Empty
from typing import Any

import pytest

from jaxengine.contract import messages
from jaxengine.contract.messages import (
    Abort,
    Accepted,
    Add,
    Close,
    EngineDead,
    Event,
    Message,
    Refused,
    Reset,
    StepOutputs,
    WasReset,
)
from jaxengine.contract.sampling_params import RequestOutputKind
from jaxengine.contract.structured_outputs import StructuredOutputsParams
from jaxengine.errors import ContextLengthError, EngineDeadError, OverloadedError, RequestError
from jaxengine.grammar.grammars import Grammars
from jaxengine.host.engine.core import EngineCore
from jaxengine.host.engine.loop import EngineLoop
from tests.fakes import oracle
from tests.harness import VOCAB, Collected, Rig, make_request
from tests.text import tiny

RICH = make_request(
    "rich",
    range(1, 12),
    max_tokens=5,
    eos_token_id=95,
    bad_words=((3,), (4, 5)),
    salt="tenant",
    n=2,
    logprobs=2,
    prompt_logprobs=1,
    presence_penalty=0.5,
    logit_bias={7: 1.5},
    stop=["stop"],
    stop_token_ids=[9],
    allowed_token_ids=list(range(90)),
    seed=5,
    output_kind=RequestOutputKind.DELTA,
)


def told(rig: Rig, *given: Message) -> list[Event]:
    """All events of a loop that is given these messages at once, and runs until nothing is left to do."""
    queue = [*given]

    class Given:
        def get(self, block: bool) -> Message:
            if queue:
                return queue.pop(0)
            if block:
                return Close()
            raise Empty

    events: list[Event] = []
    EngineLoop(EngineCore(rig.scheduler, rig.runner), Given(), events.append).run()
    return events


def test_every_message_survives_pickling() -> None:
    for message in (
        Add(3, (RICH, make_request("plain", [1, 2]))),
        Abort(("rich", "plain"), (("n", 1),)),
        Reset(4),
        Close(),
    ):
        again = pickle.loads(pickle.dumps(message))
        assert type(again) is type(message)
        assert again == message


def test_every_event_survives_pickling() -> None:
    long = make_request("long", range(1, 90), max_tokens=50)
    events = told(Rig(), Add(0, (RICH,)), Add(1, (long,)), Reset(2), Abort(("nobody",)))
    replies = [reply for event in events if isinstance(event, StepOutputs) for reply in event.replies]
    assert [type(reply) for reply in replies] == [Accepted, Accepted, WasReset]
    assert {type(event) for event in events} == {StepOutputs, EngineDead}
    updates = [update for event in events if isinstance(event, StepOutputs) for update in event.updates]
    assert any(update.finish_reason for update in updates)
    assert any(row is not None for update in updates for row in update.logprobs)
    assert any(event.finished and event.finished_steps for event in events if isinstance(event, StepOutputs))
    for event in events:
        again = pickle.loads(pickle.dumps(event))
        if isinstance(event, EngineDead):
            assert (type(again.error), str(again.error)) == (type(event.error), str(event.error))
        else:
            assert repr(again) == repr(event), "arrays are not equal or unequal"


@pytest.mark.parametrize(
    "error",
    [
        RequestError("wrong", param="n"),
        ContextLengthError("long", param="input_tokens"),
        OverloadedError("busy", retry_after=7),
    ],
)
def test_errors_keep_what_they_carry(error: Any) -> None:
    again = pickle.loads(pickle.dumps(Refused(1, error))).error
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


def test_a_compiled_grammar_is_what_does_not_pickle() -> None:
    tokenizer = tiny.byte_level()
    grammars = Grammars(tokenizer, vocab_size=tokenizer.vocab_size, end_ids=(0,))
    grammar = grammars.compile(StructuredOutputsParams(regex="a+"))
    grammars.close()
    with pytest.raises(TypeError, match="LLMatcher"):
        pickle.dumps(make_request("a", [1], grammar=grammar))


def test_all_of_it_is_frozen() -> None:
    kinds = [*typing.get_args(messages.Message), *typing.get_args(messages.Event), *typing.get_args(messages.Reply)]
    for kind in kinds:
        assert kind.__dataclass_params__.frozen, kind


def serve(incoming: Any, outgoing: Any) -> None:
    """What a process of its own runs."""
    rig = Rig(num_pages=60)
    EngineLoop(EngineCore(rig.scheduler, rig.runner), incoming, outgoing.put).run()
    rig.scheduler.check_idle()


def test_a_loop_in_a_process_of_its_own() -> None:
    context = multiprocessing.get_context("spawn")
    incoming, outgoing = context.Queue(), context.Queue()
    process = context.Process(target=serve, args=(incoming, outgoing), daemon=True)
    process.start()
    wanted = [make_request(f"r{number}", range(number, number + 9), max_tokens=7) for number in range(6)]
    endless = make_request("endless", range(3), max_tokens=90)
    incoming.put(Add(0, (*wanted, endless)))
    incoming.put(Abort(("endless",)))
    incoming.put(Add(1, (wanted[0],)))
    found: dict[str, Collected] = {request.request_id: Collected() for request in (*wanted, endless)}
    replies, lost = {}, 0
    while any(found[request.request_id].finish_reason is None for request in wanted):
        news = outgoing.get(timeout=60)
        replies |= {reply.number: type(reply) for reply in news.replies}
        lost += sum(item.num_sequences for item in news.lost)
        for update in news.updates:
            found[update.request_id].take(update)
    incoming.put(Reset(2))
    incoming.put(Close())
    while isinstance(news := outgoing.get(timeout=60), StepOutputs):
        replies |= {reply.number: type(reply) for reply in news.replies}
        lost += sum(item.num_sequences for item in news.lost)
    process.join(60)
    assert process.exitcode == 0
    assert isinstance(news.error, EngineDeadError)
    assert replies == {0: Accepted, 1: Refused, 2: WasReset}
    assert lost == 1
    for request in wanted:
        assert tuple(found[request.request_id].tokens) == oracle(request, 0, vocab_size=VOCAB, max_len=96).tokens
