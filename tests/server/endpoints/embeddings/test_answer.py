"""`/v1/embeddings`: forms of inputs, forms of embeddings, what is refused, and the official client."""

from __future__ import annotations

import base64
import logging
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from openai import BadRequestError, OpenAI

from tests.fakes import EMBEDDING_SIZE, GatedRunner, oracle_embedding
from tests.fronts import MAX_LEN, TOKENIZER, make_engine
from tests.robustness.loopback import until
from tests.server.rig import Live, live

TEXTS = ["Once upon a time", "The quick brown fox jumps over the lazy dog", "Tom"]
IDS = [TOKENIZER.encode(text) for text in TEXTS]


def embed(server: Live, given: Any, **body: Any) -> dict[str, Any]:
    response = server.post("/v1/embeddings", input=given, **body)
    assert response.status_code == 200, response.text
    return response.json()


def vectors(answer: dict[str, Any]) -> np.ndarray:
    assert [entry["index"] for entry in answer["data"]] == list(range(len(answer["data"])))
    assert {entry["object"] for entry in answer["data"]} == {"embedding"}
    return np.array([entry["embedding"] for entry in answer["data"]], np.float32)


def expected(ids: Any, *, dimensions: int | None = None, normalize: bool = True) -> np.ndarray:
    vector = oracle_embedding(ids)[:dimensions].astype(np.float64)
    return vector / np.linalg.norm(vector) if normalize else vector


def test_an_answer(server: Live) -> None:
    answer = embed(server, TEXTS, model="tiny", user="u", request_id="mine")
    assert (answer["id"], answer["object"], answer["model"]) == ("embd-mine", "list", "tiny")
    assert isinstance(answer["created"], int)
    total = sum(map(len, IDS))
    assert answer["usage"].items() >= {"prompt_tokens": total, "total_tokens": total}.items()
    np.testing.assert_allclose(vectors(answer), [expected(ids) for ids in IDS], rtol=1e-6)


@pytest.mark.parametrize(
    ("given", "ids"),
    [(TEXTS[0], IDS[:1]), (TEXTS, IDS), (IDS[0], IDS[:1]), (IDS, IDS), ([[5]], [[5]]), ([5], [[5]])],
)
def test_texts_and_ids_alone_and_in_lists(server: Live, given: Any, ids: list[list[int]]) -> None:
    answer = embed(server, given)
    np.testing.assert_allclose(vectors(answer), [expected(each) for each in ids], rtol=1e-6)
    assert answer["usage"]["prompt_tokens"] == sum(map(len, ids))


def test_what_a_pause_aborts_is_to_be_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    with live(make_engine(), server_dev_mode=True) as server, ThreadPoolExecutor(1) as pool:
        server.http.post("/pause")
        asked = pool.submit(server.post, "/v1/embeddings", input=TEXTS)
        until(lambda: server.service.engine.num_open == len(TEXTS), "they wait")
        server.http.post("/pause?mode=abort")
        answer = asked.result()
        assert (answer.status_code, "Retry-After" in answer.headers) == (503, True)
        assert "paused" in answer.json()["error"]["message"]
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_float_and_base64_are_the_same_numbers(server: Live) -> None:
    numbers = vectors(embed(server, TEXTS))
    for endianness, order in (("little", "<"), ("native", "<"), ("big", ">"), (None, "<")):
        answer = embed(server, TEXTS, encoding_format="base64", endianness=endianness)
        found = [np.frombuffer(base64.b64decode(entry["embedding"]), f"{order}f4") for entry in answer["data"]]
        np.testing.assert_array_equal(np.array(found), numbers)


def test_dimensions_and_normalisation(server: Live) -> None:
    cut = vectors(embed(server, TEXTS, dimensions=3))
    np.testing.assert_allclose(cut, [expected(ids, dimensions=3) for ids in IDS], rtol=1e-6)
    for name in ("normalize", "use_activation"):
        raw = vectors(embed(server, TEXTS, **{name: False}))
        np.testing.assert_array_equal(raw, [oracle_embedding(ids) for ids in IDS])


def test_special_tokens_and_truncation(server: Live) -> None:
    bare = TOKENIZER.encode(TEXTS[1], add_special_tokens=False)
    found = vectors(embed(server, TEXTS[1], add_special_tokens=False))
    np.testing.assert_allclose(found[0], expected(bare), rtol=1e-6)
    for given in (TEXTS[1], IDS[1]):
        answer = embed(server, given, truncate_prompt_tokens=4)
        assert answer["usage"]["prompt_tokens"] == 4
        np.testing.assert_allclose(vectors(answer)[0], expected(IDS[1][:4]), rtol=1e-6)
    assert embed(server, [5] * 200, truncate_prompt_tokens=-1)["usage"]["prompt_tokens"] == MAX_LEN


def test_an_input_may_fill_the_context(server: Live) -> None:
    ids = [5 + i % 7 for i in range(MAX_LEN)]
    np.testing.assert_allclose(vectors(embed(server, ids))[0], expected(ids), rtol=1e-6)


