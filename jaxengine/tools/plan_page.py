"""`jaxengine plan --html`: memory, and the programs by what they need and take."""

from __future__ import annotations

import dataclasses
from typing import Any

from jaxengine import __version__
from jaxengine.tools.charts import Bars, Lines
from jaxengine.tools.page import Page, Section, Table
from jaxengine.tools.plan_report import GIB, EnginePlan, lines


def plan_page(plan: EnginePlan) -> Page:
    """The plan as a page."""
    sections = [Section("Memory of a device", "" if plan.problem is None else plan.problem, [_memory(plan)])]
    if plan.programs:
        sections.append(
            Section(
                "Steps",
                "No step is faster than reading the weights once, or multiplying with all places, by the chip's figures.",
                [*_times(plan), Table("Programs", [_row(row) for row in plan.programs])],
            )
        )
    facts = dataclasses.asdict(plan) | {
        "programs": len(plan.programs),
        "pools": len(plan.pools),
        "jaxengine": __version__,
    }
    return Page(
        f"{plan.model} on {plan.target}",
        " ".join(line for line in lines(plan) if line.startswith("fits:")),
        sections,
        facts,
    )


def _memory(plan: EnginePlan) -> Bars:
    parts = {"weights": plan.weight_bytes, "adapters": plan.adapter_bytes}
    parts |= {"state of sequences": plan.slot_bytes, "workspace": plan.workspace_bytes}
    parts |= {"embeddings of pictures and sounds": plan.embedding_bytes}
    parts |= {"copies of states": plan.all_snapshot_bytes} if plan.num_snapshots else {}
    parts |= {"KV pages": plan.kv_bytes} if plan.fits else {}
    rows = {plan.device: {name: count / GIB for name, count in parts.items() if count}}
    return Bars("", "GiB", rows, {plan.device: plan.device_bytes / GIB}, "all memory of the device")


def _times(plan: EnginePlan) -> list[Any]:
    kinds: dict[str, list[tuple[float, float]]] = {}
    for row in plan.programs:
        if row.seconds is not None:
            kinds.setdefault(row.name.split()[0], []).append((row.tokens, 1e3 * row.seconds))
    return [Lines("The least that a step takes", "token places", "ms", kinds)] if kinds else []


def _row(row: Any) -> dict[str, Any]:
    return {
        "program": row.name,
        "rows": row.rows,
        "seq": row.seq,
        "tokens": row.tokens,
        "at least ms": None if row.seconds is None else 1e3 * row.seconds,
        "limited by": row.limited_by,
        "temp MB": None if row.temp_bytes is None else row.temp_bytes / 1e6,
        "code MB": None if row.code_bytes is None else row.code_bytes / 1e6,
        "compile s": row.compile_s,
        "compiled": "yes" if row.measured else "",
    }
