"""The embedded model behind HTTP, asked by the official OpenAI client, sync and async, and by curl's own hand."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import openai
import pydantic
import pytest

from jaxengine import SamplingParams
from jaxengine.api.llm import LLM
from jaxengine.options.config import EngineConfig
from jaxengine.startup.build import build_engine
from tests.server.rig import Live

MESSAGES = [{"role": "user", "content": "What is 2 + 3?"}]
SMALL = {
    "max_num_seqs": 4,
    "max_model_len": 400,
    "bucket_planner": "explicit",
    "buckets": ("1x16", "4x16", "1x1", "4x1"),
}
STORY = "Once upon a time"
PROMPTS = [STORY, "The fox"]
OFFLINE: list[str] = []
"""What the same engine said to PROMPTS before it was put behind HTTP."""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server() -> Iterator[Live]:
    engine = build_engine(EngineConfig.from_options(**SMALL))
    offline = LLM.from_engine(engine).generate(PROMPTS, SamplingParams(temperature=0, max_tokens=20), use_tqdm=False)
    OFFLINE.extend(output.outputs[0].text for output in offline)
    running = Live(engine)
    yield running
    running.close()
    engine.close()


@pytest.fixture(scope="module")
def client(server: Live) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["embedded"]
    assert client.models.retrieve("embedded").owned_by == "jaxengine"


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="embedded", messages=MESSAGES, temperature=0)  # type: ignore[arg-type]
    [choice] = answer.choices
    assert choice.finish_reason == "stop"
    assert choice.message.content
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    pieces = client.chat.completions.create(
        model="embedded",
        messages=MESSAGES,  # type: ignore[arg-type]
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(pieces)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == choice.message.content
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == answer.usage.total_tokens


def test_the_stream_helper_accumulates_the_same_message(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(
        model="embedded",
        messages=MESSAGES,
        temperature=0,
        logprobs=True,
        top_logprobs=2,  # type: ignore[arg-type]
    )
    with client.chat.completions.stream(
        model="embedded",
        messages=MESSAGES,
        temperature=0,
        logprobs=True,
        top_logprobs=2,  # type: ignore[arg-type]
    ) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.content == whole.choices[0].message.content
    assert final.choices[0].logprobs == whole.choices[0].logprobs


def test_completions_equal_the_offline_answer(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="embedded", prompt=PROMPTS, max_tokens=20, temperature=0)
    assert [choice.text for choice in answer.choices] == OFFLINE


def test_many_async_streams_at_once(server: Live) -> None:
    async def ask(client: openai.AsyncOpenAI, number: int) -> str:
        stream = await client.completions.create(
            model="embedded", prompt=STORY, max_tokens=12 + number % 3, temperature=0, stream=True
        )
        return "".join([chunk.choices[0].text async for chunk in stream])

    async def scenario() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            return await asyncio.gather(*(ask(client, number) for number in range(24)))

    texts = asyncio.run(scenario())
    longest = max(texts, key=len)
    assert all(longest.startswith(text) for text in texts)
    assert len({texts[number] for number in range(0, 24, 3)}) == 1


def test_errors_are_the_clients_own_classes(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        client.completions.create(model="other", prompt="x")
    with pytest.raises(openai.BadRequestError, match="maximum context length is 400 tokens") as refused:
        client.completions.create(model="embedded", prompt="word " * 1000)
    assert refused.value.param == "input_tokens"
    with pytest.raises(openai.BadRequestError, match=r"At most 0 image\(s\) may be provided in one prompt"):
        client.chat.completions.create(
            model="embedded",
            messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://a/b"}}]}],
        )


def test_curl(server: Live) -> None:
    command = ["curl", "-sN", f"{server.url}/v1/completions", "-H", "Content-Type: application/json", "-d"]
    body = '{"prompt": "Once upon a time", "max_tokens": 5, "stream": true}'
    shown = subprocess.run([*command, body], check=True, capture_output=True, text=True, timeout=60).stdout
    assert shown.count("data: {") >= 1
    assert shown.endswith("data: [DONE]\n\n")


class Answer(pydantic.BaseModel):
    """What a structured answer is parsed into."""

    sum: int = pydantic.Field(ge=0, le=99)
    sure: bool
    kind: Literal["sum", "other"]


def test_a_structured_answer_is_parsed_by_the_client(client: openai.OpenAI) -> None:
    for temperature in (0, 1):
        answer = client.chat.completions.parse(
            model="embedded",
            messages=MESSAGES,  # type: ignore[arg-type]
            response_format=Answer,
            temperature=temperature,
            seed=1,
            max_tokens=200,
        )
        [choice] = answer.choices
        assert choice.finish_reason == "stop"
        assert isinstance(choice.message.parsed, Answer)


def test_structured_answers_beside_others_keep_their_form(client: openai.OpenAI) -> None:
    extra = {"structured_outputs": {"regex": "[a-f]{2,30}(,[0-9]{2}){3}"}}
    with ThreadPoolExecutor(8) as pool:
        plain = pool.submit(client.completions.create, model="embedded", prompt=STORY, max_tokens=40, temperature=0)
        formed = [
            pool.submit(
                client.completions.create,
                model="embedded",
                prompt=STORY,
                n=2,
                seed=seed,
                max_tokens=60,
                logprobs=1,
                extra_body=extra,
            )
            for seed in range(6)
        ]
        texts = [choice.text for future in formed for choice in future.result().choices]
        assert plain.result().choices[0].text.startswith(OFFLINE[0])
    assert len(texts) == 12
    assert all(re.fullmatch("[a-f]{2,30}(,[0-9]{2}){3}", text) for text in texts), texts


def test_required_tool_calls(client: openai.OpenAI) -> None:
    parameters = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}}, "required": ["city"]}
    tools: Any = [{"type": "function", "function": {"name": "get_weather", "parameters": parameters}}]
    asked: Any = [{"role": "user", "content": "What is the weather in Rome?"}]
    options: Any = {"model": "embedded", "messages": asked, "tools": tools, "temperature": 0, "max_tokens": 100}
    whole = client.chat.completions.create(**options, tool_choice="required", parallel_tool_calls=False)
    [choice] = whole.choices
    assert choice.finish_reason == "tool_calls"
    [call] = choice.message.tool_calls or ()
    assert call.type == "function"
    assert call.function.name == "get_weather"
    assert "city" in json.loads(call.function.arguments)
    with client.chat.completions.stream(**options, tool_choice="required", parallel_tool_calls=False) as stream:
        [streamed] = stream.get_final_completion().choices[0].message.tool_calls or ()
    assert streamed.function.name == "get_weather"
    assert streamed.function.arguments == call.function.arguments


def test_nothing_was_compiled_while_serving(server: Live) -> None:
    assert server.engine.compile_counter.count == 0
