"""`/pooling`, `/classify`, `/score`, `/rerank` and `/v2/embed`: forms of bodies and answers, and what is refused."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from jaxengine.contract.pooling import Finish, PoolerTraits
from jaxengine.front.pooled import sigmoid, softmax
from tests.fakes import EMBEDDING_SIZE, oracle_embedding
from tests.fronts import TOKENIZER, make_engine
from tests.server.rig import Live, live

TEXTS = ["Once upon a time", "The quick brown fox jumps", "Tom"]
IDS = [TOKENIZER.encode(text) for text in TEXTS]
LABELS = tuple(f"label {number}" for number in range(EMBEDDING_SIZE))
EMBEDS = PoolerTraits(
    with_each=True, size=EMBEDDING_SIZE, each_size=EMBEDDING_SIZE, prompts={"query": "Tom said: "}, chunk_long=True
)
CLASSIFIES = PoolerTraits(
    with_each=True,
    size=EMBEDDING_SIZE,
    each_size=EMBEDDING_SIZE,
    labels=LABELS,
    finish=Finish.SOFTMAX,
    activation=Finish.SOFTMAX,
)
COMPARES = PoolerTraits(size=1, labels=("relevance",), finish=Finish.SIGMOID, activation=Finish.SIGMOID)
LATE = PoolerTraits(pooling=None, with_each=True, size=EMBEDDING_SIZE, each_size=EMBEDDING_SIZE)


@pytest.fixture(scope="module")
def embeds() -> Iterator[Live]:
    with live(make_engine(pooler=EMBEDS)) as running:
        yield running


@pytest.fixture(scope="module")
def classifies() -> Iterator[Live]:
    with live(make_engine(pooler=CLASSIFIES)) as running:
        yield running


@pytest.fixture(scope="module")
def compares() -> Iterator[Live]:
    with live(make_engine(pooler=COMPARES)) as running:
        yield running


def asked(server: Live, path: str, **body: Any) -> dict[str, Any]:
    response = server.post(path, **body)
    assert response.status_code == 200, response.text
    return response.json()


def refused(server: Live, path: str, **body: Any) -> tuple[str, str]:
    response = server.post(path, **body)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    return error["param"], error["message"]


def unit(ids: Any) -> np.ndarray:
    vector = oracle_embedding(ids)
    return vector / np.linalg.norm(vector)


def cosines() -> list[float]:
    return [float(unit(IDS[0]) @ unit(ids)) for ids in IDS]


def test_pooling_by_task(embeds: Live, classifies: Live) -> None:
    answer = asked(embeds, "/pooling", input=TEXTS, model="tiny", request_id="mine")
    assert (answer["id"], answer["object"], answer["usage"]["prompt_tokens"]) == (
        "pool-mine",
        "list",
        sum(map(len, IDS)),
    )
    np.testing.assert_allclose([entry["data"] for entry in answer["data"]], [*map(unit, IDS)], rtol=1e-6)
    each = asked(embeds, "/pooling", input=IDS[1], task="token_embed", use_activation=False)["data"][0]["data"]
    np.testing.assert_array_equal(np.float32(each), [oracle_embedding(IDS[1][: end + 1]) for end in range(len(IDS[1]))])
    packed = asked(embeds, "/pooling", input=TEXTS[:1], encoding_format="base64", endianness="big")["data"][0]
    np.testing.assert_allclose(np.frombuffer(base64.b64decode(packed["data"]), ">f4"), unit(IDS[0]), rtol=1e-6)
    tag = IDS[1][2]
    steps = asked(
        classifies,
        "/pooling",
        input=IDS[1],
        task="token_classify",
        step_tag_id=tag,
        returned_token_ids=[1, 0],
        activation=False,
    )
    ends = [end for end, token in enumerate(IDS[1]) if token == tag]
    np.testing.assert_array_equal(
        np.float32(steps["data"][0]["data"]), [oracle_embedding(IDS[1][: end + 1])[[1, 0]] for end in ends]
    )


def test_classes_with_their_labels(classifies: Live) -> None:
    answer = asked(classifies, "/classify", input=TEXTS)
    for entry, ids in zip(answer["data"], IDS, strict=True):
        expected = softmax(oracle_embedding(ids))
        np.testing.assert_allclose(entry["probs"], expected, rtol=1e-6)
        assert entry["label"] == LABELS[int(expected.argmax())]
        assert entry["num_classes"] == EMBEDDING_SIZE
    message = [{"role": "user", "content": "Hi"}]
    assert len(asked(classifies, "/classify", messages=message)["data"]) == 1
    assert "no task 'embed'" in refused(classifies, "/v1/embeddings", input="a")[1]


@pytest.mark.parametrize("path", ["/score", "/v1/score"])
@pytest.mark.parametrize(
    ("first", "second"), [("text_1", "text_2"), ("data_1", "data_2"), ("queries", "documents"), ("queries", "items")]
)
def test_scores_of_embeddings_are_cosines(embeds: Live, path: str, first: str, second: str) -> None:
    answer = asked(embeds, path, **{first: TEXTS[0], second: TEXTS})
    assert [entry["index"] for entry in answer["data"]] == [0, 1, 2]
    np.testing.assert_allclose([entry["score"] for entry in answer["data"]], cosines(), rtol=1e-5)


def test_scores_of_a_model_that_reads_both(compares: Live) -> None:
    joined = [ids for ids, _ in TOKENIZER.encode_pairs([(TEXTS[0], text) for text in TEXTS])]
    expected = [float(sigmoid(oracle_embedding(ids))[0]) for ids in joined]
    answer = asked(compares, "/score", queries=TEXTS[0], documents=TEXTS)
    np.testing.assert_allclose([entry["score"] for entry in answer["data"]], expected, rtol=1e-6)
    raw = asked(compares, "/score", text_1=TEXTS[0], text_2=TEXTS, use_activation=False)["data"]
    np.testing.assert_array_equal(
        np.float32([entry["score"] for entry in raw]), [oracle_embedding(ids)[0] for ids in joined]
    )
    assert answer["usage"]["prompt_tokens"] == sum(map(len, joined))


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_documents_in_order(embeds: Live, path: str) -> None:
    scores = cosines()
    order = sorted(range(3), key=lambda index: -scores[index])
    documents = [TEXTS[0], {"text": TEXTS[1]}, {"content": [{"type": "text", "text": TEXTS[2]}]}]
    answer = asked(embeds, path, query=TEXTS[0], documents=documents)
    assert [result["index"] for result in answer["results"]] == order
    np.testing.assert_allclose(
        [result["relevance_score"] for result in answer["results"]], sorted(scores, reverse=True), rtol=1e-5
    )
    assert [result["document"]["text"] for result in answer["results"]] == [TEXTS[index] for index in order]
    assert ("meta" in answer) == (path == "/v2/rerank")
    best = asked(embeds, path, query=TEXTS[0], documents=TEXTS, top_n=1, return_documents=False)
    assert best["results"] == [{"index": 0, "relevance_score": pytest.approx(1.0)}]


def test_documents_are_cut(embeds: Live) -> None:
    """Cohere's `max_tokens_per_doc`, of the document and not of the query."""
    answer = asked(embeds, "/v2/rerank", query=TEXTS[0], documents=[TEXTS[1]], max_tokens_per_doc=3)
    cut = TOKENIZER.encode(TEXTS[1])[:4]  # and the token that begins every text
    assert answer["results"][0]["relevance_score"] == pytest.approx(float(unit(IDS[0]) @ unit(cut)), rel=1e-5)
    assert answer["results"][0]["document"]["text"] == TEXTS[1]


