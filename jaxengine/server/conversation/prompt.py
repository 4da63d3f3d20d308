"""Messages become the one prompt of a chat request."""

from __future__ import annotations

from typing import Any

from jaxengine.errors import RequestError
from jaxengine.front.prompts import ParsedPrompt
from jaxengine.server.endpoints.chat.protocol import ChatCompletionRequest
from jaxengine.server.long_text import encode_texts
from jaxengine.server.service import Service
from jaxengine.text.tokenizer import require_tokenizer

RESERVED = frozenset(
    {
        "messages",
        "tools",
        "documents",
        "chat_template",
        "content_format",
        "add_generation_prompt",
        "continue_final_message",
        "tokenize",
        "self",
    }
)
"""Names that `chat_template_kwargs` must not use: they have fields of their own, or none."""


async def render_prompt(
    body: ChatCompletionRequest, service: Service, *, tools: list[dict[str, Any]] | None = None, must_fit: bool = True
) -> ParsedPrompt:
    """The chat template's text for the messages, and its token ids. Rendered and tokenised on a thread.

    Raises:
        RequestError: there is no template, it refuses the messages, the request brings one and may not, or what comes of it is
            too long for the model (unless it is cut, or need not fit).
    """
    tokenizer = require_tokenizer(service.tokenizer, "chat")
    api = service.options.api
    if body.chat_template is not None and not api.trust_request_chat_template:
        raise RequestError(
            "chat_template is refused: this server does not run templates of requests (--trust-request-chat-template)",
            param="chat_template",
        )
    variables = {**api.default_chat_template_kwargs, **(body.chat_template_kwargs or {})}
    if taken := sorted(RESERVED & variables.keys()):
        raise RequestError(f"chat_template_kwargs must not have {', '.join(taken)}", param="chat_template_kwargs")
    for name in ("reasoning_effort", "verbosity"):
        if (value := getattr(body, name)) is not None:
            variables.setdefault(name, value)
    if body.documents is not None:
        variables["documents"] = body.documents

    def render() -> ParsedPrompt:
        text = tokenizer.apply_chat_template(
            body.messages,
            chat_template=body.chat_template,
            content_format=api.chat_template_content_format,
            add_generation_prompt=body.add_generation_prompt is not False,
            continue_final_message=bool(body.continue_final_message),
            tools=tools,
            **variables,
        )
        fits = must_fit and body.truncate_prompt_tokens is None
        special = bool(body.add_special_tokens)
        [ids] = encode_texts(tokenizer, [text], service, special=special, must_fit=fits)
        return ParsedPrompt(text, tuple(ids))

    return await service.in_thread(render)
