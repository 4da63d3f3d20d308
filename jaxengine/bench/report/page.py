"""A report as a page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxengine.bench.report.run import counts
from jaxengine.tools.charts import Bars
from jaxengine.tools.page import Page, Section, Table

GOOD = ("agrees", "refused")


def report_page(report: Mapping[str, Any]) -> Page:
    """The page of a report; parts that were left out have no section."""
    sections = [make(report[part]) for part, make in SECTIONS.items() if report.get(part)]
    devices = report.get("devices") or {}
    title = f"jaxengine on {devices.get('num_devices', '?')} x {devices.get('device', 'an unknown device')}"
    facts = {**devices, **{name: value for name, value in report.items() if name.endswith("_s") or name == "quick"}}
    return Page(title, "Made by jaxengine report. It holds no paths, names or texts.", sections, facts)


def _kernels(rows: Any) -> Section:
    bad = [row for row in rows if row["outcome"] not in GOOD]
    reasons = [
        {name: row.get(name) for name in ("op", "backend", "case", "outcome", "off", "reason", "crash")} for row in bad
    ]
    tried = [{"backend": name, **found} for name, found in counts(rows).items()]
    return Section(
        "Kernels",
        "Each backend of this platform on the cases of the conformance suite, against the definitions on the CPU.",
        [
            Bars("", "cases", counts(rows)),
            Table("", tried),
            *([Table("Those that do not agree", reasons)] if bad else []),
        ],
    )


def _parity(found: Any) -> Section:
    return Section(
        "Answers", "The embedded model in float32, against what it answers on a CPU.", [Table("", [found], down=True)]
    )


def _speed(rows: Any) -> Section:
    measured = [row for row in rows if "step_ms" in row]
    named = {f"{row['model']}: {row['step']} of {row['batch_size']}": row for row in measured}
    chart = Bars(
        "A step",
        "ms",
        {name: {"step": row["step_ms"]} for name, row in named.items()},
        {name: row["limit_ms"] for name, row in named.items()},
        "the least it can take, by the speed measured",
    )
    return Section("Speed", "", [*([chart] if measured else []), Table("", rows, down=True)])


def _starts(found: Any) -> Section:
    if "starts" not in found:
        return Section("Starts", str(found.get("error", "")), [])
    seconds = {
        f"{kind} {number}": {"first token": start["first_token_s"]}
        for kind, every in found["starts"].items()
        for number, start in enumerate(every, 1)
    }
    figures = {name: value for name, value in found.items() if name != "starts"}
    return Section("Starts", "Seconds to the first token.", [Bars("", "s", seconds), Table("", [figures], down=True)])


SECTIONS = {"kernels": _kernels, "parity": _parity, "speed": _speed, "starts": _starts}
