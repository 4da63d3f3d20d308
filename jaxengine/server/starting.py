"""What a server answers while its engine starts: how far the start is, and to everything else that it has to wait."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.types import Receive, Scope, Send

from jaxengine.errors import OverloadedError
from jaxengine.front.starting import StartPhases
from jaxengine.server.http.errors import answer_error
from jaxengine.server.http.layers import layers
from jaxengine.server.options import ServerConfig
from jaxengine.server.pages.files import file_routes
from jaxengine.server.telemetry.prometheus import add_process

RETRY_AFTER_S = 2


class StartCollector(Collector):
    """The start's progress for /metrics; `startup_phase_seconds` stays there when the engine is ready.

    Args:
        phases: how far the start of each engine is, by its rank.
        model_name: the label of all engine metrics, beside the rank.
    """

    def __init__(self, phases: Mapping[int, StartPhases], model_name: str) -> None:
        self._phases = phases
        self._model_name = model_name

    def collect(self) -> Iterator[Metric]:
        """All families, of one moment."""
        seconds = Metric("jaxengine:startup_phase_seconds", "Seconds that each phase of the start took.", "gauge")
        running = Metric(
            "jaxengine:startup_phase_running", "1 for each phase of the start that has not ended.", "gauge"
        )
        for rank, phases in self._phases.items():
            current = phases.running
            for phase, spent in phases.seconds.items():
                labels = {"model_name": self._model_name, "engine": str(rank), "phase": phase}
                seconds.add_sample(seconds.name, labels, spent)
                running.add_sample(running.name, labels, float(phase in current))
        yield from (seconds, running)


def starting_app(phases: Mapping[int, StartPhases], options: ServerConfig, *, model_name: str) -> Starlette:
    """An app that answers /metrics with the progress, has the files of the pages, and answers 503 with a reason to all else."""
    registry = CollectorRegistry()
    add_process(registry)
    registry.register(StartCollector(phases, model_name))

    async def metrics(request: Request) -> Response:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(registry), headers={"Content-Type": content_type})

    async def wait(scope: Scope, receive: Receive, send: Send) -> None:
        slowest = next((each for each in phases.values() if each.running), next(iter(phases.values())))
        error = OverloadedError(f"the engine is starting ({describe(slowest)})", retry_after=RETRY_AFTER_S)
        await answer_error(Request(scope), error)(scope, receive, send)

    pages = file_routes(options.network.root_path) if options.api.ui else []
    return Starlette(routes=[Route("/metrics", metrics), *pages, Mount("/", wait)], middleware=layers(options))


def describe(phases: StartPhases) -> str:
    """What runs, and for how long: for everybody, so without the lines of the log, which hold paths."""
    seconds = phases.seconds
    running = [f"{phase} for {seconds[phase]:.0f} s" for phase in phases.running if phase in seconds]
    return ", ".join(running) or "its process begins or its parts are put together"