def test_a_conversation_is_embedded_as_its_template_renders_it(server: Live) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    for prompt, more in (("<user>Hi", {}), ("<user>Hi<bot>", {"add_generation_prompt": True})):
        response = server.post("/v1/embeddings", messages=messages, **more)
        ids = TOKENIZER.encode(prompt, add_special_tokens=False)
        np.testing.assert_allclose(vectors(response.json())[0], expected(ids), rtol=1e-6)


def test_many_inputs_come_back_in_order(server: Live) -> None:
    inputs = [[5 + i % 50, 7 + i // 50] for i in range(300)]
    found = vectors(embed(server, inputs))
    np.testing.assert_allclose(found, [expected(ids) for ids in inputs], rtol=1e-6)


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({}, "input", "give either input or messages"),
        ({"input": "a", "messages": []}, "input", "give either input or messages"),
        ({"input": []}, "input", "input must not be empty"),
        ({"input": [[]]}, "prompt", "The decoder prompt cannot be empty"),
        ({"input": ["Tom", ""], "add_special_tokens": False}, "prompt", "input 1: The decoder prompt cannot be empty"),
        ({"input": [[5], [10**6]]}, "prompt_token_ids", "input 1: .*out of vocabulary"),
        ({"input": [5] * (MAX_LEN + 1)}, "input_tokens", f"maximum context length is {MAX_LEN} tokens"),
        ({"input": [[5]] * 2049}, "input", "at most 2048 entries, got 2049"),
        ({"input": [1.5]}, "input", ""),
        ({"input": {"text": "a"}}, "input", ""),
        ({"input": "a", "dimensions": EMBEDDING_SIZE + 1}, "dimensions", f"from 1 to {EMBEDDING_SIZE}"),
        ({"input": "a", "dimensions": 0}, "dimensions", "at least 1, got 0"),
        ({"input": "a", "normalize": True, "use_activation": False}, "normalize", "the same setting"),
        ({"input": "a", "truncate_prompt_tokens": MAX_LEN + 1}, "truncate_prompt_tokens", "or -1, got 97"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format", "must be float or base64, got 'hex'"),
        ({"input": "a", "encoding_format": "bytes"}, "encoding_format", "'bytes' is not supported"),
        ({"input": "a", "embed_dtype": "float16"}, "embed_dtype", "sent as float32"),
        ({"input": "a", "endianness": "middle"}, "endianness", ""),
        ({"input": "a", "truncation_side": "left"}, "truncation_side", "embeddings keep the beginning"),
        ({"input": "a", "request_id": "a b"}, "request_id", "only a label"),
        ({"messages": [{"role": "user", "content": "Hi"}], "chat_template": "x"}, "chat_template", "is refused"),
    ],
)
def test_what_is_refused(server: Live, body: dict[str, Any], param: str, message: str) -> None:
    response = server.post("/v1/embeddings", **body)
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, 400, param)
    assert re.search(message, error["message"])


def test_another_model_is_not_found(server: Live) -> None:
    assert server.post("/v1/embeddings", input="a", model="other").status_code == 404


def test_the_official_client(server: Live) -> None:
    with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        plain = client.embeddings.create(model="tiny", input=TEXTS)  # asks for base64 and decodes it
        floats = client.embeddings.create(model="tiny", input=TEXTS, encoding_format="float")
        short = client.embeddings.create(model="tiny", input=IDS, dimensions=3)
        with pytest.raises(BadRequestError, match="from 1 to"):
            client.embeddings.create(model="tiny", input="a", dimensions=99)
    for answer, dimensions in ((plain, None), (floats, None), (short, 3)):
        found = [entry.embedding for entry in answer.data]
        np.testing.assert_allclose(found, [expected(ids, dimensions=dimensions) for ids in IDS], rtol=1e-6)
        assert answer.usage.total_tokens == sum(map(len, IDS))


def test_embeddings_share_steps_with_generation() -> None:
    """Two at once: what each gets is what it gets alone, and the engine has run both in the same steps."""
    body = {"prompt": TEXTS[1], "max_tokens": 12, "temperature": 0, "ignore_eos": True}
    with live() as server:
        alone = server.post("/v1/completions", **body).json()["choices"]
        vector = vectors(embed(server, TEXTS))
    with live(make_engine(runner=GatedRunner)) as server, ThreadPoolExecutor(2) as threads:
        generating = threads.submit(server.post, "/v1/completions", **body)
        embedding = threads.submit(embed, server, TEXTS)
        while server.service.engine.num_open < 4:
            assert not generating.done()
        server.runner.open()
        assert generating.result().json()["choices"] == alone
        np.testing.assert_array_equal(vectors(embedding.result()), vector)
        assert server.runner.steps < 20


def test_counts_are_exported() -> None:
    with live() as server:
        embed(server, TEXTS)
        metrics = server.http.get("/metrics").text

    def total(name: str) -> float:
        lines = [line for line in metrics.splitlines() if line.startswith(f"{name}{{")]
        assert lines
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)

    assert total("vllm:prompt_tokens_total") == sum(map(len, IDS))
    assert total("vllm:generation_tokens_total") == 0
    assert total("vllm:request_success_total") == len(TEXTS)
