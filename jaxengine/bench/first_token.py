"""A fresh process from its start to one generated token: `python -m jaxengine.bench.first_token SPAWNED OPTIONS` prints JSON.

SPAWNED is `time.CLOCK_MONOTONIC` when the process was spawned, which all processes of a machine share; OPTIONS are those of the
engine, as JSON. Imports stand where they are timed.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path


def main() -> None:
    spawned, options = float(sys.argv[1]), json.loads(sys.argv[2])

    def clock() -> float:
        return round(time.clock_gettime(time.CLOCK_MONOTONIC) - spawned, 3)

    python = clock()
    import logging

    logging.getLogger("jaxengine").setLevel(logging.WARNING)
    from jaxengine.collector import without_collection

    with without_collection():
        from jaxengine.options.config import EngineConfig
        from jaxengine.startup.device_half import load_builder

        config = EngineConfig.from_options(**options)
        build_engine = load_builder(config)
        import jax

        from jaxengine.contract.sampling_params import SamplingParams

    imported = clock()
    events = {"/jax/compilation_cache/cache_hits": 0, "/jax/compilation_cache/cache_misses": 0}

    def count(event: str, **metadata: object) -> None:
        if event in events:
            events[event] += 1

    jax.monitoring.register_event_listener(count)
    engine = build_engine(config)
    ready = clock()
    [request] = engine.front.intake.prepare([list(range(64))], [SamplingParams(max_tokens=1, temperature=0.0)])
    engine.core.add(request)
    while engine.core.has_unfinished:
        engine.core.step()
    token = clock()
    records = engine.programs
    seconds = ("trace_s", "lower_s", "compile_s", "load_s")
    report = {
        "python_s": python,
        "imports_s": round(imported - python, 3),
        "ready_s": ready,
        "first_token_s": token,
        "phases_s": {name: round(value, 3) for name, value in engine.host.facts.start_phases.items()},
        "programs": {
            origin: sum(record.origin == origin for record in records) for origin in ("compiler", "store", "bundle")
        },
        "program_seconds": {name: round(sum(getattr(record, name) for record in records), 2) for name in seconds},
        "shapes": len(engine.space.grid),
        "jax_cache": {name.rsplit("/", 1)[1]: seen for name, seen in events.items()},
        "compilations_after_ready": engine.compile_counter.count,
        "peak_rss_mib": _peak_kib() // 1024,
        "cpu_s": round(time.process_time(), 1),
    }
    print(json.dumps(report), flush=True)
    engine.close()


def _peak_kib() -> int:
    status = Path("/proc/self/status")
    if not status.exists():
        return 0
    return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmHWM"))


if __name__ == "__main__":
    main()
