"""ORCA's load report: a balancer that asks for it in a request's headers finds how busy the server is in the answer's."""

from __future__ import annotations

import json
from collections.abc import Mapping

from fastapi import Request

from jaxengine.server.service import Service

ASKS = "endpoint-load-metrics-format"
TELLS = "endpoint-load-metrics"


def load_report(request: Request, service: Service) -> dict[str, str]:
    """The header that was asked for, as TEXT or JSON; none where it was not, or in another form. The names are vLLM's."""
    stats = service.engine.statistics.scheduler
    load = {"kv_cache_usage_perc": stats.kv_cache_usage, "num_requests_waiting": float(stats.num_waiting)}
    form = request.headers.get(ASKS, "").upper()
    return {TELLS: f"{form} {FORMS[form](load)}"} if form in FORMS else {}


def _text(load: Mapping[str, float]) -> str:
    return ", ".join(f"named_metrics.{name}={value}" for name, value in load.items())


def _json(load: Mapping[str, float]) -> str:
    return json.dumps({"named_metrics": load})


FORMS = {"TEXT": _text, "JSON": _json}
