"""What requests of several endpoints share: sampling fields, stream options, usage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, NotRequired

from pydantic import BaseModel, ConfigDict, Field, create_model
from typing_extensions import TypedDict

from jaxengine.contract.sampling_options import OPTIONS
from jaxengine.server.http.fields import Int64, Integers, Seconds, Texts


class StreamOptions(BaseModel):
    """`include_usage` ends the stream with one more chunk, `continuous_usage_stats` puts usage on every chunk."""

    model_config = ConfigDict(extra="allow")

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


if TYPE_CHECKING:

    class OptionFields(BaseModel):
        """Those that code reads by name."""

        temperature: float | None = None
        top_p: float | None = None
else:
    OptionFields = create_model(
        "OptionFields",
        **{option.name: (Int64 | None if option.kind is int else float | None, None) for option in OPTIONS},
    )


class SamplingRequest(OptionFields):
    """Fields of every request that generates, whatever its endpoint calls the rest. None is the model's own default, else vLLM's.

    Those of `SamplingOptions` come from the table.

    Fields that are not declared are accepted: `http.unknown` knows which of them must be refused.
    """

    model_config = ConfigDict(extra="allow", protected_namespaces=())

    model: str | None = None
    stream: bool | None = False
    seed: Int64 | None = None
    logit_bias: dict[str, float] | None = None
    stop: str | Texts | None = None
    stop_token_ids: Integers | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    min_tokens: Int64 | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    allowed_token_ids: Integers | None = None
    bad_words: Texts | None = None
    truncate_prompt_tokens: Int64 | None = None
    truncation_side: Literal["left", "right"] | None = None

    structured_outputs: dict[str, Any] | None = None
    guided_json: str | dict[str, Any] | bool | None = None
    guided_regex: str | None = None
    guided_choice: Texts | None = None
    guided_grammar: str | None = None
    guided_json_object: bool | None = None
    guided_whitespace_pattern: str | None = None

    priority: Int64 | None = 0
    cache_salt: str | None = None
    request_id: str | None = None
    user: str | None = None
    safety_identifier: str | None = None
    timeout: Seconds | None = None
    resume: bool | None = True


class GenerationRequest(SamplingRequest):
    """What completions and chat share beyond that."""

    stream_options: StreamOptions | None = None
    n: Int64 | None = 1
    prompt_logprobs: Int64 | None = None
    response_format: dict[str, Any] | None = None
    thinking_token_budget: Annotated[int, Field(strict=True)] | None = None
    kv_transfer_params: dict[str, Any] | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None


class PromptTokensDetails(TypedDict):
    """How many prompt tokens came from the prefix cache."""

    cached_tokens: int


class CompletionTokensDetails(TypedDict):
    """How many generated tokens were reasoning."""

    reasoning_tokens: int


class Usage(TypedDict):
    """Tokens read and written."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: int
    prompt_tokens_details: PromptTokensDetails | None
    completion_tokens_details: NotRequired[CompletionTokensDetails]


class TokenScore(TypedDict):
    """One entry of `prompt_logprobs`."""

    logprob: float
    rank: int | None
    decoded_token: str | None


PromptLogprobs = list[dict[str, TokenScore] | None]
"""Per prompt token, token id to score; None for the first, which nothing precedes."""


class TopLogprob(TypedDict):
    """A token that was likely in a place; `bytes` are those of its text in UTF-8."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    """The token that was chosen in a place, and the most likely ones there, best first."""

    top_logprobs: list[TopLogprob]


FinishReason = str
"""`stop`, `length`, `tool_calls`, or `error` when the grammar of a structured answer outgrew its limits."""
StopReason = int | str | None
PAUSED = "the engine was paused or put to sleep, which ended it"
"""Why something ended with `abort`, for those to whom that says nothing."""
