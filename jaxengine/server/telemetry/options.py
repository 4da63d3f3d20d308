"""Options of traces."""

from __future__ import annotations

from dataclasses import dataclass

from jaxengine.options.option import option

MODULES = ("model", "worker", "all")
"""vLLM's names of what `collect_detailed_traces` may ask for."""


def _modules(value: object) -> str | None:
    valid = isinstance(value, tuple) and set(value) <= set(MODULES)
    return None if valid else f"of {', '.join(MODULES)}"


@dataclass(frozen=True, kw_only=True)
class TracesConfig:
    """Where traces of requests go, and what is in them beside times."""

    otlp_traces_endpoint: str | None = option(
        None,
        "OpenTelemetry collector that gets a trace of each request, such as http://localhost:4317; OTEL_* variables say the rest "
        "(needs jaxengine[otlp])",
    )
    collect_detailed_traces: tuple[str, ...] = option(
        (),
        "also add up the steps that ran while a request did: model their time on the device, worker the host's too, all both",
        check=_modules,
    )
