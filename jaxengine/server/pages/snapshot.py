"""What the dashboard shows of an engine: facts once, and numbers of the moment. Counts only, nothing that anybody wrote."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from jaxengine import __version__
from jaxengine.contract.metrics import EngineStatistics
from jaxengine.server.service import Service
from jaxengine.server.telemetry.pulse import Pulse
from jaxengine.server.telemetry.tally import EngineNumbers, Tally

SERIES = (
    *("now", "prompt_tokens", "generated_tokens", "running", "waiting", "held_pages", "cached_pages"),
    *("first_token_p50", "first_token_p95", "between_tokens_p50", "between_tokens_p95"),
    *("draft_tokens", "accepted_tokens", "steps"),
)
"""Those numbers of a snapshot that the dashboard draws over time, and that are kept for who comes later."""


def facts(service: Service) -> dict[str, Any]:
    """What stays as it is while the engine runs. Times in seconds; `floor` is the least a step of a shape can take, if known."""
    known = service.engine.facts
    return {
        "version": __version__,
        "model": service.model_names[0],
        "created": service.created,
        "shapes": [
            {"name": str(shape), "rows": shape.batch, "places": shape.tokens, "floor": known.floors.get(shape)}
            for shape in sorted(known.shapes, key=lambda shape: (shape.tokens, shape.batch))
        ],
        "page_size": known.page_size,
        "kv_tokens": known.kv_tokens,
        "max_model_len": known.max_model_len,
        "max_num_seqs": known.max_num_seqs,
        "max_num_batched_tokens": known.max_num_batched_tokens,
        "start_phases": list(known.start_phases.items()),
        "series": SERIES,
    }


def counts(engines: Sequence[EngineNumbers], pulses: Sequence[Pulse]) -> dict[str, Any]:
    """The numbers of the moment as /metrics has them, those of all engines added up; `engines` has some of each.

    `cells`: by shape steps, real tokens, padding and seconds, all since the start.
    """
    total = EngineStatistics.total([engine.statistics for engine in engines])
    stats, tallies = total.scheduler, [engine.tally for engine in engines]
    cells = _cells(tallies)
    return {
        "prompt_tokens": sum(tally.prompt_tokens for tally in tallies),
        "generated_tokens": sum(tally.generated_tokens for tally in tallies),
        "running": stats.num_running,
        "waiting": stats.num_waiting,
        "preemptions": stats.num_preemptions,
        "held_pages": stats.num_held_pages,
        "cached_pages": stats.num_cached_pages,
        "free_pages": stats.num_free_pages,
        "host_blocks": total.tiers.num_blocks,
        "host_cached_blocks": total.tiers.num_cached_blocks,
        "host_arriving_blocks": total.tiers.num_arriving_blocks,
        "kv_traffic": {way: [moved.bytes, moved.seconds] for way, moved in total.tiers.traffic.items()},
        "prefix_queries": stats.prefix_cache_queries,
        "prefix_hits": stats.prefix_cache_hits + stats.external_prefix_cache_hits,
        "prefix_hits_by_tier": {
            "device": stats.prefix_cache_hits,
            **sum((tally.cached_from for tally in tallies), Counter()),
        },
        "draft_tokens": sum(tally.num_draft_tokens for tally in tallies),
        "accepted_tokens": sum(tally.num_accepted_tokens for tally in tallies),
        "steps": sum(steps for steps, *_ in cells.values()),
        "compilations": total.num_compilations,
        "cells": cells,
        "engines": [_engine(engine, pulse) for engine, pulse in zip(engines, pulses, strict=True)],
    }


def _cells(tallies: Sequence[Tally]) -> dict[str, list[float]]:
    cells: dict[str, list[float]] = {}
    for tally in tallies:
        for shape, times in tally.step_times.items():
            own = (times.count, tally.computed_tokens[shape], tally.padding_tokens[shape], times.total)
            cells[str(shape)] = [had + more for had, more in zip(cells.get(str(shape), (0,) * 4), own, strict=True)]
    return cells


def _engine(engine: EngineNumbers, pulse: Pulse) -> dict[str, Any]:
    """One engine: `runs` is the shape of its last step while it has work."""
    stats = engine.scheduler
    busy = stats.num_running > 0 and pulse.latest is not None
    return {
        "rank": engine.rank,
        "running": stats.num_running,
        "waiting": stats.num_waiting,
        "usage": stats.kv_cache_usage,
        "steps": sum(times.count for times in engine.tally.step_times.values()),
        "programs": engine.statistics.num_programs,
        "asleep": engine.statistics.asleep,
        "runs": str(pulse.latest) if busy else None,
    }
