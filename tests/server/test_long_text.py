"""Long texts: refused unread or after a part, encoded as if whole, away from the event loop, in calls that are not too long."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

import pytest

from jaxengine.contract.facts import EngineFacts
from jaxengine.errors import ContextLengthError
from jaxengine.server.long_text import LONGEST_TEXT, PIECE, encode_texts
from jaxengine.server.service import Service
from jaxengine.text.tokenizer import Tokenizer
from tests.fronts import MAX_LEN, TOKENIZER, make_engine
from tests.server.rig import Live, live


class Watched:
    """A tokenizer that notes how many characters each call gets."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def certainly_exceeds(self, text: str, num_tokens: int) -> bool:
        return TOKENIZER.certainly_exceeds(text, num_tokens)

    def encode_batch(self, texts: Sequence[str], **options: Any) -> list[list[int]]:
        self.calls.append(sum(map(len, texts)))
        return TOKENIZER.encode_batch(texts, **options)


def serving(max_model_len: int) -> Service:
    facts = EngineFacts(
        vocab_size=400, max_model_len=max_model_len, longest_context=2 * max_model_len, context_option="num_pages"
    )
    return cast(Service, SimpleNamespace(max_model_len=max_model_len, intake=SimpleNamespace(facts=facts)))


def encode(texts: Sequence[str], *, max_model_len: int, **options: Any) -> tuple[list[list[int]], list[int]]:
    tokenizer, service = Watched(), serving(max_model_len)
    ids = encode_texts(cast(Tokenizer, tokenizer), texts, service, special=True, **options)
    return ids, tokenizer.calls


def test_ids_are_those_of_the_whole_text() -> None:
    texts = ["", "Tom", "x" * (PIECE + 5), "é" * 100, "Once " * 20_000]
    ids, _ = encode(texts, max_model_len=200_000)
    assert ids == [TOKENIZER.encode(text) for text in texts]


def test_the_first_ids_of_each_text_may_be_enough() -> None:
    ids, _ = encode(["Tom", "x" * (PIECE + 5)], max_model_len=100, must_fit=False, keep=3)
    assert ids == [TOKENIZER.encode("Tom")[:3], TOKENIZER.encode("xx")]


def test_short_texts_share_calls_of_a_piece() -> None:
    ids, calls = encode(["ab" * 500] * 200, max_model_len=5000)
    assert len(ids) == 200
    assert sum(calls) == 200_000
    assert max(calls) <= PIECE
    assert len(calls) == 4


def test_a_text_that_cannot_fit_is_refused_after_a_part_of_it() -> None:
    tokenizer, service = Watched(), serving(50_000)
    with pytest.raises(
        ContextLengthError, match=r"maximum context length is 50000 tokens.* more than 100000 tokens.*num_pages"
    ):
        encode_texts(cast(Tokenizer, tokenizer), ["z" * 3 * PIECE], service, special=True)
    assert tokenizer.calls == [PIECE, PIECE], "each of its characters is a token"


def test_a_text_that_no_tokens_of_the_context_could_spell_is_not_read() -> None:
    tokenizer, service = Watched(), serving(100)
    longest = max(map(len, TOKENIZER.backend.get_vocab()))
    with pytest.raises(
        ContextLengthError, match=r"maximum context length is 100 tokens.* your text of .* characters.*num_pages"
    ):
        encode_texts(cast(Tokenizer, tokenizer), ["z" * (100 * longest + 1)], service, special=True)
    assert tokenizer.calls == []


def test_a_text_that_need_not_fit_may_be_longer() -> None:
    [ids], _ = encode(["z" * 3 * PIECE], max_model_len=100, must_fit=False)
    assert len(ids) == 3 * PIECE + 1
    with pytest.raises(ContextLengthError, match=f"more than {LONGEST_TEXT} tokens"):
        encode(["z" * 5 * PIECE], max_model_len=100, must_fit=False)


def test_endpoints_refuse_and_take_long_texts(server: Live) -> None:
    text = "z" * (PIECE + 1)
    messages = [{"role": "user", "content": text}]
    for path, body in (("/v1/completions", {"prompt": text}), ("/v1/chat/completions", {"messages": messages})):
        response = server.post(path, **body)
        assert response.status_code == 400
        assert f"maximum context length is {MAX_LEN} tokens" in response.json()["error"]["message"]
        assert response.json()["error"]["param"] == "input_tokens"
        cut = server.post(path, **body, max_tokens=1, truncate_prompt_tokens=5)
        assert cut.json()["usage"]["prompt_tokens"] == 5
    assert server.post("/tokenize", prompt=text).json()["count"] == PIECE + 2
    assert server.post("/tokenize", messages=messages).json()["count"] > PIECE
    assert server.post("/tokenize", prompt=text * 5).status_code == 400
    assert len(server.post("/detokenize", tokens=[5] * 70_000).json()["prompt"]) > 0


def test_many_token_ids_are_checked_like_few(server: Live) -> None:
    ids = [5] * 5000
    assert "contains 5000 input tokens" in server.post("/v1/completions", prompt=ids).text
    usage = server.post("/v1/completions", prompt=ids, max_tokens=1, truncate_prompt_tokens=7).json()["usage"]
    assert usage["prompt_tokens"] == 7


class Halting(Tokenizer):
    """A tokenizer that notes what it is asked for, and keeps long texts until it is told to go on."""

    def __init__(self) -> None:
        super().__init__(TOKENIZER.backend, TOKENIZER.settings)
        self.asked: list[str] = []
        self.busy, self.go_on = threading.Event(), threading.Event()

    def encode_batch(self, texts: Sequence[str], **options: Any) -> list[list[int]]:
        self.asked += texts
        if max(map(len, texts)) > MAX_LEN:
            self.busy.set()
            assert self.go_on.wait(20)
        return super().encode_batch(texts, **options)


@pytest.fixture
def halting() -> Iterator[tuple[Live, Halting]]:
    tokenizer = Halting()
    with live(make_engine(tokenizer=tokenizer)) as server:
        yield server, tokenizer
        tokenizer.go_on.set()


def test_the_largest_bodies_are_refused_without_the_tokenizer(halting: tuple[Live, Halting]) -> None:
    server, tokenizer = halting
    text = "a " * 1_950_000
    messages = [{"role": "user", "content": text}]
    bodies = {
        "/v1/completions": {"prompt": text},
        "/v1/chat/completions": {"messages": messages},
        "/v1/responses": {"input": text},
        "/v1/embeddings": {"input": text},
    }
    for path, body in bodies.items():
        response = server.post(path, **body)
        assert response.status_code == 400, path
        assert "characters has more" in response.json()["error"]["message"], path
    words = server.post("/v1/completions", prompt="a", bad_words=[text])
    assert words.json()["error"]["param"] == "bad_words"
    assert max(map(len, tokenizer.asked)) == 1


def test_streams_and_health_go_on_while_a_long_text_is_tokenised(halting: tuple[Live, Halting]) -> None:
    server, tokenizer = halting
    with ThreadPoolExecutor(2) as threads:
        asked = [
            threads.submit(server.post, "/tokenize", prompt="z" * PIECE),
            threads.submit(server.post, "/v1/completions", prompt="z" * (MAX_LEN + 1)),
        ]
        assert tokenizer.busy.wait(20)
        assert server.http.get("/health").status_code == 200
        *events, done = server.events("/v1/completions", prompt="Tom", max_tokens=20, ignore_eos=True)
        assert events
        assert done == "[DONE]"
        assert not any(answer.done() for answer in asked)
        tokenizer.go_on.set()
        assert [answer.result().status_code for answer in asked] == [200, 400]
