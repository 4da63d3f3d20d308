"""`/tokenize`, `/detokenize` and `/tokenizer_info`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

from jaxengine.server.http.fields import Int64, JsonObject, JsonObjects


class TokenizeRequest(BaseModel):
    """Text, or messages that the chat template turns into text.

    `add_special_tokens` is true for a prompt and false for messages, whose template has written them.
    """

    model_config = ConfigDict(extra="allow")

    model: str | None = None
    prompt: str | None = None
    messages: JsonObjects | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = False
    add_generation_prompt: bool | None = True
    continue_final_message: bool | None = False
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: JsonObjects | None = None


class Tokens(TypedDict):
    """Token ids, how many they are, and how many fit."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeRequest(BaseModel):
    """Token ids."""

    model_config = ConfigDict(extra="allow")

    model: str | None = None
    tokens: Annotated[list[Annotated[Int64, Field(ge=0)]], Field(fail_fast=True)]


class Text(TypedDict):
    """The text of token ids."""

    prompt: str


class TokenizerInfo(TypedDict):
    """What clients that tokenise on their own need to know."""

    tokenizer_class: str | None
    add_bos_token: bool
    bos_token: str | None
    eos_token: str | None
    pad_token: str | None
    unk_token: str | None
    additional_special_tokens: list[str]
    added_tokens_decoder: dict[str, JsonObject]
    chat_template: str | dict[str, str] | None
    model_max_length: int
