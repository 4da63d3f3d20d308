"""From an answer in the making to an HTTP response, whole or streamed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Protocol

from fastapi import Request, Response

from jaxengine.contract.request import Request as EngineRequest
from jaxengine.front.output_stream import OutputStream
from jaxengine.server.http.stream import DONE, EventStream, json_response, while_connected
from jaxengine.server.service import Service
from jaxengine.server.telemetry.load_report import load_report
from jaxengine.server.telemetry.request_log import log_requests


class WholeAnswer(Protocol):
    """What an endpoint makes of one body."""

    async def prepare(self) -> Sequence[EngineRequest]:
        """Check the body and make the engine's requests.

        Raises:
            RequestError: the body asks for something that cannot be.
        """
        ...

    async def whole(self, stream: OutputStream) -> Mapping[str, Any]:
        """The whole answer, when all outputs have come."""
        ...


class Answer(WholeAnswer, Protocol):
    """One that may be streamed too."""

    def events(self, stream: OutputStream) -> AsyncIterator[bytes]:
        """The answer as server-sent events, without the last one that says that it is done."""
        ...


async def respond(
    answer: Answer, request: Request, service: Service, *, streamed: bool, done: bytes = DONE
) -> Response:
    """Run an answer; whatever is under way is aborted when the client goes away.

    An error that is known before the first event has its own status. `done` ends a stream.
    """
    if not streamed:
        return await respond_whole(answer, request, service)
    stream = await while_connected(request, begin(answer, service))
    interval = service.options.network.sse_keep_alive_interval
    return EventStream(answer.events(stream), closing=stream.close, keep_alive_s=interval, done=done)


async def respond_whole(answer: WholeAnswer, request: Request, service: Service) -> Response:
    """Run an answer that comes in one piece; it is aborted when the client goes away."""

    async def whole() -> Mapping[str, Any]:
        return await answer.whole(await begin(answer, service))

    response = json_response(await while_connected(request, whole()))
    response.headers.update(load_report(request, service))
    return response


async def begin(answer: WholeAnswer, service: Service) -> OutputStream:
    """Check the body and hand its requests to the engine."""
    requests = await answer.prepare()
    log_requests(requests, service)
    return await service.engine.submit(requests)