def test_late_interaction(embeds: Live) -> None:
    with live(make_engine(pooler=LATE)) as server:
        found = asked(server, "/score", queries=TEXTS[0], documents=TEXTS[1])["data"][0]["score"]
        first, second = (np.array([unit(ids[: end + 1]) for end in range(len(ids))]) for ids in IDS[:2])
        assert found == pytest.approx(float((first @ second.T).max(axis=1).sum()), rel=1e-5)
        assert "no task 'embed'; it has token_embed" in refused(server, "/v1/embeddings", input="a")[1]


def test_coheres_embeddings(embeds: Live) -> None:
    types = ["float", "base64", "int8", "uint8", "binary", "ubinary"]
    answer = asked(embeds, "/v2/embed", texts=TEXTS, embedding_types=types, model="tiny")
    assert (answer["response_type"], answer["texts"]) == ("embeddings_by_type", TEXTS)
    assert answer["meta"]["billed_units"] == {"input_tokens": sum(map(len, IDS))}
    vectors = np.array([*map(unit, IDS)])
    found = answer["embeddings"]
    np.testing.assert_allclose(found["float"], vectors, rtol=1e-6)
    packed = [np.frombuffer(base64.b64decode(text), "<f4") for text in found["base64"]]
    np.testing.assert_allclose(packed, vectors, rtol=1e-6)
    bits = np.unpackbits(np.array(found["ubinary"], np.uint8), axis=1)
    np.testing.assert_array_equal(bits, vectors > 0)
    np.testing.assert_array_equal(np.array(found["binary"]) + 128, found["ubinary"])
    integers = np.array(found["int8"])
    assert (np.abs(integers).max(axis=1) == 127).all()
    np.testing.assert_allclose(integers / 127 * np.abs(vectors).max(axis=1, keepdims=True), vectors, atol=0.5 / 127)
    np.testing.assert_array_equal(integers + 128, found["uint8"])
    asks = asked(embeds, "/v2/embed", texts=["hello"], input_type="search_query", output_dimension=3)
    told = oracle_embedding(TOKENIZER.encode("Tom said: hello"))[:3]
    np.testing.assert_allclose(asks["embeddings"]["float"][0], told / np.linalg.norm(told), rtol=1e-6)
    content = [{"content": [{"type": "text", "text": TEXTS[0]}]}]
    same = asked(embeds, "/v2/embed", inputs=content, input_type="search_document")
    np.testing.assert_allclose(same["embeddings"]["float"][0], vectors[0], rtol=1e-6)


