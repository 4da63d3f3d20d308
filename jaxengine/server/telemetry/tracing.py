"""Traces of requests for an OpenTelemetry collector: GenAI's semantic conventions, beside them vLLM's attributes.

    chat MODEL              from the HTTP request to the last token, a child of the caller's span where its headers tell of one
      prepare               the body is checked; template, tokens, a grammar is tried
      compile grammar       the engine compiles the grammar, if there is one
      queue                 until the first step: `jaxengine.queue.reason` says what it waited for
      prefill               until the first token
      decode                until the last token, one for each sequence

Times are those of the engine's own statistics. A trace holds no text.
"""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from jaxengine import __version__
from jaxengine.contract.metrics import FinishedRequest, FinishedSequence, StepStats
from jaxengine.contract.request import Request
from jaxengine.errors import ConfigError
from jaxengine.front.async_client import AsyncClient
from jaxengine.front.output_stream import OutputStream
from jaxengine.server.telemetry.options import TracesConfig

if TYPE_CHECKING:
    from fastapi import Request as HttpRequest
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider

PROTOCOLS = ("grpc", "http/protobuf")
PROTOCOL_VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")

FLUSH_MS = 3000
"""How long the end of the server waits for a collector that takes the last spans."""

STEPS_KEPT = 1 << 16
"""Steps that are added up for one request at the most, where details are asked for."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where requests come from: an HTTP request at a path, begun at a time of `time.monotonic`."""

    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)

    @classmethod
    def of(cls, request: HttpRequest) -> Origin:
        """The origin of what an HTTP request asks for."""
        return cls(request.url.path, request.headers)


@dataclass(slots=True)
class _Followed:
    """A request under way, and those of its sequences that have ended."""

    request: Request
    origin: Origin
    context: Context
    accepted: float | None = None
    ended: list[FinishedSequence] = field(default_factory=list)


