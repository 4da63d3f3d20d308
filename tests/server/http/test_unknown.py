"""Every field of OpenAI's and vLLM's requests works, changes nothing, or is refused by name."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from jaxengine.errors import UnsupportedError
from jaxengine.options.names import reasons
from jaxengine.server.endpoints.chat.protocol import ChatCompletionRequest
from jaxengine.server.endpoints.completions.protocol import CompletionRequest
from jaxengine.server.endpoints.embeddings.protocol import EmbeddingRequest
from jaxengine.server.endpoints.responses.protocol import ResponsesRequest
from jaxengine.server.endpoints.tokenize.protocol import TokenizeRequest
from jaxengine.server.http.unknown import check_unknown
from tests.server.rig import Live

ABSENT, NEUTRAL = reasons("request_fields"), reasons("request_fields_taken")
HARMLESS = set(reasons("request_fields_harmless")["names"])


def words(text: str) -> list[str]:
    return text.split()


SAMPLING = words("""
    model stream temperature top_p top_k min_p presence_penalty frequency_penalty repetition_penalty seed logit_bias stop
    stop_token_ids include_stop_str_in_output ignore_eos min_tokens skip_special_tokens spaces_between_special_tokens
    allowed_token_ids bad_words truncate_prompt_tokens truncation_side structured_outputs priority request_id cache_salt user
    use_beam_search length_penalty logits_processors vllm_xargs kv_transfer_params ec_transfer_params repetition_detection
    stream_interval logprob_token_ids session_id thinking_token_budget watermarking guided_json guided_regex guided_choice
    guided_grammar guided_json_object guided_decoding_backend guided_whitespace_pattern stream_options
""")
PARTS = words("media_io_kwargs mm_processor_kwargs")
TEMPLATE = words("add_generation_prompt continue_final_message add_special_tokens chat_template chat_template_kwargs")
BOTH = words("n max_tokens logprobs prompt_logprobs echo response_format return_tokens_as_token_ids return_token_ids")

VLLM: dict[type[BaseModel], list[str]] = {
    CompletionRequest: [*SAMPLING, *BOTH, *words("prompt prompt_embeds suffix best_of add_special_tokens")],
    ChatCompletionRequest: [
        *SAMPLING,
        *BOTH,
        *PARTS,
        *TEMPLATE,
        *words("""
        messages max_completion_tokens top_logprobs tools tool_choice parallel_tool_calls reasoning_effort include_reasoning
        documents return_token_offsets return_prompt_text best_of use_audio_in_video
        """),
    ],
    ResponsesRequest: [
        *SAMPLING,
        *PARTS,
        *words("""
        background include input instructions max_output_tokens max_tool_calls metadata parallel_tool_calls previous_response_id
        prompt reasoning service_tier store text tool_choice tools top_logprobs truncation prompt_cache_key include_reasoning
        chat_template_kwargs enable_response_messages previous_input_messages
        """),
    ],
    EmbeddingRequest: [
        *PARTS,
        *TEMPLATE,
        *words("""
        model input messages encoding_format dimensions user truncate_prompt_tokens truncation_side priority request_id cache_salt
        embed_dtype endianness normalize use_activation
        """),
    ],
    TokenizeRequest: [*PARTS, *TEMPLATE, *words("model prompt messages return_token_strs tools")],
}
"""Fields of vLLM 0.33's requests, and the former ones that its documents name."""

OPENAI = {
    "CreateCompletionRequest": CompletionRequest,
    "CreateChatCompletionRequest": ChatCompletionRequest,
    "CreateResponse": ResponsesRequest,
    "CreateEmbeddingRequest": EmbeddingRequest,
}

PATHS: dict[type[BaseModel], tuple[str, dict[str, Any]]] = {
    CompletionRequest: ("/v1/completions", {"prompt": "Tom", "max_tokens": 1}),
    ChatCompletionRequest: ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}),
    ResponsesRequest: ("/v1/responses", {"input": "Hi", "max_output_tokens": 1}),
    EmbeddingRequest: ("/v1/embeddings", {"input": "Tom"}),
    TokenizeRequest: ("/tokenize", {"prompt": "Tom"}),
}


def forgotten(request: type[BaseModel], fields: list[str]) -> list[str]:
    return [name for name in fields if name not in {*request.model_fields, *HARMLESS, *ABSENT}]


@pytest.mark.parametrize("request_type", VLLM)
def test_no_field_of_vllms_is_forgotten(request_type: type[BaseModel]) -> None:
    assert not forgotten(request_type, VLLM[request_type])


@pytest.mark.parametrize("name", OPENAI)
def test_no_field_of_openais_is_forgotten(name: str, shared: Path) -> None:
    schemas = json.loads((shared / "openapi" / "openapi_subset.json").read_text())["components"]["schemas"]

    def fields(schema: dict[str, Any]) -> list[str]:
        if "$ref" in schema:
            return fields(schemas[schema["$ref"].rsplit("/", 1)[1]])
        return [*schema.get("properties", ()), *(name for part in schema.get("allOf", ()) for name in fields(part))]

    found = fields(schemas[name])
    assert len(found) >= 5
    assert not forgotten(OPENAI[name], found)


def test_a_field_has_one_fate() -> None:
    assert not HARMLESS & ABSENT.keys()
    assert ABSENT.keys() >= NEUTRAL.keys()


def test_what_is_refused_is_refused_by_every_endpoint(server: Live) -> None:
    for request_type, (path, body) in PATHS.items():
        for name in ABSENT.keys() - request_type.model_fields.keys():
            response = server.post(path, **{**body, name: "something"})
            assert response.status_code == 400, (path, name)
            assert response.json()["error"]["param"] == name
            assert response.json()["error"]["message"] == f"{name} is not supported: {ABSENT[name]}"


def test_what_asks_for_nothing_passes(server: Live) -> None:
    for request_type, (path, body) in PATHS.items():
        absent = ABSENT.keys() - request_type.model_fields.keys()
        neutral = {name: (*NEUTRAL.get(name, [False]), None)[0] for name in absent}
        for given in (neutral, dict.fromkeys(absent), dict.fromkeys(HARMLESS - request_type.model_fields.keys(), "a")):
            assert server.post(path, **{**body, **given}).status_code == 200


@pytest.mark.parametrize("name", ["web_search_options", "audio", "moderation"])
def test_an_empty_object_may_ask_for_something(name: str) -> None:
    with pytest.raises(UnsupportedError, match=f"{name} is not supported"):
        check_unknown({name: {}})


def test_a_value_of_zero_may_ask_for_something() -> None:
    for name in ("thinking_token_budget", "length_penalty", "logprobs", "prompt_logprobs", "max_tokens"):
        with pytest.raises(UnsupportedError, match=f"{name} is not supported"):
            check_unknown({name: 0})


def test_what_nobody_knows_is_noted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "jaxengine")
    check_unknown({"never_heard_of": 1, "user": "me"})
    assert "['never_heard_of']" in caplog.text
