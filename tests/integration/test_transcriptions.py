"""A small Whisper behind HTTP, asked by the official OpenAI client and by forms."""

from __future__ import annotations

import io
import json
import wave
from collections.abc import Iterator
from typing import Any

import numpy as np
import openai
import pytest

from jaxengine.options.config import EngineConfig
from jaxengine.startup.build import build_engine
from tests.server.rig import Live
from tests.speech_models import RATE, sound, whisper_directory

pytestmark = [pytest.mark.jax, pytest.mark.slow]


def wav(samples: np.ndarray, rate: int = RATE) -> bytes:
    """A file of 16 bits."""
    written = io.BytesIO()
    with wave.open(written, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((samples * 32767).astype("<i2").tobytes())
    return written.getvalue()


LONG = wav(sound(5.0, 3))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = whisper_directory(tmp_path_factory.mktemp("whisper"))
    options = {"model": str(folder), "dtype": "float32", "max_num_seqs": 4, "num_gpu_blocks_override": 64}
    engine = build_engine(EngineConfig.from_options(**options))
    running = Live(engine, served_model_name=("whisper",))
    yield running
    running.close()
    engine.close()


@pytest.fixture(scope="module")
def client(server: Live) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def transcribe(server: Live, **fields: Any) -> Any:
    return server.http.post("/v1/audio/transcriptions", files={"file": ("a.wav", LONG)}, data=fields)


def test_the_official_client(client: openai.OpenAI) -> None:
    """Five seconds are three pieces; named and found languages; the same text whole and streamed."""
    whole = client.audio.transcriptions.create(model="whisper", file=("a.wav", LONG), language="en")
    assert whole.text
    assert whole.usage is not None
    assert (whole.usage.type, whole.usage.seconds) == ("duration", 5)
    found = client.audio.transcriptions.create(model="whisper", file=("a.wav", LONG))
    assert found.text
    prompted = client.audio.transcriptions.create(model="whisper", file=("a.wav", LONG), language="en", prompt="Names")
    assert prompted.text != whole.text


def test_a_translation_is_another_text(server: Live) -> None:
    """By a form: the client's own call is deprecated."""
    written = transcribe(server, language="de").json()["text"]
    answer = server.http.post("/v1/audio/translations", files={"file": ("a.wav", LONG)}, data={"language": "de"})
    assert answer.json()["text"] != written


def test_segments_cover_the_sound_in_order(client: openai.OpenAI, server: Live) -> None:
    verbose = client.audio.transcriptions.create(
        model="whisper", file=("a.wav", LONG), language="en", response_format="verbose_json"
    )
    assert float(verbose.duration) == pytest.approx(5.0)
    assert verbose.language == "en"
    segments = verbose.segments or []
    assert segments
    ends = [0.0]
    for number, one in enumerate(segments):
        assert one.id == number
        assert ends[-1] <= one.start + 1e-9 <= one.end + 1e-9 <= 5.0 + 1e-6
        assert one.avg_logprob < 0
        assert one.tokens
        ends.append(one.end)
    srt = transcribe(server, language="en", response_format="srt")
    assert srt.text.count(" --> ") == len(segments)
    assert srt.text.startswith("1\n00:00:")
    vtt = transcribe(server, language="en", response_format="vtt")
    assert vtt.text.startswith("WEBVTT\n\n00:00:")
    assert transcribe(server, language="en", response_format="text").headers["content-type"].startswith("text/plain")


def test_a_stream_is_the_whole_text_in_pieces(server: Live) -> None:
    fields = {"language": "en", "temperature": "0.7", "seed": "3"}
    text = transcribe(server, **fields).json()["text"]
    form = {**fields, "stream": "true", "stream_include_usage": "true"}
    with server.http.stream("POST", "/v1/audio/transcriptions", files={"file": ("a.wav", LONG)}, data=form) as response:
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: ")]
    assert lines.pop() == "[DONE]"
    chunks = [json.loads(line) for line in lines]
    assert {chunk["object"] for chunk in chunks} == {"transcription.chunk"}
    streamed = "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks if chunk["choices"])
    assert "".join(streamed.split()) == "".join(text.split())
    assert chunks[-2]["choices"][0]["finish_reason"] in ("stop", "length")
    assert chunks[-1]["usage"]["completion_tokens"] > 0


@pytest.mark.parametrize(
    ("fields", "status", "message"),
    [
        ({"language": "xx"}, 400, "Unsupported language: 'xx'. The model knows de, en, fr."),
        (
            {"timestamp_granularities[]": "word", "response_format": "verbose_json"},
            400,
            "the times of words are not built",
        ),
        ({"timestamp_granularities[]": "segment"}, 400, "needs response_format=verbose_json"),
        ({"stream": "true", "response_format": "srt"}, 400, "needs response_format=json"),
        ({"response_format": "diarized_json"}, 400, "response_format"),
        ({"temperature": "-1"}, 400, "temperature"),
        ({"model": "other"}, 404, "does not exist"),
    ],
)
def test_what_cannot_be_is_refused_by_name(server: Live, fields: dict[str, str], status: int, message: str) -> None:
    response = transcribe(server, **fields)
    assert response.status_code == status, response.text
    assert message in response.json()["error"]["message"]


def test_what_is_no_sound_is_refused(server: Live) -> None:
    for content in (b"", b"no sound at all", LONG[:20]):
        response = server.http.post("/v1/audio/transcriptions", files={"file": ("a.wav", content)})
        assert response.status_code == 400, response.text
    assert server.http.post("/v1/audio/transcriptions", data={"model": "whisper"}).status_code == 400
