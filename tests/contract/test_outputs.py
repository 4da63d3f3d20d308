"""Outputs: vLLM's field names, and what `finished` means."""

from __future__ import annotations

import dataclasses
import json

import pytest

from jaxengine.contract.outputs import (
    MINUS_INFINITY,
    CompletionOutput,
    EmbeddingOutput,
    EmbeddingRequestOutput,
    Logprob,
    PoolingOutput,
    PoolingRequestOutput,
    RequestMetrics,
    RequestOutput,
)


def names(kind: type) -> list[str]:
    return [field.name for field in dataclasses.fields(kind)]


def test_field_names_are_those_that_users_read() -> None:
    assert names(Logprob) == ["logprob", "rank", "decoded_token"]
    assert names(CompletionOutput) == [
        "index",
        "text",
        "token_ids",
        "cumulative_logprob",
        "logprobs",
        "finish_reason",
        "stop_reason",
        "weight_versions",
    ]
    assert set(names(RequestOutput)) == {
        "request_id",
        "prompt",
        "prompt_token_ids",
        "prompt_logprobs",
        "outputs",
        "finished",
        "metrics",
        "num_cached_tokens",
        "kv_transfer_params",
        "lora_request",
    }
    assert names(PoolingOutput) == ["data"]
    assert names(EmbeddingOutput) == ["embedding"]
    for kind in (PoolingRequestOutput, EmbeddingRequestOutput):
        assert names(kind) == [
            *("request_id", "outputs", "prompt_token_ids", "num_cached_tokens", "finished", "aborted"),
            *("weight_version", "problem"),
        ]
    assert names(RequestMetrics)[0] == "arrival_time"


def test_a_completion_is_finished_once_it_has_a_reason() -> None:
    running = CompletionOutput(index=0, text="a", token_ids=(1,))
    assert not running.finished
    assert dataclasses.replace(running, finish_reason="length").finished


def test_outputs_are_values() -> None:
    output = RequestOutput(
        request_id="r",
        prompt="p",
        prompt_token_ids=(1, 2),
        outputs=(CompletionOutput(index=0, text="", token_ids=()),),
        finished=False,
    )
    assert output == dataclasses.replace(output)
    assert output.prompt_logprobs is None
    assert output.num_cached_tokens == 0
    with pytest.raises(dataclasses.FrozenInstanceError):
        output.finished = True  # type: ignore[misc]


def test_the_stand_in_for_minus_infinity_is_valid_json() -> None:
    assert json.loads(json.dumps(dataclasses.asdict(Logprob(MINUS_INFINITY)))) == {
        "logprob": -9999.0,
        "rank": None,
        "decoded_token": None,
    }


def test_an_embedding_knows_its_length() -> None:
    output = EmbeddingRequestOutput("r", EmbeddingOutput([0.6, -0.8, 0.0]), (1, 2))
    assert (output.outputs.hidden_size, output.finished) == (3, True)
