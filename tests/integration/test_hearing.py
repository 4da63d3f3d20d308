"""Small models that hear and answer, from their files to answers: transformers' tokens by every way a sound is shown."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import openai
import pytest
import tokenizers

from jaxengine import LLM, SamplingParams
from jaxengine.errors import RequestError
from jaxengine.options.config import EngineConfig
from jaxengine.startup.build import build_engine
from tests.hearing_models import FAMILIES, NUM_GREEDY, conversations, hearing_directory, recorded, shown
from tests.server.rig import Live
from tests.speech_models import RATE, as_16_bits, sound, wav

pytestmark = [pytest.mark.jax, pytest.mark.slow]
GREEDY = SamplingParams(temperature=0.0, max_tokens=NUM_GREEDY, ignore_eos=True)
OPTIONS = {
    "dtype": "float32",
    "max_model_len": 128,
    "max_num_seqs": 2,
    "max_num_batched_tokens": 32,
    "num_pages": 32,
    "bucket_planner": "explicit",
    "buckets": ("2x1", "2x16"),
}


@pytest.fixture(scope="module", params=FAMILIES)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Live]]:
    """The family, and a server whose engine the library is asked through, too."""
    folder = hearing_directory(tmp_path_factory.mktemp("hearing"), request.param)
    engine = build_engine(EngineConfig.from_options(model=str(folder), limit_mm_per_prompt={"audio": 2}, **OPTIONS))
    running = Live(engine, served_model_name=("ears",))
    yield request.param, running
    running.close()
    engine.close()


def told(outputs: Any) -> list[tuple[list[int], list[int]]]:
    return [(list(one.prompt_token_ids), list(one.outputs[0].token_ids)) for one in outputs]


def as_input(samples: Any) -> dict[str, Any]:
    data = base64.b64encode(wav(samples)).decode()
    return {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}


def as_url(samples: Any) -> dict[str, Any]:
    url = "data:audio/wav;base64," + base64.b64encode(wav(samples)).decode()
    return {"type": "audio_url", "audio_url": {"url": url}}


def test_the_library_answers_as_transformers_does(server: tuple[str, Live]) -> None:
    """In company and alone, in conversations and prompts."""
    name, running = server
    llm = LLM.from_engine(running.engine)
    asked = conversations(name, lambda samples: {"type": "audio", "audio": (samples, RATE)})
    assert told(llm.chat(asked, GREEDY, use_tqdm=False)) == recorded(name)
    placeholder = "".join(FAMILIES[name].special)
    for samples, expected in zip(shown(name), recorded(name), strict=True):
        text = f"<|im_start|>user\n{placeholder * len(samples)}What is it?<|im_end|>\n<|im_start|>assistant\n"
        given: Any = {"prompt": text}
        if samples:
            given["multi_modal_data"] = {"audio": [(one, RATE) for one in samples]}
        assert told(llm.generate(given, GREEDY, use_tqdm=False)) == [expected]


@pytest.mark.parametrize("part", [as_input, as_url])
def test_the_official_client_is_answered_as_transformers_does(server: tuple[str, Live], part: Any) -> None:
    name, running = server
    more = {"ignore_eos": True, "return_token_ids": True}
    with openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as client:
        for messages, (prompt, answer) in zip(conversations(name, part), recorded(name), strict=True):
            asked: Any = {"model": "ears", "messages": messages, "max_tokens": NUM_GREEDY, "temperature": 0}
            found = client.chat.completions.create(**asked, extra_body=more)
            assert found.usage is not None
            assert found.usage.prompt_tokens == len(prompt)
            assert found.choices[0].token_ids == answer  # type: ignore[attr-defined]
            stream = client.chat.completions.create(**asked, stream=True, extra_body=more)
            streamed = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
            assert streamed == found.choices[0].message.content


def test_voxtral_transcribes(tmp_path: Path) -> None:
    """By the prompt of Mistral's library: the same text as by that prompt in the library, and what it has not is refused."""
    folder, said = hearing_directory(tmp_path, "voxtral"), sound(1.5)
    file = folder / "tokenizer.json"
    tokenizer = tokenizers.Tokenizer.from_file(str(file))
    tokenizer.add_special_tokens(["<s>", "[INST]", "[/INST]", "[TRANSCRIBE]"])
    tokenizer.save(str(file))
    names = ("<s>", "[INST]", "[BEGIN_AUDIO]", "[AUDIO]", "[/INST]", *"lang:en", "[TRANSCRIBE]")
    with closing(build_engine(EngineConfig.from_options(model=str(folder), **OPTIONS))) as engine:
        running = Live(engine, served_model_name=("ears",))
        prompt = {"prompt_token_ids": [tokenizer.token_to_id(name) for name in names]}
        asked = {**prompt, "multi_modal_data": {"audio": [(as_16_bits(said), RATE)]}}
        params = SamplingParams(temperature=0.0, max_tokens=8)
        [expected] = LLM.from_engine(engine).generate(asked, params, use_tqdm=False)

        def transcribed(**fields: Any) -> Any:
            data = {"max_completion_tokens": 8, **fields}
            return running.http.post("/v1/audio/transcriptions", files={"file": ("a.wav", wav(said))}, data=data)

        assert transcribed(language="en").json()["text"] == expected.outputs[0].text.strip()
        assert transcribed().status_code == 200
        for fields in ({"response_format": "verbose_json"}, {"prompt": "a"}, {"language": "English"}):
            assert transcribed(**fields).status_code == 400
        running.close()


def test_what_cannot_be_heard_is_refused_by_name(server: tuple[str, Live]) -> None:
    _, running = server
    part = as_input(sound(0.5))
    refused = [
        ([part] * 3, r"At most 2 audio\(s\) may be provided in one prompt"),
        ([as_input(sound(21.0))], "a sound for this model is"),
        ([{"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}], "sound"),
        ([{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}], r"At most 0 image\(s\)"),
    ]
    with openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0) as client:
        for parts, message in refused:
            asked: Any = [{"role": "user", "content": parts}]
            with pytest.raises(openai.BadRequestError, match=message):
                client.chat.completions.create(model="ears", messages=asked, max_tokens=2)
    llm = LLM.from_engine(running.engine)
    with pytest.raises(RequestError, match="0 placeholder"):
        llm.generate({"prompt": "text", "multi_modal_data": {"audio": (sound(0.5), RATE)}}, GREEDY)
