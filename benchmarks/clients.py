r"""Real clients against a running server: openai, langchain-openai, litellm, instructor, anthropic, each in earnest. JSON out.

Run it in an environment of its own that has the clients (they want old versions of each other's libraries), never in jaxengine's:

    uv venv clients && uv pip install --python clients/bin/python openai langchain-openai litellm mcp instructor anthropic
    python -m jaxengine.serve --port 8000 --enable-auto-tool-choice --tool-call-parser hermes &
    clients/bin/python benchmarks/clients.py --url http://127.0.0.1:8000/v1

A load generator and a reader of the OpenAPI description, which need no code here (the latter wants short answers:
`--override-generation-config '{"max_new_tokens": 3}'`):

    guidellm run --backend kind=openai_http,target=http://127.0.0.1:8000 --profile kind=concurrent,streams=4 \
        --constraint kind=max_requests,count=24 --tokenizer kind=hf_auto,model=jaxengine/embedded/checkpoint \
        --data kind=synthetic_text,prompt_tokens=32,output_tokens=16 --output kind=json,path=guidellm.json
    vllm bench serve --backend openai-chat --endpoint /v1/chat/completions --base-url http://127.0.0.1:8000 --num-prompts 32 \
        --model embedded --tokenizer jaxengine/embedded/checkpoint --dataset-name random --random-input-len 32 \
        --random-output-len 16 --ignore-eos --request-rate 8
    schemathesis run http://127.0.0.1:8000/openapi.json --max-examples 1000 --phases fuzzing --continue-on-failure \
        --checks not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance

What was run last, with the embedded model on a CPU, all of it complete: openai 3.54.0 and 3.3.0, anthropic 2.12.0,
langchain-openai 1.7.3, litellm 1.106.2; instructor 1.17.0 in all ten modes of OpenAI's client and all eight of Anthropic's;
guidellm 0.8.1, 24 requests of 24; vLLM 0.32's bench client, 32 of 32.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from typing import Any, Literal

QUESTION = [{"role": "user", "content": "Tell me a story about a cat."}]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--key", default="none")
    parser.add_argument("--only", nargs="*", choices=sorted(CLIENTS))
    arguments = parser.parse_args()
    report = {}
    for name in arguments.only or CLIENTS:
        begun = time.monotonic()
        try:
            done: Any = CLIENTS[name](arguments.url, arguments.key)
        except Exception:
            done = {"failed": traceback.format_exc(limit=-3)}
        report[name] = {
            "version": importlib.metadata.version(name),
            "seconds": round(time.monotonic() - begun, 2),
            "done": done,
        }
    print(json.dumps(report, indent=2))
    return any("failed" in entry["done"] for entry in report.values())


def run_openai(url: str, key: str) -> list[str]:
    """Every endpoint of the official client, sync and async."""
    from openai import AsyncOpenAI, BadRequestError, OpenAI

    client = OpenAI(base_url=url, api_key=key)
    model = client.models.list().data[0].id
    options = {"model": model, "max_tokens": 24, "temperature": 0.0}
    answer = client.chat.completions.create(messages=QUESTION, **options)
    text = answer.choices[0].message.content
    assert text
    assert answer.usage.completion_tokens <= 24
    stream = client.chat.completions.create(
        messages=QUESTION, stream=True, stream_options={"include_usage": True}, **options
    )
    chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == text
    assert chunks[-1].usage == answer.usage
    several = client.completions.create(prompt=["A cat", "A dog"], n=2, logprobs=3, model=model, max_tokens=5)
    assert [choice.index for choice in several.choices] == [0, 1, 2, 3]
    response = client.responses.create(model=model, input="A cat", max_output_tokens=16)
    assert response.output_text
    again = client.responses.create(model=model, input="More", previous_response_id=response.id, max_output_tokens=16)
    assert again.previous_response_id == response.id
    refused = ""
    try:
        client.chat.completions.create(model=model, messages=QUESTION, temperature=-1)
    except BadRequestError as error:
        refused = str(error)
    assert "temperature" in refused

    async def many() -> list[str]:
        async with AsyncOpenAI(base_url=url, api_key=key) as background:
            answers = await asyncio.gather(
                *(background.chat.completions.create(messages=QUESTION, **options) for _ in range(20))
            )
            return [answer.choices[0].message.content for answer in answers]

    assert set(asyncio.run(many())) == {text}
    return ["models", "chat", "chat stream", "completions", "responses", "errors", "20 async"]


def run_langchain(url: str, key: str) -> list[str]:
    """Invoke, stream, batch, structured output."""
    from langchain_openai import ChatOpenAI, OpenAI
    from pydantic import BaseModel, ConfigDict

    class Animal(BaseModel):
        """An animal."""

        # A schema that is open lets a weak model add fields until its tokens are spent.
        model_config = ConfigDict(extra="forbid")
        kind: Literal["cat", "dog"]
        legs: Literal[2, 4]

    chat = ChatOpenAI(base_url=url, api_key=key, model=served(url, key), temperature=0, max_tokens=24)
    text = chat.invoke("Tell me a story about a cat.").content
    assert text
    assert "".join(chunk.content for chunk in chat.stream("Tell me a story about a cat.")) == text
    assert [message.content for message in chat.batch(["Tell me a story about a cat."] * 3)] == [text] * 3
    structured = chat.with_structured_output(Animal, method="json_schema").invoke("A cat has four legs.")
    assert isinstance(structured, Animal)
    assert OpenAI(base_url=url, api_key=key, model=served(url, key), max_tokens=8).invoke("A cat")
    responses = ChatOpenAI(
        base_url=url, api_key=key, model=served(url, key), temperature=0, max_tokens=24, use_responses_api=True
    )
    assert responses.invoke("Tell me a story about a cat.").text == text
    return ["invoke", "stream", "batch", "structured output", "completions", "responses"]


def run_litellm(url: str, key: str) -> list[str]:
    """Whole, streamed, async, text completions, a tool by force."""
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    import litellm

    options = {
        "model": f"openai/{served(url, key)}",
        "api_base": url,
        "api_key": key,
        "temperature": 0,
        "max_tokens": 24,
    }
    text = litellm.completion(messages=QUESTION, **options).choices[0].message.content
    assert text
    stream = litellm.completion(messages=QUESTION, stream=True, **options)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == text
    answer = asyncio.run(litellm.acompletion(messages=QUESTION, **options))
    assert answer.choices[0].message.content == text
    assert litellm.text_completion(
        prompt="A cat", **{**options, "model": f"text-completion-{options['model']}"}
    ).choices
    tool = {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {"type": "object", "properties": {"hot": {"type": "boolean"}}, "required": ["hot"]},
        },
    }
    called = litellm.completion(
        messages=QUESTION, tools=[tool], tool_choice="required", **{**options, "max_tokens": 100}
    )
    [call] = called.choices[0].message.tool_calls
    assert isinstance(json.loads(call.function.arguments)["hot"], bool)
    return ["completion", "stream", "async", "text completion", "required tool"]


def run_instructor(url: str, key: str) -> dict[str, list[str]]:
    """A model of pydantic's in every mode that instructor has for OpenAI's and Anthropic's clients."""
    import instructor
    from anthropic import Anthropic
    from openai import OpenAI
    from pydantic import BaseModel, ConfigDict

    class Animal(BaseModel):
        """An animal."""

        # A schema that is open lets a weak model add fields until its tokens are spent.
        model_config = ConfigDict(extra="forbid")
        kind: Literal["cat", "dog"]
        legs: Literal[2, 4]

    class Anything(BaseModel):
        """An object of any form."""

        model_config = ConfigDict(extra="allow")

    schema = Animal.model_json_schema()
    # Where a mode only asks the model to be so kind, the request holds it to the form: the embedded model is not that kind.
    by_format = {"output_config": {"format": {"type": "json_schema", "schema": schema}}}
    held = {
        ("openai", "MD_JSON"): {"structured_outputs": {"json": schema}},
        ("openai", "PARALLEL_TOOLS"): {"tool_choice": "required"},
        ("anthropic", "PARALLEL_TOOLS"): {"tool_choice": {"type": "any"}},
        **{("anthropic", name): by_format for name in ("JSON", "MD_JSON", "JSON_SCHEMA", "ANTHROPIC_JSON")},
    }
    made = {
        "openai": lambda mode: instructor.from_openai(OpenAI(base_url=url, api_key=key), mode=mode),
        "anthropic": lambda mode: instructor.from_anthropic(
            Anthropic(base_url=url.removesuffix("/v1"), api_key=key), mode=mode
        ),
    }
    done: dict[str, list[str]] = {name: [] for name in made}
    for name, mode in ((name, mode) for name in made for mode in instructor.Mode):
        try:
            client = made[name](mode)
        except Exception as error:  # instructor's own classes differ from version to version
            if "mode" not in str(error).lower():
                raise
            continue
        several = "PARALLEL" in mode.name
        # JSON mode promises an object and no more.
        form = Anything if (name, mode.name) in {("openai", "JSON"), ("openai", "JSON_O1")} else Animal
        found = client.create(
            model=served(url, key),
            messages=QUESTION,
            response_model=Iterable[Animal] if several else form,
            max_retries=0,
            max_tokens=120,
            extra_body={"temperature": 0.0, **held.get((name, mode.name), {})},
        )
        for animal in found if several else [found]:
            assert isinstance(animal, Anything) or animal.legs in (2, 4)
        done[name].append(mode.name)
    return done