class RequestTraces:
    """Follows requests and writes the spans of each when it has ended. It belongs to the event loop, and hears the engine.

    Args:
        provider: makes spans and passes them on.
        model: the served model's name.
        detailed: of `collect_detailed_traces`.
    """

    def __init__(self, provider: TracerProvider, model: str, *, detailed: Sequence[str] = ()) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("jaxengine", __version__)
        self._model = model
        self._detailed = frozenset(("model", "worker") if "all" in detailed else detailed)
        self._open: dict[str, _Followed] = {}
        self._steps: deque[tuple[float, float, float]] = deque(
            maxlen=STEPS_KEPT
        )  # when told, device's and host's seconds

    async def submit(
        self, engine: AsyncClient, requests: Sequence[Request], origin: Origin, *, timeout_s: float | None = None
    ) -> OutputStream:
        """Hand requests to the engine and follow them. Raises what `AsyncClient.submit` does."""
        from opentelemetry import propagate

        context = propagate.extract(origin.headers)
        self._open |= {request.request_id: _Followed(request, origin, context) for request in requests}
        try:
            stream = await engine.submit(requests, timeout_s=timeout_s)
        except BaseException as error:
            self._lose([request.request_id for request in requests], type(error).__name__)
            raise
        accepted = time.monotonic()
        for request in requests:
            if (found := self._open.get(request.request_id)) is not None:
                found.accepted = accepted
        stream.on_lost = self._lose
        return stream

    def on_step(self, stats: StepStats) -> None:
        """Keep what steps took while a request may want to know."""
        if self._detailed and self._open:
            self._steps.append((time.monotonic(), stats.step_s, stats.host_gap_s or 0.0))
        elif self._steps:
            self._steps.clear()

    def on_finished(self, sequence: FinishedSequence, request: FinishedRequest | None) -> None:
        """A sequence ended by itself; with the last one its request is told."""
        if (found := self._open.get(sequence.request_id)) is None:
            return
        found.ended.append(sequence)
        if request is not None:
            del self._open[sequence.request_id]
            self._tell(found)

    def on_lost(self, finish_reason: str, num_sequences: int) -> None:
        """Requests that end before their time are told by their streams."""

    def close(self) -> None:
        """Pass on what is left, as far as the collector takes it in time."""
        self._provider.force_flush(FLUSH_MS)
        self._provider.shutdown()

    def _lose(self, request_ids: Sequence[str], why: str) -> None:
        """Requests ended before their time: given up by their callers, or with an error."""
        for request_id in request_ids:
            if (found := self._open.pop(request_id, None)) is not None:
                self._tell(found, error=why)

    def _tell(self, found: _Followed, *, error: str | None = None) -> None:
        """Write the spans of a request that has ended."""
        from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context

        now = time.monotonic()
        nanoseconds = partial(_nanoseconds, since=time.time_ns() - int(now * 1e9))
        request, origin = found.request, found.origin
        operation = _operation(request, origin.path)
        span = self._tracer.start_span(
            f"{operation} {self._model}",
            context=found.context,
            kind=SpanKind.SERVER,
            start_time=nanoseconds(origin.began),
            attributes={
                "gen_ai.operation.name": operation,
                "gen_ai.provider.name": "jaxengine",
                "gen_ai.request.model": self._model,
                "gen_ai.response.model": self._model,
                "url.path": origin.path,
                **_asked(request),
                **_answered(found),
                **self._details(found),
            },
        )
        if error is not None:
            span.set_status(Status(StatusCode.ERROR, error))
            span.set_attribute("error.type", error)
        inside = set_span_in_context(span, found.context)
        for name, begin, end, attributes in _phases(found):
            child = self._tracer.start_span(name, inside, start_time=nanoseconds(begin), attributes=attributes)
            child.end(nanoseconds(end))
        span.end(nanoseconds(now))

    def _details(self, found: _Followed) -> Mapping[str, float]:
        """Seconds of the steps that ran while the request did."""
        if not self._detailed or not found.ended:
            return {}
        scheduled = found.request.arrival + found.ended[0].queue_s
        beside = [(device, host) for told, device, host in self._steps if told >= scheduled]
        details = {"model": ("model_forward", 0.0), "worker": ("model_execute", 1.0)}
        return {
            f"gen_ai.latency.time_in_{name}": sum(device + share * host for device, host in beside)
            for module, (name, share) in details.items()
            if module in self._detailed
        }


def open_traces(config: TracesConfig, model: str) -> RequestTraces | None:
    """Traces as the options and OpenTelemetry's environment variables say; None where no endpoint is given.

    Raises:
        ConfigError: OpenTelemetry is not installed, or a variable has a value that it may not have.
    """
    if config.otlp_traces_endpoint is None:
        if config.collect_detailed_traces:
            raise ConfigError("collect_detailed_traces needs otlp_traces_endpoint, where traces go")
        return None
    protocol = next((os.environ[name] for name in PROTOCOL_VARIABLES if os.environ.get(name)), PROTOCOLS[0])
    if protocol not in PROTOCOLS:
        raise ConfigError(f"{PROTOCOL_VARIABLES[0]} must be one of {', '.join(PROTOCOLS)}, got {protocol!r}")
    try:
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        exporter = _exporter(protocol, config.otlp_traces_endpoint)
    except ImportError as error:
        raise ConfigError(
            f"otlp_traces_endpoint needs OpenTelemetry ({error.name} is missing): pip install 'jaxengine[otlp]'"
        ) from None
    resource = Resource.create()
    if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):  # the environment does not name it
        resource = resource.merge(Resource({SERVICE_NAME: "jaxengine"}))
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return RequestTraces(provider, model, detailed=config.collect_detailed_traces)


def _exporter(protocol: str, endpoint: str) -> Any:
    if protocol == PROTOCOLS[0]:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

        return OTLPSpanExporter(endpoint)
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpSpanExporter

    return HttpSpanExporter(endpoint)


def _nanoseconds(monotonic: float, *, since: int) -> int:
    """A time of `time.monotonic` in nanoseconds of the epoch; `since` is the epoch's time at its zero."""
    return since + int(monotonic * 1e9)


