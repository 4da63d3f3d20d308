"""Traces, as a real receiver of OpenTelemetry's protocol gets them from a server around a fake runner."""

from __future__ import annotations

import gzip
import re
import threading
import time
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from typing import Any

import pytest

from jaxengine.errors import ConfigError
from jaxengine.server.options import ServerConfig
from jaxengine.server.telemetry.options import TracesConfig
from jaxengine.server.telemetry.tracing import open_traces
from tests.fakes import GatedRunner
from tests.fronts import make_engine
from tests.server.rig import Live, live

collector = pytest.importorskip(
    "opentelemetry.proto.collector.trace.v1.trace_service_pb2", reason="needs jaxengine[otlp]"
)
pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="needs jaxengine[otlp]")
grpc = pytest.importorskip("grpc", reason="needs jaxengine[otlp]")

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
JSON_FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "boolean"}}}


class Received:
    """The spans that came, with attributes as a dict."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.services: set[str] = set()
        self._came = threading.Condition()

    def add(self, request: Any) -> None:
        with self._came:
            for resource in request.resource_spans:
                self.services |= {a.value.string_value for a in resource.resource.attributes if a.key == "service.name"}
                self.spans += [span for scope in resource.scope_spans for span in scope.spans]
            self._came.notify_all()

    def named(self, pattern: str) -> list[Any]:
        return [span for span in self.spans if re.fullmatch(pattern, span.name)]

    def one(self, pattern: str) -> Any:
        (span,) = self.named(pattern)
        return span


def attributes(span: Any) -> dict[str, Any]:
    def value(any_value: Any) -> Any:
        kind = any_value.WhichOneof("value")
        found = getattr(any_value, kind)
        return [value(each) for each in found.values] if kind == "array_value" else found

    return {each.key: value(each.value) for each in span.attributes}


@contextmanager
def http_receiver() -> Iterator[tuple[str, Received]]:
    received = Received()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            received.add(collector.ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.send_header("content-type", "application/x-protobuf")
            self.end_headers()

        def log_message(self, *arguments: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1/traces", received
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def grpc_receiver() -> Iterator[tuple[str, Received]]:
    from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc

    received = Received()

    class Servicer(trace_service_pb2_grpc.TraceServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 - the protocol's name
            received.add(request)
            return collector.ExportTraceServiceResponse()

    server = grpc.server(futures.ThreadPoolExecutor(2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(Servicer(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"http://127.0.0.1:{port}", received
    finally:
        server.stop(None)


@contextmanager
def traced(monkeypatch: pytest.MonkeyPatch, **options: Any) -> Iterator[tuple[Live, Received]]:
    """A server with an HTTP receiver; all spans are there when the block has ended."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf")
    engine = options.pop("engine", None)
    with http_receiver() as (endpoint, received), live(engine, otlp_traces_endpoint=endpoint, **options) as server:
        yield server, received
        server.settle()
        server.service.traces.close()


def test_a_request_is_a_child_of_its_caller_and_its_phases_are_its_children(monkeypatch: pytest.MonkeyPatch) -> None:
    before = time.time_ns()
    with traced(monkeypatch, served_model_name=("fake",)) as (server, received):
        body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 5, "seed": 3, "temperature": 0.5}
        headers = {"traceparent": CALLER}
        usage = server.http.post("/v1/chat/completions", json=body, headers=headers).json()["usage"]
        events = server.events("/v1/completions", prompt="once", max_tokens=3, n=2)
        assert events[-1] == "[DONE]"
    after = time.time_ns()
    assert received.services == {"jaxengine"}

    chat, completion = received.one("chat fake"), received.one("text_completion fake")
    assert chat.trace_id.hex() == CALLER.split("-")[1]
    assert chat.parent_span_id.hex() == CALLER.split("-")[2]
    assert completion.parent_span_id == b"", "without a caller's context a trace begins here"
    assert chat.kind == 2, "a server's span"
    told = attributes(chat)
    assert told["gen_ai.usage.input_tokens"] == told["gen_ai.usage.prompt_tokens"] == usage["prompt_tokens"]
    assert told["gen_ai.usage.output_tokens"] == told["gen_ai.usage.completion_tokens"] == usage["completion_tokens"]
    assert told["gen_ai.request.seed"] == 3
    assert told["gen_ai.request.temperature"] == 0.5
    assert told["gen_ai.request.max_tokens"] == 5
    assert told["gen_ai.response.finish_reasons"] == ["length"]
    assert "gen_ai.latency.time_in_model_forward" not in told, "details were not asked for"

    children = {span.name: span for span in received.spans if span.parent_span_id == chat.span_id}
    assert set(children) == {"prepare", "queue", "prefill", "decode"}
    order = [children[name] for name in ("prepare", "queue", "prefill", "decode")]
    assert before <= chat.start_time_unix_nano == order[0].start_time_unix_nano
    assert order[-1].end_time_unix_nano <= chat.end_time_unix_nano <= after
    for first, second in pairwise(order):
        assert abs(first.end_time_unix_nano - second.start_time_unix_nano) < 2000, "one begins where another ends"
    prefill = (children["prefill"].end_time_unix_nano - children["prefill"].start_time_unix_nano) / 1e9
    assert prefill == pytest.approx(told["gen_ai.latency.time_in_model_prefill"], abs=1e-5)
    decodes = [span for span in received.named("decode") if span.parent_span_id == completion.span_id]
    assert {attributes(span)["jaxengine.sequence"] for span in decodes} == {0, 1}
    assert "hello" not in str(received.spans), "a trace holds no text"


