"""`POST /v1/audio/transcriptions` and `/v1/audio/translations`: what is said in a file of sound."""

from __future__ import annotations

from fastapi import Request, Response

from jaxengine.errors import RequestError
from jaxengine.server.endpoints.audio.answer import SpeechAnswer
from jaxengine.server.endpoints.audio.protocol import SpeechRequest
from jaxengine.server.http.body import json_router, read_as
from jaxengine.server.http.form import read_fields
from jaxengine.server.http.stream import EventStream, while_connected
from jaxengine.server.http.terms import terms_of
from jaxengine.server.service import Service, ServiceDep
from jaxengine.server.telemetry.tracing import Origin

router = json_router("audio")


@router.post("/v1/audio/transcriptions")
async def create_transcription(request: Request, service: ServiceDep) -> Response:
    """Write what is said, in the language in which it is said: a form with `file`, and fields as OpenAI and vLLM name them."""
    return await _respond(request, service, "transcribe")


@router.post("/v1/audio/translations")
async def create_translation(request: Request, service: ServiceDep) -> Response:
    """Write in English what is said."""
    return await _respond(request, service, "translate")


async def _respond(request: Request, service: Service, task: str) -> Response:
    content_type, form = request.headers.get("content-type", ""), await request.body()

    def read() -> tuple[SpeechRequest, bytes]:
        values: dict[str, object] = {}
        content: bytes | None = None
        for name, field in read_fields(content_type, form):
            if name == "file":
                content = field.content
                continue
            text = field.content.decode("utf-8", "replace")
            if name.endswith("[]"):
                several = values.setdefault(name.removesuffix("[]"), [])
                assert isinstance(several, list)
                several.append(text)
            else:
                values[name] = text
        if content is None:
            raise RequestError("the form must have a file", param="file")
        return read_as(SpeechRequest, values), content

    body, content = await service.in_thread(read)
    origin = Origin.of(request)
    terms = terms_of(body, origin, by=service.options.limits.fair_share_by)
    answer = SpeechAnswer(body, content, task, service, origin, terms)
    if not body.stream:
        return await while_connected(request, answer.whole())
    stream = await while_connected(request, answer.begin())
    interval = service.options.network.sse_keep_alive_interval
    return EventStream(answer.events(stream), closing=stream.close, keep_alive_s=interval)
