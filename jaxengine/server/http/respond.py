"""From an answer in the making to an HTTP response, whole or streamed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Protocol

from fastapi import Request, Response

from jaxengine.contract.request import Request as EngineRequest
from jaxengine.front.output_stream import OutputStream
from jaxengine.server.http.stream import DONE, EventStream, json_response, while_connected
from jaxengine.server.http.terms import Termed, terms_of
from jaxengine.server.service import Service
from jaxengine.server.telemetry.load_report import load_report
from jaxengine.server.telemetry.request_log import log_requests
from jaxengine.server.telemetry.tracing import Origin


class WholeAnswer(Protocol):
    """What an endpoint makes of one body."""

    async def prepare(self) -> Sequence[EngineRequest]:
        """Check the body and make the engine's requests.

        Raises:
            RequestError: the body asks for something that cannot be.
        """
        ...

    async def whole(self, stream: OutputStream[Any]) -> Mapping[str, Any]:
        """The whole answer, when all outputs have come."""
        ...


class Answer(WholeAnswer, Protocol):
    """One that may be streamed too."""

    def events(self, stream: OutputStream) -> AsyncIterator[bytes]:
        """The answer as server-sent events, without the last one that says that it is done."""
        ...


async def respond(
    answer: Answer, body: Termed, request: Request, service: Service, *, streamed: bool, done: bytes = DONE
) -> Response:
    """Run an answer; whatever is under way is aborted when the client goes away.

    An error that is known before the first event has its own status. `done` ends a stream.
    """
    if not streamed:
        return await respond_whole(answer, body, request, service)
    stream = await while_connected(request, begin(answer, body, Origin.of(request), service))
    interval = service.options.network.sse_keep_alive_interval
    return EventStream(answer.events(stream), closing=stream.close, keep_alive_s=interval, done=done)


async def respond_whole(answer: WholeAnswer, body: Termed, request: Request, service: Service) -> Response:
    """Run an answer that comes in one piece; it is aborted when the client goes away."""
    origin = Origin.of(request)

    async def whole() -> Mapping[str, Any]:
        return await answer.whole(await begin(answer, body, origin, service))

    response = json_response(await while_connected(request, whole()))
    response.headers.update(load_report(request, service))
    return response


async def begin(answer: WholeAnswer, body: Termed, origin: Origin, service: Service) -> OutputStream[Any]:
    """Check the body and hand its requests to the engine, on the terms that it and the HTTP request ask for."""
    terms = terms_of(body, origin, by=service.options.limits.fair_share_by)
    requests = await answer.prepare()
    log_requests(requests, service)
    return await service.submit(requests, origin, terms)
