"""A line of a batch: a request for one of the endpoints, and what is answered to it, in OpenAI's and vLLM's form."""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable
from dataclasses import replace
from typing import Any

import orjson

from jaxengine.errors import EngineDeadError, OverloadedError, RequestError
from jaxengine.front.output_stream import OutputStream
from jaxengine.server.endpoints.chat.answer import ChatAnswer
from jaxengine.server.endpoints.chat.protocol import ChatCompletionRequest
from jaxengine.server.endpoints.completions.answer import CompletionAnswer
from jaxengine.server.endpoints.completions.protocol import CompletionRequest
from jaxengine.server.endpoints.embeddings.answer import EmbeddingAnswer
from jaxengine.server.endpoints.embeddings.protocol import EmbeddingRequest
from jaxengine.server.http.body import read_as
from jaxengine.server.http.errors import describe
from jaxengine.server.http.fields import JsonObject
from jaxengine.server.http.respond import WholeAnswer
from jaxengine.server.http.terms import Termed, digest, terms_of
from jaxengine.server.service import Service
from jaxengine.server.telemetry.tracing import Origin

ENDPOINTS: dict[str, tuple[type[Any], Callable[[Any, Service, str], WholeAnswer], str]] = {
    "/v1/chat/completions": (ChatCompletionRequest, ChatAnswer, "chatcmpl"),
    "/v1/completions": (CompletionRequest, CompletionAnswer, "cmpl"),
    "/v1/embeddings": (EmbeddingRequest, EmbeddingAnswer, "embd"),
}
"""What a line's `url` may be: how its body is read and answered, and what ids of answers begin with."""


async def answers_in_order(
    lines: Iterable[str], service: Service, *, most: int, endpoint: str | None = None
) -> AsyncGenerator[JsonObject]:
    """The answer to each line, in their order; `most` lines are under way at once.

    Raises:
        EngineDeadError: no line can be answered any more.
    """
    pending: deque[asyncio.Task[JsonObject]] = deque()
    try:
        for line in lines:
            if len(pending) == most:
                yield await pending.popleft()
            pending.append(asyncio.create_task(answer_line(line, service, endpoint=endpoint)))
        while pending:
            yield await pending.popleft()
    finally:
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)


async def answer_line(line: str, service: Service, *, endpoint: str | None = None) -> JsonObject:
    """What is written for a line. A request that fails has its error there, and every other line goes on.

    With `endpoint` it must be one for that.

    Raises:
        EngineDeadError: no line can be answered any more.
    """
    given: Any = None
    request_id = uuid.uuid4().hex
    response: JsonObject = {"status_code": 200, "request_id": request_id, "body": None}
    error = None
    try:
        given = _read(line)
        response["body"] = await _answer(given, request_id, service, endpoint)
    except EngineDeadError:
        raise
    except Exception as failure:
        error = describe(failure)
        response["status_code"] = error["error"]["code"]
    custom_id = given.get("custom_id") if isinstance(given, dict) else None
    return {"id": f"batch_req_{uuid.uuid4().hex}", "custom_id": custom_id, "response": response, "error": error}


def _read(line: str) -> JsonObject:
    try:
        given = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise RequestError(f"the line is not valid JSON: {error}") from None
    if not isinstance(given, dict):
        raise RequestError("a line must be an object with custom_id, method, url and body")
    return given


async def _answer(given: JsonObject, request_id: str, service: Service, endpoint: str | None) -> Any:
    url, body = given.get("url"), given.get("body")
    if not isinstance(given.get("custom_id"), str):
        raise RequestError("a line needs custom_id, a text", param="custom_id")
    if given.get("method") != "POST":
        raise RequestError.of("method", "must be POST")
    if not isinstance(url, str) or url not in ENDPOINTS:
        raise RequestError.of("url", f"must be one of {', '.join(ENDPOINTS)}, got {str(url)[:100]!r}")
    if endpoint not in (None, url):
        raise RequestError.of("url", f"must be that of the batch, {endpoint}, got {url!r}")
    if isinstance(body, dict) and body.get("stream"):
        raise RequestError("an answer in a batch cannot be streamed; leave stream out", param="stream")
    protocol, make, prefix = ENDPOINTS[url]
    read = read_as(protocol, body)
    answer = make(read, service, f"{prefix}-{request_id}")
    stream = await _submitted(answer, read, Origin(url), service)
    return await answer.whole(stream)


async def _submitted(answer: WholeAnswer, body: Termed, origin: Origin, service: Service) -> OutputStream:
    """A batch waits where others would be sent away. All batches have one share."""
    terms = replace(terms_of(body, origin, by="key"), share=digest("batches"))
    requests = await answer.prepare()
    while True:
        try:
            return await service.submit(requests, origin, terms)
        except OverloadedError as error:
            await asyncio.sleep(error.retry_after)