def _operation(request: Request, path: str) -> str:
    if request.pooling is not None:
        return "embeddings"
    return "text_completion" if path.endswith("/v1/completions") else "chat"


def _asked(request: Request) -> Mapping[str, Any]:
    """What the request says of its sampling."""
    sampling = request.sampling
    given = {
        "gen_ai.request.id": request.request_id,
        "gen_ai.usage.input_tokens": len(request.prompt_token_ids),
        "gen_ai.usage.prompt_tokens": len(request.prompt_token_ids),
    }
    if request.pooling is not None:
        return given
    return given | {
        "gen_ai.request.n": sampling.n,
        "gen_ai.request.choice.count": sampling.n,
        "gen_ai.request.max_tokens": request.max_tokens,
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.top_p": sampling.top_p,
        "gen_ai.request.top_k": sampling.top_k,
        "gen_ai.request.frequency_penalty": sampling.frequency_penalty,
        "gen_ai.request.presence_penalty": sampling.presence_penalty,
        "gen_ai.request.seed": request.seed,
    }


def _answered(found: _Followed) -> Mapping[str, Any]:
    """What came of a request: counts over its sequences, times of the one that came first."""
    if not found.ended:
        return {}
    sequences = sorted(found.ended, key=lambda sequence: sequence.index)
    first, last = sequences[0], max(sequences, key=lambda sequence: sequence.total_s)
    generated = sum(sequence.num_generated_tokens for sequence in sequences)
    return {
        "gen_ai.response.finish_reasons": [sequence.finish_reason for sequence in sequences],
        "gen_ai.usage.num_sequences": len(sequences),
        "gen_ai.usage.output_tokens": generated,
        "gen_ai.usage.completion_tokens": generated,
        "gen_ai.usage.cache_read.input_tokens": first.num_cached_tokens,
        "gen_ai.latency.time_in_queue": first.queue_s,
        "gen_ai.latency.time_to_first_token": first.queue_s + first.prefill_s,
        "gen_ai.latency.e2e": last.total_s,
        "gen_ai.latency.time_in_model_prefill": first.prefill_s,
        "gen_ai.latency.time_in_model_decode": last.decode_s,
        "gen_ai.latency.time_in_model_inference": last.inference_s,
        "jaxengine.num_preemptions": sum(sequence.num_preemptions for sequence in sequences),
    }


def _phases(found: _Followed) -> Iterator[tuple[str, float, float, Mapping[str, Any]]]:
    """Name, begin, end and attributes of each thing that the request went through."""
    request, origin = found.request, found.origin
    arrival = max(origin.began, request.arrival)
    yield "prepare", origin.began, arrival, {}
    accepted = math.inf if found.accepted is None else found.accepted  # it may have ended before this was seen
    scheduled = request.arrival + found.ended[0].queue_s if found.ended else max(arrival, accepted)
    compiled = arrival
    if request.grammar is not None and scheduled < math.inf:
        compiled = min(accepted, scheduled)
        yield "compile grammar", arrival, compiled, {}
    if not found.ended:
        return
    sequences = sorted(found.ended, key=lambda sequence: sequence.index)
    reason = sequences[0].waited_for or "the step in progress"
    yield "queue", compiled, scheduled, {"jaxengine.queue.reason": reason}
    first_token = scheduled + sequences[0].prefill_s
    cached = {"gen_ai.usage.cache_read.input_tokens": sequences[0].num_cached_tokens}
    yield "prefill", scheduled, first_token, cached
    if request.pooling is not None:
        return
    for sequence in sequences:
        begin = scheduled + sequence.prefill_s
        attributes = {
            "jaxengine.sequence": sequence.index,
            "jaxengine.num_preemptions": sequence.num_preemptions,
            "gen_ai.usage.output_tokens": sequence.num_generated_tokens,
            "gen_ai.response.finish_reasons": [sequence.finish_reason],
        }
        yield "decode", begin, begin + sequence.decode_s, attributes
