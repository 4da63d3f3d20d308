"""Qwen3-Reranker as vLLM converts it: a decoder's rows for two tokens become a score, through a template and over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from jaxengine import LLM, PoolingParams
from jaxengine.errors import ConfigError
from jaxengine.startup.build import Engine
from tests.integration.engines import SMALL, start, write_checkpoint
from tests.server.rig import Live
from tests.text import tiny

TEMPLATE = (
    "{{ instruction | default('Judge.') }} {% for m in messages if m.role == 'query' %}{{ m.content }}{% endfor %}: "
    "{% for m in messages if m.role == 'document' %}{{ m.content }}{% endfor %}"
)
TOKENS = ["no", "yes"]
OPTIONS = {**SMALL, "load_format": "auto", "skip_tokenizer_init": False, "chat_template": TEMPLATE}
OVERRIDES = {
    "architectures": ["LlamaForSequenceClassification"],
    "classifier_from_token": TOKENS,
    "is_original_qwen3_reranker": True,
}
QUERY = "Tom said"
DOCUMENTS = ["the quick brown fox", "a small cat", "hello to Mary", "Once upon a time there was", "the lazy dog sleeps"]
RECORDED_ORDER = {True: [1, 3, 4, 0, 2], False: [2, 3, 0, 1, 4]}
"""By transformers' shares of yes, with tied embeddings and without (`test_transformers_agrees_now`)."""


def checkpoint(directory: Path, **config: Any) -> Path:
    tokenizer = tiny.byte_level()
    tokenizer.backend.add_tokens(TOKENS)
    tiny.write(directory, tokenizer)
    return write_checkpoint(directory, vocab_size=344, **config)


@pytest.fixture(scope="module", params=[True, pytest.param(False, marks=pytest.mark.slow)], ids=["tied", "apart"])
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint(tmp_path_factory.mktemp("reranker") / "model", tie_word_embeddings=request.param)


@pytest.fixture(scope="module")
def engine(directory: Path) -> Iterator[Engine]:
    engine = start(directory, **OPTIONS, hf_overrides=OVERRIDES)
    yield engine
    engine.close()


def prompts(llm: LLM, instruction: str = "Judge.") -> list[list[int]]:
    return [
        llm.get_tokenizer().encode(f"{instruction} {QUERY}: {text}", add_special_tokens=False) for text in DOCUMENTS
    ]


def expected(directory: Path, ids: list[list[int]]) -> np.ndarray:
    """By the embeddings of the same decoder, whose hidden states other tests compare with transformers."""
    engine = start(directory, **OPTIONS, runner="pooling")
    try:
        raw = PoolingParams(use_activation=False)
        hidden = [output.outputs.data for output in LLM.from_engine(engine).encode(ids, raw, use_tqdm=False)]
    finally:
        engine.close()
    weights = load_file(directory / "model.safetensors")
    table = weights.get("lm_head.weight", weights["model.embed_tokens.weight"])
    tokenizer = engine.front.tokenizer
    assert tokenizer is not None
    no, yes = (table[tokenizer.backend.token_to_id(token)] for token in TOKENS)
    logits = np.array([[state @ no, state @ yes] for state in hidden], np.float64)
    return np.exp(logits[:, 1]) / np.exp(logits).sum(axis=1)


@pytest.mark.slow
def test_a_score_is_the_share_of_yes(engine: Engine, directory: Path) -> None:
    llm = LLM.from_engine(engine)
    shares = expected(directory, prompts(llm))
    found = [output.outputs.score for output in llm.score(QUERY, DOCUMENTS, use_tqdm=False)]
    np.testing.assert_allclose(found, shares, atol=1e-4, rtol=0)
    alone = [llm.score(QUERY, text, use_tqdm=False)[0].outputs.score for text in DOCUMENTS]
    assert alone == found
    [told] = llm.score(QUERY, DOCUMENTS[0], instruction="Say", use_tqdm=False)
    np.testing.assert_allclose(told.outputs.score, expected(directory, prompts(llm, "Say")[:1])[0], atol=1e-4, rtol=0)


@pytest.mark.slow
@pytest.mark.torch
def test_transformers_agrees_now(engine: Engine, directory: Path) -> None:
    torch = pytest.importorskip("torch")
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    llm = LLM.from_engine(engine)
    number = llm.get_tokenizer().backend.token_to_id
    shares = []
    for ids in prompts(llm):
        with torch.no_grad():
            last = model(torch.tensor([ids])).logits[0, -1]
        shares.append(float(torch.softmax(last[[number(token) for token in TOKENS]], dim=0)[1]))
    found = [output.outputs.score for output in llm.score(QUERY, DOCUMENTS, use_tqdm=False)]
    np.testing.assert_allclose(found, shares, atol=1e-4, rtol=0)
    assert np.argsort(shares)[::-1].tolist() == RECORDED_ORDER[model.config.tie_word_embeddings]


def test_tokens_that_make_no_head(directory: Path) -> None:
    def refused(**overrides: Any) -> str:
        with pytest.raises(ConfigError) as caught:
            start(directory, **OPTIONS, hf_overrides={**OVERRIDES, **overrides})
        return str(caught.value)

    assert "'maybe', which is no token" in refused(classifier_from_token=["no", "maybe"])
    assert "needs two tokens" in refused(classifier_from_token=["no"])
    with pytest.raises(ConfigError, match="needs the model's tokenizer"):
        start(directory, **{**OPTIONS, "skip_tokenizer_init": True, "chat_template": None}, hf_overrides=OVERRIDES)


def test_documents_in_the_recorded_order(engine: Engine, directory: Path) -> None:
    tied = json.loads((directory / "config.json").read_text())["tie_word_embeddings"]
    server = Live(engine)  # which closes the engine: this is the last test of the file
    try:
        answer = server.post("/v1/rerank", query=QUERY, documents=DOCUMENTS).json()
        assert [result["index"] for result in answer["results"]] == RECORDED_ORDER[tied]
    finally:
        server.close()