def run_anthropic(url: str, key: str) -> list[str]:
    """Whole, streamed, a tool by force, counting, an error."""
    from anthropic import Anthropic, BadRequestError

    client = Anthropic(base_url=url.removesuffix("/v1"), api_key=key)
    options = {"model": served(url, key), "messages": QUESTION, "max_tokens": 24}
    options["extra_body"] = {"temperature": 0.0}  # which is no argument of the client's
    answer = client.messages.create(**options)
    assert answer.usage.output_tokens <= 24
    with client.messages.stream(**options) as stream:
        assert "".join(stream.text_stream) == answer.content[0].text
        assert stream.get_final_message().usage == answer.usage
    schema = {"type": "object", "properties": {"hot": {"type": "boolean"}}, "required": ["hot"]}
    tools = [{"name": "weather", "input_schema": {**schema, "additionalProperties": False}}]
    called = client.messages.create(
        **{**options, "max_tokens": 100}, tools=tools, tool_choice={"type": "tool", "name": "weather"}
    )
    assert called.stop_reason == "tool_use"
    assert isinstance(called.content[-1].input["hot"], bool)
    counted = client.messages.count_tokens(model=options["model"], messages=QUESTION)
    assert counted.input_tokens == answer.usage.input_tokens
    refused = ""
    try:
        client.messages.create(**{**options, "extra_body": {"temperature": -1.0}})
    except BadRequestError as error:
        refused = str(error)
    assert "temperature" in refused
    return ["messages", "stream", "forced tool", "count_tokens", "errors"]


def served(url: str, key: str) -> str:
    """The model's name."""
    from openai import OpenAI

    return OpenAI(base_url=url, api_key=key).models.list().data[0].id


CLIENTS: dict[str, Callable[[str, str], list[str]]] = {
    "openai": run_openai,
    "langchain-openai": run_langchain,
    "litellm": run_litellm,
    "instructor": run_instructor,
    "anthropic": run_anthropic,
}

if __name__ == "__main__":
    sys.exit(main())
