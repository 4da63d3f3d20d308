"""Log probabilities in the forms of the API, of chats and of prompts."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from jaxengine.contract.outputs import Logprob, PositionLogprobs
from jaxengine.server.generation.logprobs import chat_logprobs, prompt_logprobs
from jaxengine.server.http.pieces import Slices, json_texts

A, SAME_AS_A, B = 1, 2, 3


def position(chosen: int) -> PositionLogprobs:
    entries = {A: Logprob(-0.5, 1, "a"), SAME_AS_A: Logprob(-3.0, 3, "a"), B: Logprob(-1.0, 2, "b")}
    return {chosen: entries[chosen], **entries}


def test_a_chat_token_has_the_best_alternatives_first_whatever_was_chosen() -> None:
    [entry] = chat_logprobs([SAME_AS_A], [position(SAME_AS_A)], top=2, as_ids=False)
    assert (entry["token"], entry["logprob"], entry["bytes"]) == ("a", -3.0, [97])
    assert [(top["token"], top["logprob"]) for top in entry["top_logprobs"]] == [("a", -0.5), ("b", -1.0)]


def test_minus_one_is_every_alternative() -> None:
    [entry] = chat_logprobs([A], [position(A)], top=-1, as_ids=False)
    assert [top["logprob"] for top in entry["top_logprobs"]] == [-0.5, -1.0, -3.0]


def test_bytes_are_those_of_the_text() -> None:
    [entry] = chat_logprobs([A], [{A: Logprob(-0.1, 1, "ü€")}], top=0, as_ids=False)
    assert bytes(entry["bytes"]).decode() == "ü€"
    [bare] = chat_logprobs([A], [{A: Logprob(-0.1, 1, None)}], top=1, as_ids=False)
    assert bare["token"] == "token_id:1"


def test_prompt_logprobs_by_token_id() -> None:
    positions: list[PositionLogprobs | None] = [None, *({A: Logprob(-0.5, 1, "a")} for _ in range(500))]
    written = asyncio.run(written_in_slices(positions))
    assert written == [None, *[{"1": {"logprob": -0.5, "rank": 1, "decoded_token": "a"}}] * 500]


async def written_in_slices(positions: list[PositionLogprobs | None]) -> Any:
    return json.loads(b"".join(json_texts(await prompt_logprobs(positions, Slices()))))
