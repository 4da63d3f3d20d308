"""Large answers: the same text as at once, in pieces, with turns for others between them; and too large ones."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import orjson
import pytest

from jaxengine.contract.outputs import Logprob, PositionLogprobs
from jaxengine.server.generation.logprobs import prompt_logprobs
from jaxengine.server.http import pieces
from jaxengine.server.http.pieces import LEAST_PIECE, PART, JsonArray, Slices, joined, json_texts, parts
from tests.server.rig import Live, live

CHAT = {"messages": [{"role": "user", "content": "Hi"}], "temperature": 0}


def array(items: list[Any], *, at_once: int = 7) -> JsonArray:
    written = JsonArray()
    for begin in range(0, len(items), at_once):
        written.extend(items[begin : begin + at_once])
    return written


@pytest.mark.parametrize("count", [0, 1, PART - 1, PART, PART + 1, 1000])
def test_the_text_is_that_of_plain_lists(count: int) -> None:
    items = [{"token": 'ü"\\', "logprob": -0.5 * number, "top": [None, number]} for number in range(count)]
    plain = {"id": "x", "choices": [{"index": 0, "all": items}, {"index": 1, "all": []}], "last": items}
    in_pieces = {
        "id": "x",
        "choices": [{"index": 0, "all": array(items)}, {"index": 1, "all": JsonArray()}],
        "last": array(items, at_once=1),
    }
    assert b"".join(json_texts(in_pieces)) == orjson.dumps(plain)
    assert b"".join(joined(json_texts(in_pieces))) == orjson.dumps(plain)


def test_an_array_goes_on_with_another() -> None:
    first, second = array([1, 2, 3]), array(list(range(200)))
    first.extend(second)
    first.extend([9])
    assert json.loads(b"".join(json_texts(first))) == [1, 2, 3, *range(200), 9]
    assert json.loads(b"".join(json_texts(second))) == list(range(200))


def test_small_pieces_are_put_together_and_large_ones_left_alone() -> None:
    texts = [b"x" * 10] * 20_000 + [b"y" * (3 * LEAST_PIECE)]
    found = list(joined(texts))
    assert b"".join(found) == b"".join(texts)
    assert all(LEAST_PIECE <= len(piece) < 2 * LEAST_PIECE for piece in found[:-2])
    assert len(json_texts({"a": 1})) == 1
    assert [len(part) for part in parts(range(3 * PART + 1))] == [PART] * 3 + [1]


def test_what_is_no_json_is_refused() -> None:
    with pytest.raises(TypeError, match="not JSON serializable"):
        json_texts({"a": object()})


def test_others_get_their_turn_while_a_prompt_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "SLICE_S", 0.0)
    turns = 0

    async def neighbour() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def scenario() -> None:
        task = asyncio.create_task(neighbour())
        positions: list[PositionLogprobs | None] = [{1: Logprob(-0.5, 1, "a")}] * (20 * PART)
        await prompt_logprobs(positions, Slices())
        task.cancel()

    asyncio.run(scenario())
    assert turns >= 20


def test_a_large_answer_is_sent_in_pieces_and_others_are_served_between_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "SLICE_S", 0.0)
    yields = 0
    turn = Slices.turn

    async def counted(self: Slices) -> None:
        nonlocal yields
        yields += 1
        await turn(self)

    monkeypatch.setattr(Slices, "turn", counted)
    body = {
        "prompt": [[1 + at % 90] * 80 for at in range(40)],
        "max_tokens": 1,
        "temperature": 0,
        "prompt_logprobs": 20,
    }
    with live() as server:
        response = server.post("/v1/completions", **body)
        assert response.status_code == 200
        assert int(response.headers["content-length"]) == len(response.content) > 4 * LEAST_PIECE
        choices = response.json()["choices"]
        assert [len(choice["prompt_logprobs"]) for choice in choices] == [80] * 40
        alone = server.post("/v1/completions", **{**body, "prompt": body["prompt"][3]}).json()["choices"][0]
        assert {**choices[3], "index": 0} == alone
    assert yields > 40 + 40 * 80 // PART


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/completions", {"prompt": [5] * 60, "max_tokens": 1, "prompt_logprobs": 4}, "prompt_logprobs"),
        ("/v1/completions", {"prompt": [5] * 60, "max_tokens": 0, "echo": True, "logprobs": 4}, "logprobs"),
        ("/v1/completions", {"prompt": [[5] * 9] * 9, "max_tokens": 1, "prompt_logprobs": 4}, "prompt_logprobs"),
        ("/v1/completions", {"prompt": "a", "n": 8, "temperature": 1, "max_tokens": 10, "logprobs": 3}, "logprobs"),
        ("/v1/completions", {"prompt": [5] * 9, "max_tokens": 1, "prompt_logprobs": 19}, None),
        ("/v1/completions", {"prompt": "a", "max_tokens": 60, "logprobs": 4, "stream": True, "ignore_eos": True}, None),
        ("/v1/chat/completions", {**CHAT, "max_tokens": 60, "logprobs": True, "top_logprobs": 4}, "top_logprobs"),
        ("/v1/chat/completions", {**CHAT, "logprobs": True, "top_logprobs": 9, "ignore_eos": True}, "logprobs"),
        ("/v1/chat/completions", {**CHAT, "prompt_logprobs": 20}, "prompt_logprobs"),
    ],
)
def test_what_no_one_can_read_is_a_clear_400(few: Live, path: str, body: dict[str, Any], param: str | None) -> None:
    response = few.post(path, **body)
    if param is None:
        assert response.status_code == 200, response.text
        return
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == param
    assert "at most 200 are allowed in one (--max-logprob-entries)" in error["message"]


@pytest.fixture(scope="module")
def few() -> Any:
    with live(max_logprob_entries=200) as server:
        yield server
        server.settle()
