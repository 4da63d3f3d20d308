"""The model's tokenizer over HTTP."""

from __future__ import annotations

from collections.abc import Mapping

from fastapi import Response

from jaxengine.errors import RequestError
from jaxengine.server.conversation.conversation import Conversation, refuse_template_fields
from jaxengine.server.conversation.prompt import render_prompt
from jaxengine.server.endpoints.tokenize.protocol import DetokenizeRequest, Text, TokenizeRequest, TokenizerInfo, Tokens
from jaxengine.server.http.body import json_router
from jaxengine.server.http.stream import json_response
from jaxengine.server.http.unknown import check_unknown
from jaxengine.server.long_text import encode_texts
from jaxengine.server.service import Service, ServiceDep
from jaxengine.text.tokenizer import Tokenizer, require_tokenizer

router = json_router("tokenizer")


@router.post("/tokenize", response_model=Tokens)
async def tokenize(body: TokenizeRequest, service: ServiceDep) -> Response:
    """Token ids of a text, or of messages as the chat template renders them. They may be more than the model takes: up to
    262,144, or twice its context where that is more."""
    service.check_model(body.model)
    check_unknown(body.model_extra)
    tokenizer = _tokenizer(service)
    if (body.prompt is None) == (body.messages is None):
        raise RequestError("give either prompt or messages", param="prompt")
    if body.messages is None:
        refuse_template_fields(body, beside="prompt")
    rendered = None
    if body.messages is not None:
        rendered = await render_prompt(Conversation.of(body), service, tools=body.tools, must_fit=False)

    def answer() -> Response:
        if rendered is not None:
            ids = list(rendered.token_ids or ())
        else:
            special = body.add_special_tokens is not False
            [ids] = encode_texts(tokenizer, [body.prompt or ""], service, special=special, must_fit=False)
        texts = [tokenizer.backend.id_to_token(token_id) or "" for token_id in ids] if body.return_token_strs else None
        tokens: Tokens = {
            "count": len(ids),
            "max_model_len": service.max_model_len,
            "tokens": ids,
            "token_strs": texts,
        }
        return json_response(tokens)

    return await service.in_thread(answer)


@router.post("/detokenize")
async def detokenize(body: DetokenizeRequest, service: ServiceDep) -> Text:
    """The text of token ids, special tokens included."""
    service.check_model(body.model)
    check_unknown(body.model_extra)
    tokenizer = _tokenizer(service)

    def decode() -> Text:
        if body.tokens and max(body.tokens) >= tokenizer.vocab_size:
            unknown = next(token_id for token_id in body.tokens if token_id >= tokenizer.vocab_size)
            raise RequestError(
                f"token id {unknown} has no text: ids are 0 to {tokenizer.vocab_size - 1}", param="tokens"
            )
        return {"prompt": tokenizer.decode(body.tokens)}

    return await service.in_thread(decode)


@router.get("/tokenizer_info")
async def tokenizer_info(service: ServiceDep) -> TokenizerInfo:
    """Special tokens and chat template."""
    tokenizer = _tokenizer(service)
    settings, backend = tokenizer.settings, tokenizer.backend
    templates = settings.chat_templates
    return {
        "tokenizer_class": settings.tokenizer_class,
        "add_bos_token": tokenizer.bos_token_id is not None and tokenizer.encode("")[:1] == [tokenizer.bos_token_id],
        "bos_token": tokenizer.bos_token,
        "eos_token": tokenizer.eos_token,
        "pad_token": settings.special_tokens.get("pad_token"),
        "unk_token": settings.special_tokens.get("unk_token"),
        "additional_special_tokens": list(settings.extra_special_tokens),
        "added_tokens_decoder": {
            str(token_id): {"content": token.content, "special": token.special}
            for token_id, token in backend.get_added_tokens_decoder().items()
        },
        "chat_template": dict(templates) if isinstance(templates, Mapping) else templates,
        "model_max_length": service.max_model_len,
    }


def _tokenizer(service: Service) -> Tokenizer:
    return require_tokenizer(service.tokenizer, "this endpoint")
