"""A small Whisper behind HTTP, asked by the official OpenAI client and by forms."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest

from jaxengine import LLM, SamplingParams
from jaxengine.contract.request import Request
from jaxengine.contract.rows import Align
from jaxengine.front.intake import Intake
from jaxengine.front.prompts import ParsedPrompt
from jaxengine.media.mel import mel_features
from jaxengine.media.quiet import cut_where_quiet
from jaxengine.media.sound import decode_sound
from jaxengine.options.config import EngineConfig
from jaxengine.startup.build import build_engine
from tests.device.models.media.whisper_case import HEADS
from tests.robustness.loopback import until
from tests.server.rig import Live
from tests.speech_models import MELS, RATE, SECONDS, id_of, sound, tokenizer, wav, whisper_directory

pytestmark = [pytest.mark.jax, pytest.mark.slow]


START = "<|startoftranscript|>"
LONG = wav(sound(5.0, 3))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = whisper_directory(tmp_path_factory.mktemp("whisper"))
    options = {"model": str(folder), "dtype": "float32", "max_num_seqs": 4, "num_gpu_blocks_override": 64}
    shapes = {"bucket_planner": "explicit", "buckets": ("4x1", "4x128")}
    engine = build_engine(EngineConfig.from_options(**options, **shapes))
    running = Live(engine, served_model_name=("whisper",), server_dev_mode=True)
    running.http.timeout = 300
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


def test_what_a_pause_aborts_is_to_be_asked_again(server: Live) -> None:
    engine = server.service.engine
    with ThreadPoolExecutor(1) as pool:
        server.http.post("/pause")
        asked = pool.submit(transcribe, server, language="en")
        until(lambda: engine.num_open > 0, "it waits")
        server.http.post("/pause?mode=abort")
        answer = asked.result()
        server.http.post("/resume")
    assert answer.status_code == 503
    assert "paused" in answer.json()["error"]["message"]


def test_a_translation_is_another_text(server: Live) -> None:
    """By a form: the client's own call is deprecated."""
    written = transcribe(server, language="de").json()["text"]
    answer = server.http.post("/v1/audio/translations", files={"file": ("a.wav", LONG)}, data={"language": "de"})
    assert answer.json()["text"] != written


def test_segments_cover_the_sound_in_order(client: openai.OpenAI, server: Live) -> None:
    verbose = client.audio.transcriptions.create(
        model="whisper", file=("a.wav", LONG), language="en", response_format="verbose_json"
    )
    assert verbose.duration == 5.0
    assert verbose.language == "en"
    segments = verbose.segments or []
    assert segments
    ends = [0.0]
    for number, one in enumerate(segments):
        assert one.id == number
        assert ends[-1] <= one.start + 1e-9 <= one.end + 1e-9 <= 5.0 + 1e-6
        assert one.avg_logprob < 0
        assert one.compression_ratio > 0
        assert 0 < one.no_speech_prob < 1
        assert one.tokens
        ends.append(one.end)
    srt = transcribe(server, language="en", response_format="srt")
    assert srt.text.count(" --> ") == len(segments)
    assert srt.text.startswith("1\n00:00:")
    vtt = transcribe(server, language="en", response_format="vtt")
    assert vtt.text.startswith("WEBVTT\n\n00:00:")
    text = transcribe(server, language="en", response_format="text")
    assert text.headers["content-type"] == "text/plain; charset=utf-8"
    assert text.text == transcribe(server, language="en").json()["text"]


