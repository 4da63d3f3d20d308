"""The messages of a conversation become one prompt."""

from __future__ import annotations

import inspect
from dataclasses import replace
from functools import partial
from typing import Any

from jaxengine.errors import RequestError
from jaxengine.front.prompts import ParsedPrompt, no_eyes
from jaxengine.media.parts import lift
from jaxengine.server.conversation.conversation import Conversation
from jaxengine.server.long_text import encode_texts
from jaxengine.server.service import Service
from jaxengine.text.placeholders import NO_PLACEHOLDERS
from jaxengine.text.tokenizer import Tokenizer, require_tokenizer

RESERVED = inspect.signature(Tokenizer.apply_chat_template).parameters.keys() | {"documents", "tokenize"}
"""Names that `chat_template_kwargs` must not use: they have fields of their own, or none."""


async def render_prompt(
    asked: Conversation, service: Service, *, tools: list[dict[str, Any]] | None = None, must_fit: bool = True
) -> ParsedPrompt:
    """The chat template's text for the messages, and its token ids with what they show. All of it is done on threads.

    Raises:
        RequestError: there is no template, it refuses the messages, the request brings one and may not, or what comes of it is
            too long for the model and `must_fit`; or what messages show cannot be had, or is more than the model takes.
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

    showing = service.intake.showing
    messages, shown = lift(asked.messages)
    if shown:
        if showing is None:
            raise no_eyes(shown)
        showing.check(shown)

    def render() -> ParsedPrompt:
        text = tokenizer.apply_chat_template(
            messages,
            chat_template=asked.chat_template,
            content_format=api.chat_template_content_format,
            add_generation_prompt=asked.add_generation_prompt is not False,
            continue_final_message=bool(asked.continue_final_message),
            tools=tools,
            placeholders=NO_PLACEHOLDERS if showing is None else showing.placeholders,
            **variables,
        )
        special = bool(asked.add_special_tokens)
        whole = text if showing is None or not shown else showing.surrounded(text)
        [ids] = encode_texts(tokenizer, [whole], service, special=special, must_fit=must_fit)
        return ParsedPrompt(text, tuple(ids))

    prompt = await service.in_thread(render)
    if showing is None or not shown:
        return prompt
    items = await service.in_media_thread(partial(showing.prepare, shown, asked.mm_processor_kwargs))
    ids, media = showing.placed(prompt.token_ids or (), items)
    return replace(prompt, token_ids=ids, media=media)
