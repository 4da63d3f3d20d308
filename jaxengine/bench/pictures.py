"""What the pages of `jaxengine bench ... --html` show of each measurement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jaxengine.bench.serving import values_of
from jaxengine.bench.stream import Timing
from jaxengine.bench.workload import BenchRequest
from jaxengine.tools.charts import Bars, Lines, shares
from jaxengine.tools.page import Page, Section, Table

METRIC_NAMES = {
    "ttft": "Time to the first token",
    "tpot": "Time per token after the first",
    "itl": "Time between tokens",
    "e2el": "Time to the whole answer",
}
HIDDEN = ("errors", "shapes", "buckets", "starts")


def serve_page(
    rows: Sequence[Mapping[str, Any]],
    timings: Sequence[Sequence[Timing]],
    metrics: Sequence[str],
    facts: Mapping[str, Any],
) -> Page:
    """Latencies by what the server answers, and their distributions. `timings` are of the requests of each row."""
    sections = []
    for metric in metrics:
        named = [f"{name}_{metric}_ms" for name in ("median", "mean")]
        named += sorted({key for row in rows for key in row if key.startswith("p") and key.endswith(f"_{metric}_ms")})
        measured = [row for row in rows if named[0] in row]
        if not measured:
            continue
        parts: list[Any] = []
        if len(measured) > 1:
            lines = {
                name.removesuffix(f"_{metric}_ms"): [(row["request_throughput"], row[name]) for row in measured]
                for name in named
            }
            parts.append(Lines("By what the server answers", "requests/s answered", "ms", lines))
        values = {
            f"{row['request_rate']} requests/s": found
            for row, of_row in zip(rows, timings, strict=True)
            if (found := [1e3 * value for timing in of_row if not timing.error for value in values_of(timing, metric)])
        }
        parts.append(shares("Of all requests", "ms", values))
        parts.append(
            Table("", [{"rate": row["request_rate"]} | {name: row[name] for name in named} for row in measured])
        )
        sections.append(Section(METRIC_NAMES[metric], "", parts))
    speed = Bars(
        "Tokens a second",
        "tokens/s",
        {
            f"{row['request_rate']} requests/s": {
                "prompts": row["total_input_tokens"] / row["duration"],
                "output": row["total_output_tokens"] / row["duration"],
            }
            for row in rows
        },
    )
    return Page(
        "A server under load",
        "Requests were sent at given rates; times are those that their client saw.",
        [*sections, Section("Throughput", "", [speed, _figures(rows)])],
        facts,
    )


def throughput_page(figures: Mapping[str, Any], requests: Sequence[BenchRequest], facts: Mapping[str, Any]) -> Page:
    """Tokens a second, what they were computed with, and how long requests were."""
    prompts, outputs = ([getattr(request, name) for request in requests] for name in ("prompt_len", "output_len"))
    seconds = figures["elapsed_time"]
    real, places = figures["computed_tokens"], figures["token_places"]
    return Page(
        "Throughput",
        f"{len(requests)} requests, all there from the start, took {seconds:g} s.",
        [
            Section(
                "Tokens a second",
                "",
                [
                    Bars(
                        "", "tokens/s", {"all": {"prompts": sum(prompts) / seconds, "output": sum(outputs) / seconds}}
                    ),
                    Bars("Token places of all steps", "places", {"all": {"tokens": real, "padding": places - real}}),
                    _figures([figures]),
                ],
            ),
            Section(
                "Lengths",
                "What share of requests is at most so long.",
                [shares("", "tokens", {"prompts": prompts, "output": outputs})],
            ),
        ],
        facts,
    )


def account_page(steps: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]) -> Page:
    """Where the time of steps goes, beside what the machine allows."""
    parts = list(dict.fromkeys(name for step in steps for name in step if name.endswith(" ms")))
    rows = {
        f"{step['step']} of {step['batch_size']}": {name.removesuffix(" ms"): step.get(name, 0.0) for name in parts}
        for step in steps
    }
    limits = {f"{step['step']} of {step['batch_size']}": step["limit_ms"] for step in steps}
    sections = []
    for kind in dict.fromkeys(step["step"] for step in steps):
        mine = {name: row for name, row in rows.items() if name.startswith(kind)}
        chart = Bars(
            "By part, traced", "ms a step", mine, {name: limits[name] for name in mine}, "the least it can take"
        )
        sections.append(
            Section(kind.capitalize(), "A trace makes steps longer: step_ms was measured without one.", [chart])
        )
    return Page(
        "Where the time of a step goes",
        "Milliseconds by part, from a profiler's trace; the limit is this model's work by the speed measured.",
        [*sections, Section("Numbers", "", [Table("", steps, down=True)])],
        facts,
    )


def padding_page(grids: Sequence[Mapping[str, Any]], facts: Mapping[str, Any]) -> Page:
    """What shapes waste, by grid, and which shapes are taken."""
    named = {f"{grid['grid']} ({grid['programs']} shapes)": grid for grid in grids}
    places = {name: {"tokens": row["computed_tokens"], "padding": row["padded_places"]} for name, row in named.items()}
    seconds = {name: {"device": row["device_s"]} for name, row in named.items()}
    sections = [
        Section(
            "Grids",
            "Padded places cost nothing where a step is bound by reading the weights: device time is what counts.",
            [
                Bars("Device time", "s", seconds),
                Bars("Token places", "places", places),
                Table("", [_shown(grid) for grid in grids], down=True),
            ],
        )
    ]
    for name, grid in named.items():
        taken = [shape for shape in grid["shapes"] if shape["steps"]]
        chart = Bars(
            "Token places by shape",
            "places",
            {shape["shape"]: {"tokens": shape["tokens"], "padding": shape["padded_places"]} for shape in taken},
        )
        idle = len(grid["shapes"]) - len(taken)
        sections.append(Section(name, f"{idle} shapes were never taken." if idle else "", [chart, Table("", taken)]))
    return Page(
        "What shapes waste",
        "The traffic was replayed on each grid, with the engine's own scheduler and the least time that the device allows.",
        sections,
        facts,
    )


def startup_page(figures: Mapping[str, Any], facts: Mapping[str, Any]) -> Page:
    """Seconds to the first token of each start, by phase."""
    starts = {
        f"{kind} {number}": start for kind, every in figures["starts"].items() for number, start in enumerate(every, 1)
    }
    phases = {
        name: {
            "python": start["python_s"],
            "imports": start["imports_s"],
            **start["phases_s"],
            "between them": max(
                0.0, start["ready_s"] - start["python_s"] - start["imports_s"] - sum(start["phases_s"].values())
            ),
            "first token": max(0.0, start["first_token_s"] - start["ready_s"]),
        }
        for name, start in starts.items()
    }
    programs = {name: start["programs"] for name, start in starts.items()}
    numbers = [{"start": name, "first token s": starts[name]["first_token_s"], **phases[name]} for name in starts]
    return Page(
        "Starts of an engine",
        "Each in a process of its own, to its first token: cold with nothing kept, warm with programs that another kept.",
        [
            Section(
                "Phases",
                "",
                [
                    Bars("Seconds", "s", phases),
                    Bars("Where programs came from", "programs", programs),
                    Table("", numbers, down=True),
                ],
            ),
            Section("All figures", "", [_figures([figures])]),
        ],
        facts,
    )


def _figures(rows: Sequence[Mapping[str, Any]]) -> Table:
    return Table("", [_shown(row) for row in rows], down=True)


def _shown(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in HIDDEN}