@pytest.mark.torch
def test_words_are_said_when_transformers_says(
    client: openai.OpenAI, server: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each piece, with times of the whole; with segments or without."""
    import torch
    from transformers import WhisperForConditionalGeneration
    from transformers.models.whisper.tokenization_whisper import _combine_tokens_into_words
    from transformers.utils import ModelOutput

    given: dict[int, tuple[ParsedPrompt, Align]] = {}
    real = Intake.aligned

    def noted(intake: Intake, prompt: ParsedPrompt, align: Align, **options: Any) -> Request:
        given[len(given)] = prompt, align
        return real(intake, prompt, align, **options)

    asked: Any = {"model": "whisper", "file": ("a.wav", LONG), "language": "en", "response_format": "verbose_json"}
    alone = client.audio.transcriptions.create(**asked, timestamp_granularities=["word"])
    assert alone.segments is None
    monkeypatch.setattr(Intake, "aligned", noted)
    both = client.audio.transcriptions.create(**asked, timestamp_granularities=["word", "segment"])
    assert both.segments
    assert both.words == alone.words

    model = WhisperForConditionalGeneration.from_pretrained(whisper_directory(tmp_path), attn_implementation="eager")
    backend = tokenizer()

    class Decoder:
        eos_token_id = id_of("<|endoftext|>")

        def decode(self, ids: list[int], **options: Any) -> str:
            return backend.decode(ids, skip_special_tokens=True)

    samples, expected = decode_sound(LONG, rate=RATE).samples, []
    for first, end in cut_where_quiet(samples, RATE, int(SECONDS * RATE)):
        [(prompt, align)] = [
            one for one in given.values() if np.array_equal(one[0].shown[0].source[0], samples[first:end])
        ]
        assert align.frames == (end - first) // 320
        ids = list(prompt.token_ids or ())
        padded = np.pad(samples[first:end], (0, int(SECONDS * RATE) - (end - first)))
        with torch.no_grad():
            heard = torch.tensor(mel_features(padded, MELS)[None])
            output = model(input_features=heard, decoder_input_ids=torch.tensor([ids]), output_attentions=True)
        found = ModelOutput(cross_attentions=(output.cross_attentions,), sequences=torch.tensor([ids]))
        times = model._extract_token_timestamps(found, HEADS, num_frames=2 * align.frames, num_input_ids=align.first)[
            0
        ].tolist()
        times[align.first - 1] = 0.0
        own: list[int] = []
        for at in range(align.first, len(ids) + 1):
            if at < len(ids) and ids[at] < id_of("<|0.00|>"):
                own.append(at)
                continue
            words, _, numbers = _combine_tokens_into_words(Decoder(), [ids[number] for number in own], "english")
            for word, of_word in zip(words, numbers, strict=True):
                since, until = times[own[of_word[0]] - 1], times[own[of_word[-1]]]
                if word.strip():
                    expected.append((word.strip(), round(first / RATE + since, 2), round(first / RATE + until, 2)))
            own = []
    assert len(expected) > 10
    assert [(word.word, word.start, word.end) for word in both.words or ()] == expected


def test_words_need_heads_that_tell_of_them(server: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    intake = server.service.front.intake
    assert intake.facts.media is not None
    without = replace(intake.facts, media=replace(intake.facts.media, aligns=False))
    monkeypatch.setattr(intake, "facts", without)
    response = transcribe(server, **{"timestamp_granularities[]": "word", "response_format": "verbose_json"})
    assert response.status_code == 400
    assert "this model has no alignment_heads" in response.json()["error"]["message"]


def test_silence_is_as_likely_as_the_model_finds_it_behind_the_begin_of_the_text(server: Live) -> None:
    """What OpenAI's Whisper reads there too: in each segment that of its piece."""
    llm = LLM.from_engine(server.engine)
    samples = decode_sound(LONG, rate=RATE).samples
    expected = []
    for first, end in cut_where_quiet(samples, RATE, int(SECONDS * RATE)):
        prompt: Any = {"prompt": START, "multi_modal_data": {"audio": (samples[first:end], RATE)}}
        params = SamplingParams(max_tokens=1, logprobs=0, allowed_token_ids=[id_of("<|nospeech|>")])
        [output] = llm.generate(prompt, params, use_tqdm=False)
        assert output.outputs[0].logprobs is not None
        expected.append((first / RATE, math.exp(output.outputs[0].logprobs[0][id_of("<|nospeech|>")].logprob)))
    verbose = transcribe(server, language="en", response_format="verbose_json").json()
    assert {one["seek"] for one in verbose["segments"]} <= {round(begin * 100) for begin, _ in expected}
    for one in verbose["segments"]:
        [found] = [likely for begin, likely in expected if round(begin * 100) == one["seek"]]
        assert one["no_speech_prob"] == pytest.approx(found, rel=1e-4)


def test_a_stream_is_the_whole_text_in_pieces(server: Live) -> None:
    fields = {"language": "en", "temperature": "0.7", "seed": "3", "max_completion_tokens": "1000000"}
    text = transcribe(server, **fields).json()["text"]
    counted = dict.fromkeys(("stream_include_usage", "stream_continuous_usage_stats"), "true")
    form = {**fields, "stream": "true", **counted}
    with server.http.stream("POST", "/v1/audio/transcriptions", files={"file": ("a.wav", LONG)}, data=form) as response:
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: ")]
    assert lines.pop() == "[DONE]"
    chunks = [json.loads(line) for line in lines]
    assert {chunk["object"] for chunk in chunks} == {"transcription.chunk"}
    streamed = "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks if chunk["choices"])
    assert streamed == text
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert chunks[-2]["choices"][0]["finish_reason"] in ("stop", "length")
    assert chunks[-1]["usage"]["completion_tokens"] > 0


@pytest.mark.parametrize(
    ("fields", "status", "message"),
    [
        ({"language": "xx"}, 400, "Unsupported language: 'xx'. The model knows de, en, fr."),
        ({"timestamp_granularities[]": "word"}, 400, "needs response_format=verbose_json"),
        ({"timestamp_granularities[]": "segment"}, 400, "needs response_format=verbose_json"),
        ({"stream": "true", "response_format": "srt"}, 400, "needs response_format=json"),
        ({"stream_include_usage": "true"}, 400, "Stream options can only be defined when `stream=True`"),
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
        assert "Invalid or unsupported audio file" in response.json()["error"]["message"]
    assert server.http.post("/v1/audio/transcriptions", data={"model": "whisper"}).status_code == 400


def test_files_have_25_mib_unless_said_otherwise(server: Live) -> None:
    """More than a body without sound may have, whose limit is 4 MiB."""
    for size, message in ((24 << 20, "Invalid or unsupported audio file"), (26 << 20, "Maximum file size exceeded")):
        response = server.http.post("/v1/audio/transcriptions", files={"file": ("a.wav", bytes(size))})
        assert response.status_code == 400, response.text
        assert message in response.json()["error"]["message"]


def test_a_recording_is_written_by_every_call_of_the_official_client(client: openai.OpenAI, shared: Path) -> None:
    """Eleven seconds, in pieces of at most two: in a file of FLAC, in each format, and as a stream."""
    file, few = shared / "audio/jfk.flac", {"max_completion_tokens": 40}
    asked: Any = {"model": "whisper", "file": file, "language": "en", "extra_body": few}
    calls = client.audio.transcriptions
    text = calls.create(**asked, response_format="json").text
    assert len(text) > 100
    assert calls.create(**asked, response_format="text") == text  # type: ignore[comparison-overlap]
    stream: Any = calls.create(**asked, stream=True)
    assert "".join(chunk.choices[0]["delta"]["content"] for chunk in stream) == text
    verbose = calls.create(**asked, response_format="verbose_json", timestamp_granularities=["segment"])
    assert verbose.duration == 11.0
    assert verbose.segments is not None
    assert len({one.seek for one in verbose.segments}) >= 6
    srt: Any = calls.create(**asked, response_format="srt")
    assert srt.count(" --> ") == len(verbose.segments)
    vtt: Any = calls.create(**asked, response_format="vtt")
    assert vtt.count(" --> ") == len(verbose.segments)


def test_a_conversation_needs_a_sound(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model="whisper", messages=[{"role": "user", "content": "text"}])
    with pytest.raises(openai.BadRequestError, match="a prompt of this model is of one audio"):
        client.completions.create(model="whisper", prompt="text")
