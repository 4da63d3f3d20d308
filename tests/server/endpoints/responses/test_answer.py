"""/v1/responses over HTTP: whole and streamed alike, kept for later turns, refused by name where nothing is built."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from openai import OpenAI
from openai.types.responses import Response

from jaxengine.server.endpoints.responses.kept import KeptResponses
from tests.fakes import GatedRunner
from tests.fronts import TOKENIZER, make_engine
from tests.robustness.loopback import until
from tests.server.rig import Live, live
from tests.server.scripted import ScriptedRunner

BASE = {"input": "Hello", "max_output_tokens": 6, "temperature": 0, "ignore_eos": True}


def events(server: Live, **body: Any) -> list[dict[str, Any]]:
    """All events of a streamed response, whose names must be their types and whose numbers must rise by one."""
    with server.http.stream("POST", "/v1/responses", json={**BASE, **body, "stream": True}) as response:
        assert response.status_code == 200, response.read()
        lines = [line for line in response.iter_lines() if line and not line.startswith(":")]
    names = [line.removeprefix("event: ") for line in lines[::2]]
    data = [json.loads(line.removeprefix("data: ")) for line in lines[1::2]]
    assert names == [event["type"] for event in data]
    assert [event["sequence_number"] for event in data] == list(range(len(data)))
    return data


def text_of(response: dict[str, Any]) -> str:
    [item] = response["output"]
    text: str = item["content"][0]["text"]
    return text


def create(server: Live, **body: Any) -> dict[str, Any]:
    answer = server.post("/v1/responses", **{**BASE, **body})
    assert answer.status_code == 200, answer.text
    response: dict[str, Any] = answer.json()
    return response


@pytest.mark.parametrize(
    "body",
    [
        {"input": "Hello"},
        {"input": [{"role": "user", "content": "Hello"}], "instructions": "Be brief", "temperature": 0.5},
        {
            "input": "Hello",
            "tools": [{"type": "function", "name": "look", "parameters": {"type": "object"}}],
            "tool_choice": "none",
        },
    ],
    ids=["text", "instructions", "tools"],
)
def test_input_tokens_are_those_that_a_response_reads(server: Live, body: dict[str, Any]) -> None:
    counted = server.post("/v1/responses/input_tokens", **body)
    expected = {"object": "response.input_tokens", "input_tokens": create(server, **body)["usage"]["input_tokens"]}
    assert (counted.status_code, counted.json()) == (200, expected)


def test_input_tokens_of_a_later_turn_and_of_what_is_too_long(server: Live) -> None:
    first = create(server)
    later = {"previous_response_id": first["id"], "input": "And then?"}
    counted = server.post("/v1/responses/input_tokens", **later).json()
    assert counted["input_tokens"] == create(server, **later)["usage"]["input_tokens"]
    assert counted["input_tokens"] > first["usage"]["total_tokens"]
    words = "Hello " * 200
    assert server.post("/v1/responses", **{**BASE, "input": words}).status_code == 400
    assert server.post("/v1/responses/input_tokens", input=words).json()["input_tokens"] >= 200


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": "Hi", "truncation": "auto"}, "truncation"),
        ({"input": "Hi", "conversation": "c"}, "conversation"),
    ],
)
def test_input_tokens_are_not_counted_of_what_would_be_refused(server: Live, body: dict[str, Any], param: str) -> None:
    refused = server.post("/v1/responses/input_tokens", **body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)


def test_the_official_client_counts_input_tokens(server: Live) -> None:
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        counted = client.responses.input_tokens.count(model="tiny", input="Hello")
    assert (counted.object, counted.input_tokens) == ("response.input_tokens", create(server)["usage"]["input_tokens"])


@pytest.mark.parametrize("choice", ["required", "zz", {"type": "function", "name": "look"}])
def test_a_choice_among_no_tools_is_refused(server: Live, choice: Any) -> None:
    refused = server.post("/v1/responses", **BASE, tool_choice=choice)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tool_choice")
    for neutral in ("auto", "none"):
        assert create(server, tool_choice=neutral)["status"] == "incomplete"


def test_a_whole_response(server: Live) -> None:
    response = create(server, metadata={"a": "b"}, instructions="Be brief")
    assert response["object"] == "response"
    assert response["status"] == "incomplete", "six tokens were allowed"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["output"][0]["status"] == "incomplete"
    assert response["usage"]["output_tokens"] == 6
    assert response["usage"]["total_tokens"] == response["usage"]["input_tokens"] + 6
    assert (response["metadata"], response["instructions"]) == ({"a": "b"}, "Be brief")
    assert response["id"].startswith("resp_")
    Response.model_validate(response, strict=False)


def test_sampling_fields_have_effect(server: Live) -> None:
    plain = create(server)
    assert text_of(create(server, stop_token_ids=[0], skip_special_tokens=False)) == text_of(plain)
    pushed = text_of(create(server, logit_bias={"70": 100}))
    assert pushed != text_of(plain)
    assert text_of(create(server, allowed_token_ids=[70])) == pushed
    assert text_of(create(server, structured_outputs={"choice": ["yes"]}, ignore_eos=False)) == "yes"


def test_it_says_what_chat_says(server: Live) -> None:
    messages = [{"role": "system", "content": "Be brief"}, {"role": "user", "content": "Hello"}]
    chat = server.post("/v1/chat/completions", messages=messages, max_tokens=6, temperature=0, ignore_eos=True).json()
    response = create(server, instructions="Be brief")
    assert text_of(response) == chat["choices"][0]["message"]["content"]
    assert response["usage"]["input_tokens"] == chat["usage"]["prompt_tokens"]


def test_a_stream_is_the_whole_response_in_pieces(server: Live) -> None:
    whole = create(server)
    told = events(server)
    assert [event["type"] for event in told if not event["type"].endswith("delta")] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    text = "".join(event["delta"] for event in told if event["type"] == "response.output_text.delta")
    assert text == text_of(whole) == text_of(told[-1]["response"])
    assert told[-1]["response"].keys() == whole.keys()
    assert told[0]["response"]["status"] == "in_progress"
    assert told[0]["response"]["output"] == []


def test_an_end_by_itself_is_complete(server: Live) -> None:
    text = text_of(create(server))
    response = create(server, stop=[text[2:4]])
    assert response["status"] == "completed"
    assert response["incomplete_details"] is None
    assert text_of(response) == text[:2]


def test_log_probabilities(server: Live) -> None:
    response = create(server, include=["message.output_text.logprobs"], top_logprobs=2)
    logprobs = response["output"][0]["content"][0]["logprobs"]
    assert len(logprobs) == 6
    assert len(logprobs[0]["top_logprobs"]) == 2
    told = events(server, include=["message.output_text.logprobs"], top_logprobs=2)
    deltas = [entry for event in told if event["type"] == "response.output_text.delta" for entry in event["logprobs"]]
    assert deltas == logprobs


def test_log_probabilities_of_a_token_without_text() -> None:
    """It comes in a step of its own."""
    with live(make_engine(runner=GatedRunner)) as server:
        server.runner.open()
        messages = [{"role": "user", "content": "Hello"}]
        asked = {"messages": messages, "max_tokens": 6, "temperature": 0, "return_token_ids": True}
        ids = server.post("/v1/chat/completions", **asked).json()["choices"][0]["token_ids"]
        assert len(set(ids)) == 6
        server.settle()
        server.runner.shut()
        fields = {"include": ["message.output_text.logprobs"], "stop_token_ids": [ids[5]], "ignore_eos": False}
        started = server.post("/v1/responses", **{**BASE, **fields}, background=True).json()

        def found() -> dict[str, Any]:
            response: dict[str, Any] = server.http.get(f"/v1/responses/{started['id']}").json()
            return response

        deadline = time.monotonic() + 20
        while found()["status"] in ("queued", "in_progress"):
            assert time.monotonic() < deadline, "it goes on"
            server.runner.allow(1)
            time.sleep(0.02)
        assert found()["usage"]["output_tokens"] == 6
        assert len(found()["output"][0]["content"][0]["logprobs"]) == 6


def test_later_turns_go_on_from_kept_ones(server: Live) -> None:
    first = create(server, instructions="Be brief")
    second = create(server, previous_response_id=first["id"], input="And then?")
    chat = server.post(
        "/v1/chat/completions",
        messages=[
            {"role": "user", "content": "Hello"},
            {"role": "assistant", "content": text_of(first)},
            {"role": "user", "content": "And then?"},
        ],
        max_tokens=6,
        temperature=0,
        ignore_eos=True,
    ).json()
    assert text_of(second) == chat["choices"][0]["message"]["content"], "instructions are not carried over"
    assert second["previous_response_id"] == first["id"]


def test_a_kept_response_is_found_until_it_is_forgotten(server: Live) -> None:
    response = create(server)
    where = f"/v1/responses/{response['id']}"
    assert server.http.get(where).json() == response
    assert server.http.delete(where).json() == {"id": response["id"], "object": "response", "deleted": True}
    for answer in (server.http.get(where), server.http.delete(where), server.post(f"{where}/cancel")):
        assert answer.status_code == 404
        assert answer.json()["error"]["type"] == "NotFoundError"


def test_what_shall_not_be_kept_is_not(server: Live) -> None:
    response = create(server, store=False)
    assert server.http.get(f"/v1/responses/{response['id']}").status_code == 404
    assert server.post("/v1/responses", **BASE, previous_response_id=response["id"]).status_code == 404


def test_memory_for_responses_is_bounded() -> None:
    with live(response_store_bytes=5000) as server:
        ids = [create(server)["id"] for _ in range(8)]
        found = [server.http.get(f"/v1/responses/{response_id}").status_code == 200 for response_id in ids]
        assert found[-1]
        assert not found[0]
        assert server.app.state.kept[KeptResponses].store.num_bytes <= 5000


def test_only_background_responses_can_be_cancelled(server: Live) -> None:
    answer = server.post(f"/v1/responses/{create(server)['id']}/cancel")
    assert answer.status_code == 400
    assert "background" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"background": True, "store": False}, "background"),
        ({"input": []}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "image"),
        ({"input": "x" * 500}, None),
        ({"max_output_tokens": 10**9}, "max_output_tokens"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"model": "other"}, "model"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_errors_name_the_field(server: Live, fields: dict[str, Any], param: str | None, stream: bool) -> None:
    answer = server.post("/v1/responses", **{**BASE, **fields, "stream": stream})
    assert answer.status_code == (404 if "model" in fields else 400), answer.text
    if param is not None:
        assert answer.json()["error"]["param"] == param


def test_the_official_client(server: Live) -> None:
    with OpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        stop = {"stop": [text_of(create(server))[3:5]]}
        response = client.responses.create(model="tiny", input="Hello", temperature=0, extra_body=stop)
        assert response.output_text
        with client.responses.stream(model="tiny", input="Hello", temperature=0, extra_body=stop) as stream:
            text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
            assert stream.get_final_response().output_text == text == response.output_text
        assert client.responses.retrieve(response.id).output_text == text


TOOL = {"type": "function", "name": "now", "parameters": {"type": "object", "properties": {}}}
SAID = '<think>Hm.</think>Let me see.<tool_call>{"name": "now", "arguments": {}}</tool_call>'


@pytest.fixture(scope="module")
def tooled() -> Iterator[Live]:
    """A server that finds calls and reasoning in what a scripted model writes."""
    options = {"tool_call_parser": "hermes", "enable_auto_tool_choice": True, "reasoning_parser": "qwen3"}
    with live(make_engine(runner=ScriptedRunner, max_len=400), **options) as server:
        yield server


def test_reasoning_an_answer_and_a_call_are_items(tooled: Live) -> None:
    tooled.runner.write(SAID)
    response = create(tooled, tools=[TOOL], max_output_tokens=200, ignore_eos=False)
    assert response["status"] == "completed"
    reasoning, message, call = response["output"]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "Hm."}]
    assert message["content"][0]["text"] == "Let me see."
    assert (call["type"], call["name"], json.loads(call["arguments"])) == ("function_call", "now", {})
    tooled.runner.write(SAID)
    told = events(tooled, tools=[TOOL], max_output_tokens=200, ignore_eos=False)
    done = [event["item"] for event in told if event["type"] == "response.output_item.done"]
    assert [item["type"] for item in done] == ["reasoning", "message", "function_call"]
    assert done == told[-1]["response"]["output"]
    assert told[-1]["response"]["usage"]["output_tokens_details"]["reasoning_tokens"] > 0


def test_log_probabilities_are_those_of_the_answer_and_not_of_thoughts(tooled: Live) -> None:
    fields = {"include": ["message.output_text.logprobs"], "max_output_tokens": 200, "ignore_eos": False}
    said = "<think>Hm. Let me see \u6f22.</think>\u6f22 Let me see."
    for told in (True, False):
        tooled.runner.write(said)
        response = create(tooled, **fields, include_reasoning=told)
        tooled.runner.write(said)
        streamed = events(tooled, **fields, include_reasoning=told)[-1]["response"]
        for whole in (response, streamed):
            [part] = whole["output"][-1]["content"]
            *tokens, end = [entry["token"] for entry in part["logprobs"]]
            assert "".join(tokens) == part["text"] == "\u6f22 Let me see."
            assert end == TOKENIZER.eos_token


def test_log_probabilities_of_characters_that_are_several_tokens_and_no_thoughts(tooled: Live) -> None:
    fields = {"include": ["message.output_text.logprobs"], "max_output_tokens": 200, "ignore_eos": False}
    for told in (create, lambda *args, **kwargs: events(*args, **kwargs)[-1]["response"]):
        tooled.runner.write("\u6f22!")
        [part] = told(tooled, **fields)["output"][-1]["content"]
        assert [entry["token"] for entry in part["logprobs"]] == ["", "", "\u6f22", "!", TOKENIZER.eos_token]


def test_the_result_of_a_call_goes_back(tooled: Live) -> None:
    tooled.runner.write(SAID)
    first = create(tooled, tools=[TOOL], max_output_tokens=200, ignore_eos=False)
    call_id = first["output"][-1]["call_id"]
    tooled.runner.write("It is noon.")
    result = {"type": "function_call_output", "call_id": call_id, "output": "12:00"}
    second = create(
        tooled, previous_response_id=first["id"], input=[result], tools=[TOOL], max_output_tokens=200, ignore_eos=False
    )
    assert text_of(second) == "It is noon."
    kept = tooled.app.state.kept[KeptResponses].store.messages(second["id"])
    assert [message["role"] for message in kept] == ["user", "assistant", "tool", "assistant"]
    assert kept[1]["tool_calls"][0]["id"] == kept[2]["tool_call_id"] == call_id


def test_the_input_of_a_kept_response_is_listed(server: Live) -> None:
    given = [
        {"role": "user", "content": "one"},
        {"type": "message", "role": "assistant", "content": "two"},
        {"role": "user", "content": [{"type": "input_text", "text": "three"}]},
    ]
    path = f"/v1/responses/{create(server, input=given)['id']}/input_items"
    listed = server.http.get(path, params={"order": "asc"}).json()
    assert [item["content"][0]["text"] for item in listed["data"]] == ["one", "two", "three"]
    assert [item["content"][0]["type"] for item in listed["data"]] == ["input_text", "output_text", "input_text"]
    ids = [item["id"] for item in listed["data"]]
    assert (listed["first_id"], listed["last_id"], listed["has_more"]) == (ids[0], ids[2], False)
    newest = server.http.get(path, params={"limit": 2}).json()
    assert ([item["id"] for item in newest["data"]], newest["has_more"]) == ([ids[2], ids[1]], True)
    rest = server.http.get(path, params={"after": newest["last_id"]}).json()
    assert [item["id"] for item in rest["data"]] == [ids[0]]
    assert server.http.get(path, params={"after": "x"}).status_code == 400
    assert server.http.get(path, params={"limit": 0}).status_code == 400
    assert server.http.get("/v1/responses/resp_none/input_items").status_code == 404
    with OpenAI(base_url=f"{server.url}/v1", api_key="x") as client:
        text = client.responses.create(model="tiny", input="Hi", max_output_tokens=2)
        [item] = client.responses.input_items.list(text.id)
    assert item.type == "message"


@pytest.mark.parametrize(("name", "asks", "neutral"), [("stream", "true", "false"), ("starting_after", "3", None)])
def test_a_response_that_was_kept_is_told_whole(server: Live, name: str, asks: str, neutral: str | None) -> None:
    path = f"/v1/responses/{create(server)['id']}"
    refused = server.http.get(path, params={name: asks})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, name)
    assert server.http.get(path, params={name: neutral} if neutral else {}).status_code == 200


def test_what_a_grammar_gave_up_has_failed(tooled: Live) -> None:
    form = {"structured_outputs": {"regex": "[0-9]{40}"}, "max_output_tokens": 50, "ignore_eos": False}
    tooled.runner.write("12345 oops")
    response = create(tooled, **form)
    tooled.runner.write("12345 oops")
    told = events(tooled, **form)
    assert told[-1]["type"] == "response.failed"
    for failed in (response, told[-1]["response"]):
        assert (failed["status"], failed["error"]["code"]) == ("failed", "server_error")
        assert failed["output"][0]["status"] == "incomplete"
    assert "grammar" in response["error"]["message"]
    tooled.runner.write("")


def test_a_stream_that_ends_in_an_error_closes_what_it_opened() -> None:
    with live(make_engine(runner=GatedRunner), request_timeout=0.5) as server:
        server.runner.allow(10)
        told = events(server, max_output_tokens=60)
        kept = server.http.get(f"/v1/responses/{told[-1]['response']['id']}").json()
    assert [event["type"] for event in told if not event["type"].endswith("delta")][3:] == [
        "response.content_part.added",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.failed",
    ]
    [item] = told[-1]["response"]["output"]
    assert item == told[-2]["item"]
    assert item["status"] == "incomplete"
    assert "longest that this server allows" in told[-1]["response"]["error"]["message"]
    assert kept == told[-1]["response"]


def test_a_response_whose_client_left_is_not_complete() -> None:
    with live(make_engine(runner=GatedRunner)) as server:
        with server.http.stream("POST", "/v1/responses", json={**BASE, "stream": True}) as response:
            line = next(line for line in response.iter_lines() if line.startswith("data: "))
        until(lambda: not server.service.engine.num_open, "it has gone")
        response_id = json.loads(line.removeprefix("data: "))["response"]["id"]
        left = server.http.get(f"/v1/responses/{response_id}")
        assert left.status_code == 404 or left.json()["status"] == "cancelled"


def test_a_response_that_a_pause_aborted_has_failed() -> None:
    with live(make_engine(runner=GatedRunner), server_dev_mode=True) as server:
        started = server.post("/v1/responses", **BASE, background=True).json()
        server.runner.allow(3)
        pausing = threading.Thread(target=lambda: server.http.post("/pause"))
        pausing.start()
        channel: Any = server.engine.front.channel
        until(lambda: bool(channel._messages.qsize()) or not pausing.is_alive(), "it was asked for, or done at once")
        server.runner.open()
        pausing.join()
        found = server.http.get(f"/v1/responses/{started['id']}").json()
        assert (found["status"], found["incomplete_details"]) == ("failed", None)
        assert "paused" in found["error"]["message"]