def test_inputs_longer_than_the_context(embeds: Live, classifies: Live) -> None:
    text = " ".join(TEXTS * 12)
    ids = TOKENIZER.encode(text)
    parts = [ids[begin : begin + 96] for begin in range(0, len(ids), 96)]
    assert len(parts) > 1
    vectors = np.array([oracle_embedding(part) * len(part) for part in parts]).sum(axis=0)
    [entry] = asked(embeds, "/v1/embeddings", input=text)["data"]
    np.testing.assert_allclose(entry["embedding"], vectors / np.linalg.norm(vectors), rtol=1e-5)
    assert refused(classifies, "/classify", input=text)[0] == "input_tokens"


def test_jinas_names(embeds: Live) -> None:
    [entry] = asked(embeds, "/v1/embeddings", input=TEXTS[0], normalized=False, embedding_type="base64", truncate=True)[
        "data"
    ]
    found = np.frombuffer(base64.b64decode(entry["embedding"]), "<f4")
    np.testing.assert_array_equal(found, oracle_embedding(IDS[0]))


@pytest.mark.parametrize(
    ("path", "body", "param", "message"),
    [
        ("/pooling", {"input": "a", "task": "dance"}, "task", "unknown pooling task"),
        ("/pooling", {"input": "a", "task": "classify"}, "task", "no task 'classify'; it has embed, token_embed"),
        ("/pooling", {"input": "a", "step_tag_id": 3}, "step_tag_id", "with a token task"),
        ("/classify", {"input": "a"}, "task", "no task 'classify'"),
        ("/score", {"text_1": "a"}, "text_2", "give one of text_2, data_2, documents, items, got none"),
        ("/score", {"text_1": "a", "queries": "b", "text_2": "c"}, "text_1", "got text_1, queries"),
        ("/score", {"text_1": ["a", "b", "c"], "text_2": ["a", "b"]}, "data_1", "3 texts cannot be compared with 2"),
        ("/score", {"text_1": "a", "text_2": "b", "instruction": "c"}, "instruction", "for rerankers with a template"),
        (
            "/score",
            {"text_1": "a", "text_2": "b", "chat_template": "c"},
            "chat_template",
            "this model compares embeddings",
        ),
        ("/pooling", {"input": "a", "chat_template_kwargs": {"b": 1}}, "chat_template_kwargs", "is for messages"),
        ("/rerank", {"query": "a", "documents": []}, "documents", "must not be empty"),
        ("/rerank", {"query": "a", "documents": ["b"], "top_n": -1}, "top_n", "0 \\(all\\) or more"),
        (
            "/rerank",
            {"query": "a", "documents": [{"title": "b"}]},
            "documents[0]",
            "must be text, or have text or content",
        ),
        ("/rerank", {"query": "a", "documents": ["b"], "max_tokens_per_doc": 0}, "max_tokens_per_doc", "at least 1"),
        (
            "/v2/embed",
            {"texts": ["a"], "embedding_types": ["int4"]},
            "embedding_types",
            "'int4', which is not supported",
        ),
        ("/v2/embed", {"texts": ["a"], "images": ["b"]}, "images", "only text models"),
        ("/v2/embed", {}, "texts", "give either texts or inputs"),
        ("/v2/embed", {"texts": ["a"], "max_tokens": 0}, "max_tokens", "at least 1, or -1, got 0"),
        ("/v2/embed", {"texts": ["a"], "use_activation": "maybe"}, "use_activation", "valid boolean"),
        ("/v2/embed", {"texts": ["a"], "truncate": "START"}, "truncate", "must be NONE or END"),
        ("/v2/embed", {"texts": ["a"], "input_type": "poem"}, "input_type", "must be one of search_query"),
    ],
)
def test_what_is_refused(embeds: Live, path: str, body: dict[str, Any], param: str, message: str) -> None:
    found = refused(embeds, path, **body)
    assert found[0] == param
    assert re.search(message, found[1]), found


def test_a_model_with_classes_compares_nothing(classifies: Live) -> None:
    assert "more than one label" in refused(classifies, "/score", text_1="a", text_2="b")[1]
