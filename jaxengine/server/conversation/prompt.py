"""The messages of a conversation become one prompt."""

from __future__ import annotations

import inspect
from typing import Any

from jaxengine.errors import RequestError
from jaxengine.front.prompts import ParsedPrompt
from jaxengine.server.conversation.conversation import Conversation
from jaxengine.server.long_text import encode_texts
from jaxengine.server.service import Service
from jaxengine.text.tokenizer import Tokenizer, require_tokenizer

RESERVED = inspect.signature(Tokenizer.apply_chat_template).parameters.keys() | {"documents", "tokenize"}
"""Names that `chat_template_kwargs` must not use: they have fields of their own, or none."""


async def render_prompt(
    asked: Conversation, service: Service, *, tools: list[dict[str, Any]] | None = None, must_fit: bool = True
) -> ParsedPrompt:
    """The chat template's text for the messages, and its token ids. Rendered and tokenised on a thread.

    Raises:
        RequestError: there is no template, it refuses the messages, the request brings one and may not, or what comes of it is
            too long for the model and `must_fit`.
    """
    tokenizer = require_tokenizer(service.tokenizer, "chat")
    api = service.options.api
    if asked.chat_template is not None and not api.trust_request_chat_template:
        raise RequestError.of(
            "chat_template",
            "is refused: this server does not run templates of requests (--trust-request-chat-template)",
        )
    variables = {**api.default_chat_template_kwargs, **(asked.chat_template_kwargs or {})}
    if taken := sorted(RESERVED & variables.keys()):
        raise RequestError.of("chat_template_kwargs", f"must not have {', '.join(taken)}")
    for name in ("reasoning_effort", "verbosity"):
        if (value := getattr(asked, name)) is not None:
            variables.setdefault(name, value)
    if asked.documents is not None:
        variables["documents"] = asked.documents

    def render() -> ParsedPrompt:
        text = tokenizer.apply_chat_template(
            asked.messages,
            chat_template=asked.chat_template,
            content_format=api.chat_template_content_format,
            add_generation_prompt=asked.add_generation_prompt is not False,
            continue_final_message=bool(asked.continue_final_message),
            tools=tools,
            **variables,
        )
        special = bool(asked.add_special_tokens)
        [ids] = encode_texts(tokenizer, [text], service, special=special, must_fit=must_fit)
        return ParsedPrompt(text, tuple(ids))

    return await service.in_thread(render)
