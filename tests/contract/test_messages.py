"""What passes between front and loop survives pickling: each value by itself, and a whole engine in another process."""

from __future__ import annotations

import multiprocessing
import pickle
import typing
from pathlib import Path
from queue import Empty
from typing import Any

import pytest

from jaxengine.contract import messages
from jaxengine.contract.answer_form import AnswerForm, Thinking
from jaxengine.contract.facts import EngineFacts
from jaxengine.contract.messages import (
    Abort,
    Add,
    Alive,
    Began,
    Begin,
    Close,
    Done,
    EngineDead,
    EngineReady,
    Event,
    Message,
    ModelFound,
    PauseGeneration,
    Profile,
    Refused,
    Reset,
    ResumeGeneration,
    Sleep,
    StartProgress,
    StepOutputs,
    Update,
    Wake,
)
from jaxengine.contract.model_source import ModelSource
from jaxengine.contract.sampling_params import RequestOutputKind, SamplingParams
from jaxengine.contract.structured_outputs import StructuredOutputsParams
from jaxengine.errors import ConfigError, ContextLengthError, EngineDeadError, OverloadedError, RequestError
from jaxengine.front.intake import Intake
from jaxengine.host.engine.loop import EngineLoop
from jaxengine.options.config import EngineConfig
from tests.fakes import GRAMMARS, oracle
from tests.fronts import make_engine
from tests.grammar.characters import character_grammars, character_tokenizer
from tests.harness import VOCAB, Collected, Rig, make_request
from tests.host.engine.test_host import make_host

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


def test_facts_survive_pickling() -> None:
    facts = make_engine().host.facts
    assert pickle.loads(pickle.dumps(facts)) == facts
    assert facts.kv_tokens > 0
    assert facts.shapes


def told(rig: Rig, *given: Message) -> list[Event]:
    """All events of a loop that is given these messages at once, and runs until nothing is left to do."""
    queue = [*given]

    class Given:
        def get(self, block: bool, timeout: float | None) -> Message:
            if queue:
                return queue.pop(0)
            if block:
                return Close()
            raise Empty

    events: list[Event] = []
    EngineLoop(make_host(rig), Given(), events.append).run()
    return events


def test_every_message_survives_pickling() -> None:
    for message in (
        Add(3, (RICH, make_request("plain", [1, 2]))),
        Abort(("rich", "plain"), (("n", 1),)),
        Reset(4),
        Profile(5, begin=True),
        Sleep(6, 2, "keep"),
        Wake(7, ("weights",)),
        Update(8, "elsewhere", "1"),
        PauseGeneration(9, "wait", clear_cache=False),
        ResumeGeneration(10),
        Close(),
    ):
        again = pickle.loads(pickle.dumps(message))
        assert type(again) is type(message)
        assert again == message


def test_what_a_process_is_told_and_tells_of_its_start_survives_pickling() -> None:
    config = EngineConfig.from_options(model="tiny", hf_overrides={"rope_theta": 2.0}, buckets=("1x16",))
    source = ModelSource(path=Path("m"), config_json={"a": [1]}, vocab_size=9, tokenizer_path=None, config=config)
    for value in (
        Begin(config=config, parent=3),
        StartProgress(phase="compile", seconds=1.5, text="1/2"),
        ModelFound(source),
        EngineReady(EngineFacts(vocab_size=3, max_model_len=4)),
        Alive(),
    ):
        assert pickle.loads(pickle.dumps(value)) == value
    dead = pickle.loads(pickle.dumps(EngineDead(EngineDeadError("dead"), ConfigError("wrong"))))
    assert (str(dead.error), str(dead.start_error)) == ("dead", "wrong")


def test_every_event_survives_pickling() -> None:
    long = make_request("long", range(1, 90), max_tokens=50)
    events = told(Rig(), Add(0, (RICH,)), Add(1, (long,)), Reset(2), Abort(("nobody",)))
    replies = [reply for event in events if isinstance(event, StepOutputs) for reply in event.replies]
    assert [type(reply) for reply in replies] == [Done, Done, Done]
    assert {type(event) for event in events} == {StepOutputs, Began, EngineDead}
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