def test_what_a_request_waited_for_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two requests and one place: the second waits for the first."""
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    engine = make_engine(max_num_seqs=1, runner=GatedRunner)
    with traced(monkeypatch, engine=engine, collect_detailed_traces=("all",)) as (server, received):
        body = {"prompt": "a", "max_tokens": 60}
        with futures.ThreadPoolExecutor(2) as threads:
            posted = [threads.submit(server.http.post, "/v1/completions", json=body) for _ in range(2)]
            deadline = time.monotonic() + 20
            while not engine.core.scheduler.stats.num_waiting:  # a step at a time, until both have come
                assert time.monotonic() < deadline
                server.runner.allow(1)
                time.sleep(0.02)
            server.runner.open()
            assert all(each.result().status_code == 200 for each in posted)
    assert received.services == {"mine"}
    reasons = sorted(attributes(span)["jaxengine.queue.reason"] for span in received.named("queue"))
    assert reasons == ["max_num_seqs", "the step in progress"]
    for span in received.named("text_completion .*"):
        told = attributes(span)
        device, whole = (told[f"gen_ai.latency.time_in_model_{name}"] for name in ("forward", "execute"))
        assert 0 < device <= whole


def test_a_grammar_has_a_phase_and_an_aborted_request_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(runner=GatedRunner)
    with traced(monkeypatch, engine=engine) as (server, received):
        body = {"prompt": "a", "max_tokens": 50, "stream": True}
        with server.http.stream("POST", "/v1/completions", json=body):
            pass  # and go away
        server.runner.open()
        server.settle()
        message = [{"role": "user", "content": "hello"}]
        assert server.post("/v1/chat/completions", messages=message, response_format=JSON_FORMAT).status_code == 200
        assert server.post("/v1/embeddings", input="hello").status_code == 200
    gone = received.one("text_completion .*")
    assert gone.status.code == 2
    assert attributes(gone)["error.type"] == "abort"
    (grammar,) = received.named("compile grammar")
    assert grammar.parent_span_id == received.one("chat .*").span_id
    assert {span.name for span in received.spans if span.parent_span_id == received.one("embeddings .*").span_id} == {
        "prepare",
        "queue",
        "prefill",
    }


def test_grpc_is_what_an_endpoint_speaks_unless_a_variable_says_otherwise() -> None:
    with grpc_receiver() as (endpoint, received), live(otlp_traces_endpoint=endpoint) as server:
        assert server.post("/v1/completions", prompt="a", max_tokens=2).status_code == 200
        server.settle()
        server.service.traces.close()
    assert len(received.named("text_completion .*")) == 1


def test_a_collector_that_is_not_there_harms_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf")
    monkeypatch.setattr("jaxengine.server.telemetry.tracing.FLUSH_MS", 1)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    with live(otlp_traces_endpoint="http://127.0.0.1:9/v1/traces") as server:
        assert server.post("/v1/completions", prompt="a", max_tokens=2).status_code == 200


def test_without_an_endpoint_nothing_is_traced_nor_loaded() -> None:
    assert open_traces(TracesConfig(), "fake") is None


def test_what_cannot_be_traced_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="collect_detailed_traces needs otlp_traces_endpoint"):
        open_traces(TracesConfig(collect_detailed_traces=("model",)), "fake")
    with pytest.raises(ConfigError, match="of model, worker, all, got"):
        ServerConfig.from_options(otlp_traces_endpoint="http://localhost:4317", collect_detailed_traces=("layers",))
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "carrier pigeon")
    with pytest.raises(ConfigError, match="grpc, http/protobuf, got 'carrier pigeon'"):
        open_traces(TracesConfig(otlp_traces_endpoint="http://localhost:4317"), "fake")
