"""What `/v1/responses` keeps: responses that have ended, and those with `background`, which run until they are looked up."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from jaxengine.front.output_stream import OutputStream
from jaxengine.server.endpoints.responses.answer import ResponseAnswer
from jaxengine.server.endpoints.responses.protocol import ResponseObject, ResponsesRequest
from jaxengine.server.endpoints.responses.store import ResponseStore
from jaxengine.server.http.errors import describe
from jaxengine.server.http.respond import begin
from jaxengine.server.service import Service
from jaxengine.server.telemetry.tracing import Origin


class KeptResponses:
    """Those that run, and the store of those that have ended, which go when others need their place.

    Attributes:
        store: responses that have ended.
    """

    def __init__(self, service: Service) -> None:
        self.store = ResponseStore(service.options.responses.response_store_bytes)
        self._service = service
        self._running: dict[str, tuple[ResponseAnswer, OutputStream, asyncio.Task[None]]] = {}

    def start(self) -> None:
        """Nothing runs before it is asked for."""

    async def run(self, answer: ResponseAnswer, body: ResponsesRequest, origin: Origin) -> ResponseObject:
        """Begin with a response in the background, which is `queued` then.

        Raises:
            RequestError: the body asks for something that cannot be, or there is no room in the queue.
        """
        stream = await begin(answer, body, origin, self._service)
        self._running[answer.id] = answer, stream, asyncio.create_task(self._run(answer, stream))
        return answer.response

    def find(self, response_id: str) -> ResponseObject:
        """A response that runs, as far as it came, or one that was kept.

        Raises:
            ResponseNotFoundError: there is none.
        """
        running = self._running.get(response_id)
        return self.store.response(response_id) if running is None else running[0].response

    async def cancel(self, response_id: str) -> bool:
        """End a response that runs: it is `cancelled` and keeps what it has. False where none runs under this id."""
        if response_id not in self._running:
            return False
        answer, stream, task = self._running.pop(response_id)
        answer.end("cancelled")  # in this turn of the event loop: a request in the next one finds it
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        stream.close()  # the task may not have begun
        return True

    async def close(self) -> None:
        """End all of them."""
        for response_id in list(self._running):
            await self.cancel(response_id)

    async def _run(self, answer: ResponseAnswer, stream: OutputStream) -> None:
        try:
            await answer.whole(stream)
        except Exception as error:
            answer.end("failed", error=describe(error)["error"]["message"])
        self._running.pop(answer.id, None)