FORMS = (
    StructuredOutputsParams(json={"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}),
    StructuredOutputsParams(json_object=True, disable_any_whitespace=True),
    StructuredOutputsParams(regex="[0-9]{1,9}(,[a-f]{2}){0,3}"),
    StructuredOutputsParams(choice=["yes", "no", "perhaps"]),
    StructuredOutputsParams(grammar='root ::= "(" root ")" | "x"'),
    StructuredOutputsParams(grammar='start: "a" ("," "a")*'),
    StructuredOutputsParams(
        structural_tag={
            "triggers": ["<f"],
            "structures": [{"begin": "<f=1>", "schema": {"enum": ["x"]}, "end": "</f>"}],
        }
    ),
    AnswerForm(choice=["yes"], thinking=Thinking("<t>", "</t>", opened=False), instead='start: "no"'),
    AnswerForm(grammar='start: marker_0 "(" /[0-9]/ ")"', markers=("call",), triggered=True),
)
"""Every kind of structured output."""


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.kind)
def test_a_request_with_a_grammar_is_pickled_and_runs(form: StructuredOutputsParams) -> None:
    grammars = character_grammars()
    intake = Intake(
        character_tokenizer(), EngineFacts(vocab_size=VOCAB, max_model_len=96), grammars=grammars.sources, seed=3
    )
    params = SamplingParams(max_tokens=60, temperature=1.0, structured_outputs=form, n=2)
    request = intake.request([1, 2, 3], params, request_id="r")
    grammars.close()
    sent = pickle.dumps(Add(0, (request,)))

    far = character_grammars()
    rig = Rig()
    (found,) = pickle.loads(sent).requests
    host = make_host(rig, compiler=far.compiler)
    assert isinstance(host.take(Add(0, (found,))), Done)
    outputs: dict[int, list[int]] = {0: [], 1: []}
    while host.has_unfinished:
        for update in host.step():
            outputs[update.index] += update.token_ids
    far.close()
    GRAMMARS[found.grammar] = far.compiler.compile(found.grammar)
    for index, tokens in outputs.items():
        answer = oracle(found, index, vocab_size=VOCAB, max_len=96)
        assert tuple(tokens) == answer.tokens
        assert answer.finish_reason in ("stop", "length")
    rig.scheduler.check_idle()


def test_all_of_it_is_frozen() -> None:
    kinds = [*typing.get_args(messages.Message), *typing.get_args(messages.Event), *typing.get_args(messages.Reply)]
    for kind in kinds:
        assert kind.__dataclass_params__.frozen, kind


def serve(incoming: Any, outgoing: Any) -> None:
    """What a process of its own runs."""
    rig = Rig(num_pages=60)
    EngineLoop(make_host(rig), incoming, outgoing.put).run()
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

    def heard() -> Any:
        while isinstance(news := outgoing.get(timeout=60), Began):
            pass
        return news

    while any(found[request.request_id].finish_reason is None for request in wanted):
        news = heard()
        replies |= {reply.number: type(reply) for reply in news.replies}
        lost += sum(item.num_sequences for item in news.lost)
        for update in news.updates:
            found[update.request_id].take(update)
    incoming.put(Reset(2))
    incoming.put(Close())
    while isinstance(news := heard(), StepOutputs):
        replies |= {reply.number: type(reply) for reply in news.replies}
        lost += sum(item.num_sequences for item in news.lost)
    process.join(60)
    assert process.exitcode == 0
    assert isinstance(news.error, EngineDeadError)
    assert replies == {0: Done, 1: Refused, 2: Done}
    assert lost == 1
    for request in wanted:
        assert tuple(found[request.request_id].tokens) == oracle(request, 0, vocab_size=VOCAB, max_len=96).tokens
