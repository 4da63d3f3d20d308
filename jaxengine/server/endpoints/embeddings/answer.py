"""The answer to an embedding request. Each embedding is written when it comes, so that the last of many is no long pause."""

from __future__ import annotations

import base64
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import orjson

from jaxengine.contract.outputs import RequestOutput
from jaxengine.contract.pooling_params import PoolingParams
from jaxengine.contract.request import Request as EngineRequest
from jaxengine.errors import JaxEngineError, RequestError, UnsupportedError
from jaxengine.front.output_stream import OutputStream
from jaxengine.front.prompts import ParsedPrompt
from jaxengine.server.conversation.conversation import Conversation
from jaxengine.server.conversation.prompt import render_prompt
from jaxengine.server.endpoints.embeddings.protocol import EmbeddingRequest
from jaxengine.server.generation.requests import check_label
from jaxengine.server.http.unknown import check_unknown
from jaxengine.server.long_text import encode_texts
from jaxengine.server.service import Service
from jaxengine.text.tokenizer import require_tokenizer

MAX_INPUTS = 2048
"""OpenAI's limit. Not --max-choices: an input is one step's row and no stream."""

ABSENT_FORMATS = ("bytes", "bytes_only")


class EmbeddingAnswer:
    """One body and its inputs."""

    def __init__(self, body: EmbeddingRequest, service: Service, response_id: str) -> None:
        self._body = body
        self._service = service
        self._head = {
            "id": response_id,
            "object": "list",
            "created": int(time.time()),
            "model": service.model_names[0],
        }
        self._places: dict[str, int] = {}
        self._prompt_tokens = 0

    async def prepare(self) -> list[EngineRequest]:
        """Check the body and make the engine's requests."""
        body, service = self._body, self._service
        service.check_model(body.model)
        check_unknown(body.model_extra)
        check_label(body.request_id)
        _check_encoding(body)
        if (body.input is None) == (body.messages is None):
            raise RequestError("give either input or messages", param="input")
        params = PoolingParams(
            dimensions=body.dimensions,
            normalize=body.normalize,
            use_activation=body.use_activation,
            truncate_prompt_tokens=body.truncate_prompt_tokens,
        )
        rendered = None
        if body.messages is not None:
            asked = Conversation.of(body, add_generation_prompt=bool(body.add_generation_prompt))
            rendered = await render_prompt(asked, service)
        requests = await service.in_thread(lambda: self._requests(self._prompts(rendered, params), params))
        self._places = {request.request_id: index for index, request in enumerate(requests)}
        self._prompt_tokens = sum(len(request.prompt_token_ids) for request in requests)
        return requests

    async def whole(self, stream: OutputStream) -> Mapping[str, Any]:
        """Wait for everything."""
        data: list[Any] = [None] * len(self._places)
        cached = 0
        with stream:
            async for outputs in stream:
                for output in outputs:
                    index = self._places[output.request_id]
                    data[index] = {"object": "embedding", "index": index, "embedding": self._written(output)}
                    cached += output.num_cached_tokens
        usage: dict[str, Any] = {"prompt_tokens": self._prompt_tokens, "total_tokens": self._prompt_tokens}
        if self._service.options.api.enable_prompt_tokens_details:
            usage["prompt_tokens_details"] = {"cached_tokens": cached}
        return {**self._head, "data": data, "usage": usage}

    def _prompts(self, rendered: ParsedPrompt | None, params: PoolingParams) -> list[ParsedPrompt]:
        """Every input with its token ids."""
        body, service = self._body, self._service
        if rendered is not None:
            return [rendered]
        inputs = _inputs(body.input)
        texts = [item for item in inputs if isinstance(item, str)]
        if len(texts) < len(inputs):
            return [ParsedPrompt(None, tuple(ids)) for ids in inputs]
        tokenizer = require_tokenizer(service.tokenizer, "a text prompt")
        keep = service.intake.longest_prompt(params)
        special = body.add_special_tokens is not False
        encoded = encode_texts(tokenizer, texts, service, special=special, must_fit=keep is None, keep=keep)
        return [ParsedPrompt(text, tuple(ids)) for text, ids in zip(texts, encoded, strict=True)]

    def _requests(self, prompts: Sequence[ParsedPrompt], params: PoolingParams) -> list[EngineRequest]:
        body, service = self._body, self._service
        requests = []
        for index, prompt in enumerate(prompts):
            try:
                entry = replace(prompt, cache_salt=body.cache_salt)
                requests.append(
                    service.intake.request(entry, params, request_id=service.engine_id(), priority=body.priority or 0)
                )
            except RequestError as error:
                if len(prompts) == 1:
                    raise
                raise type(error)(f"input {index}: {error}", param=error.param) from error
        return requests

    def _written(self, output: RequestOutput) -> orjson.Fragment | str:
        """The embedding as JSON. Numbers are the shortest that give the same float32 again."""
        if output.embedding is None:
            raise JaxEngineError("the engine gave up a request")
        if self._body.encoding_format == "base64":
            order = ">" if self._body.endianness == "big" else "<"
            return base64.b64encode(output.embedding.astype(f"{order}f4").tobytes()).decode("ascii")
        return orjson.Fragment(orjson.dumps(np.ascontiguousarray(output.embedding), option=orjson.OPT_SERIALIZE_NUMPY))


def _check_encoding(body: EmbeddingRequest) -> None:
    """Accept the forms of embeddings that are built.

    Raises:
        RequestError: another one.
    """
    given = body.encoding_format
    if given in ABSENT_FORMATS:
        raise UnsupportedError.of("encoding_format", f"{given!r} is not supported: use float or base64")
    if given not in (None, "float", "base64"):
        raise RequestError.of("encoding_format", f"must be float or base64, got {given[:50]!r}")
    if body.embed_dtype not in (None, "float32"):
        raise UnsupportedError.of("embed_dtype", "is not supported: embeddings are sent as float32")


def _inputs(given: Any) -> list[Any]:
    """One input or several, each text or ids: a bare list of ids is one.

    Raises:
        RequestError: none, or too many.
    """
    if isinstance(given, str) or (given and isinstance(given[0], int)):
        given = [given]
    if not given:
        raise RequestError.of("input", "must not be empty")
    if len(given) > MAX_INPUTS:
        raise RequestError.of("input", f"must have at most {MAX_INPUTS} entries, got {len(given)}")
    return list(given)
