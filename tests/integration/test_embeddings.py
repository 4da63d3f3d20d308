"""An embedding model from its checkpoint to its embeddings, which are transformers'."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from openai import OpenAI

from jaxengine import LLM, PoolingParams, SamplingParams
from jaxengine.errors import ConfigError, UnsupportedError
from jaxengine.startup.build import Engine
from jaxengine.tools.convert import convert
from tests.device.models.cases import PROMPTS, VOCAB, EmbeddingFixture
from tests.integration.engines import SMALL, start, synchronous, write_checkpoint
from tests.server.rig import Live

OPTIONS = {**SMALL, "load_format": "auto", "max_model_len": 128}
MAX_ERROR = 1e-4
LONG = [[int(token) for token in np.random.default_rng(length).integers(0, VOCAB, length)] for length in (128, 97, 33)]


@pytest.fixture(scope="module")
def fixture() -> EmbeddingFixture:
    return EmbeddingFixture.load()


@pytest.fixture(scope="module")
def checkpoint(fixture: EmbeddingFixture, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fixture.write(tmp_path_factory.mktemp("embedding") / "model")


@pytest.fixture(scope="module")
def engine(checkpoint: Path) -> Iterator[Engine]:
    engine = start(checkpoint, **OPTIONS)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def llm(engine: Engine) -> LLM:
    return LLM.from_engine(engine)


def embeddings(llm: LLM, prompts: Sequence[Sequence[int]]) -> list[list[float]]:
    return [output.outputs.embedding for output in llm.embed(prompts, use_tqdm=False)]


def test_embeddings_are_transformers(llm: LLM, fixture: EmbeddingFixture) -> None:
    for found, recorded in zip(embeddings(llm, PROMPTS), fixture.embeddings, strict=True):
        np.testing.assert_allclose(found, recorded, atol=MAX_ERROR, rtol=0)
    llm._engine.core.check_idle()


def test_the_bound_means_something(fixture: EmbeddingFixture) -> None:
    """Embeddings of different prompts are far apart."""
    first, second, third = fixture.embeddings
    assert min(np.abs(first - second).max(), np.abs(second - third).max()) > 1000 * MAX_ERROR


def test_company_and_cached_prefixes_change_no_bit(llm: LLM) -> None:
    alone = [embeddings(llm, [prompt])[0] for prompt in LONG]
    assert embeddings(llm, LONG * 3) == alone * 3
    assert llm.encode(LONG[0], use_tqdm=False)[0].num_cached_tokens > 0


@pytest.mark.slow
@pytest.mark.torch
def test_transformers_agrees_now(llm: LLM, fixture: EmbeddingFixture) -> None:
    pytest.importorskip("torch")
    from tests.device.models.cases import EMBEDDING_MODEL
    from tests.device.models.record_fixtures import build, embedding

    model, _, shapes = build(*EMBEDDING_MODEL)
    assert shapes == fixture.shapes
    for prompt, recorded in zip(PROMPTS, fixture.embeddings, strict=True):
        np.testing.assert_allclose(embedding(model, prompt), recorded, atol=1e-6, rtol=0)
    for prompt, found in zip(LONG, embeddings(llm, LONG), strict=True):
        np.testing.assert_allclose(found, embedding(model, prompt), atol=MAX_ERROR, rtol=0)


def test_an_embedding_is_cut_and_nothing_is_generated(llm: LLM, fixture: EmbeddingFixture) -> None:
    [output] = llm.embed(PROMPTS[0], pooling_params=PoolingParams(dimensions=10), use_tqdm=False)
    cut = fixture.embeddings[0][:10]
    np.testing.assert_allclose(output.outputs.embedding, cut / np.linalg.norm(cut), atol=MAX_ERROR, rtol=0)
    with pytest.raises(UnsupportedError, match="generates nothing: its tasks are embed, token_embed"):
        llm.generate([[5]], SamplingParams(max_tokens=1))


def test_a_converted_checkpoint_embeds_the_same(llm: LLM, checkpoint: Path, tmp_path: Path) -> None:
    convert(str(checkpoint), tmp_path / "converted")
    engine = start(tmp_path / "converted", **OPTIONS)
    try:
        assert embeddings(LLM.from_engine(engine), PROMPTS) == embeddings(llm, PROMPTS)
    finally:
        engine.close()


@pytest.mark.slow
def test_a_model_that_generates_embeds_beside_it(tmp_path: Path) -> None:
    engine = start(write_checkpoint(tmp_path / "llama"), **OPTIONS)
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    try:
        llm = LLM.from_engine(engine)
        [alone] = llm.generate([[5, 6, 7]], params, use_tqdm=False)
        [vector] = llm.encode([[5, 6, 7]], use_tqdm=False)
        requests = engine.front.intake.prepare([[5, 6, 7], [5, 6, 7]], [params, PoolingParams()])
        sync = synchronous(engine)
        sync.submit(requests)
        done = {}
        while sync.has_unfinished:
            done.update((output.request_id, output) for output in sync.step() if output.finished)
        generated, embedded = (done[request.request_id] for request in requests)
        assert generated.outputs[0].token_ids == alone.outputs[0].token_ids
        assert embedded.outputs.data.tolist() == vector.outputs.data.tolist()
    finally:
        engine.close()


def test_other_poolings_are_refused_at_the_start(fixture: EmbeddingFixture, tmp_path: Path) -> None:
    directory = fixture.write(tmp_path / "max")
    (directory / "1_Pooling/config.json").write_text('{"pooling_mode_max_tokens": true}')
    with pytest.raises(ConfigError, match="pooled by max_tokens, and built are LAST, CLS, MEAN"):
        start(directory, **OPTIONS)


def test_the_official_client_gets_them(checkpoint: Path, fixture: EmbeddingFixture) -> None:
    engine = start(checkpoint, **OPTIONS)
    server = Live(engine)
    try:
        with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            answer = client.embeddings.create(model=str(checkpoint), input=PROMPTS)
        for entry, recorded in zip(answer.data, fixture.embeddings, strict=True):
            np.testing.assert_allclose(entry.embedding, recorded, atol=MAX_ERROR, rtol=0)
    finally:
        server.close()
        engine.close()
