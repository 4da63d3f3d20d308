"""What the TPU compiler says of a kernel: its final schedule, bundle by bundle, read from the compiler's dump.

A bundle is one instruction of all units, issued in one cycle. Counting them is a static estimate: it leaves out waiting for
copies, conflicts in memory and everything else that only running shows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

DELAY_SLOTS = 4
"""Bundles behind a branch, passed whether it is taken or not."""
GRANULE_BYTES = 32
"""What copies are counted in."""
LINE = re.compile(r"\s*(0x[0-9a-f]+|0)\s+(\w\w)?\s*:\s*([> ]*)\{(.*)")


def dump_flags(folder: Path, passes: str = "") -> str:
    """The value of LIBTPU_INIT_ARGS, to be set before libtpu is loaded, that makes the compiler write into `folder`.

    With `passes`, a regular expression, only what comes out of those: all of a program's are gigabytes.
    """
    flags = f"--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true --xla_jf_emit_annotations=true"
    return f"{flags} --xla_jf_dump_llo_pass_label_regex={passes}" if passes else flags


@dataclass
class Loop:
    """A loop of the schedule: bundles `start` to `end` (not included), those of the loops inside among them."""

    start: int
    end: int
    depth: int
    inner: list[Loop] = field(default_factory=list)

    def walk(self) -> Iterator[Loop]:
        yield self
        for loop in self.inner:
            yield from loop.walk()


@dataclass(frozen=True)
class Schedule:
    """The bundles of one kernel. `units` maps a unit to how many of it there are, `used` holds a row per bundle."""

    text: list[str]
    depths: list[int]
    root: Loop
    units: dict[str, int]
    used: list[list[int]]

    def work(self, start: int, end: int) -> dict[str, int]:
        """How many instructions each unit has in a range of bundles."""
        return {unit: sum(row[at] for row in self.used[start:end]) for at, unit in enumerate(self.units)}

    def busy(self, start: int, end: int) -> dict[str, float]:
        """The same as shares of what each unit could do in that many bundles."""
        return {unit: count / (self.units[unit] * (end - start)) for unit, count in self.work(start, end).items()}

    def contains(self, start: int, end: int, words: str) -> bool:
        return any(words in line for line in self.text[start:end])

    def straight(self, loop: Loop) -> list[tuple[int, int]]:
        """The ranges of a loop's own bundles, cut where a branch or an inner loop is."""
        ranges, start = [], loop.start
        for inner in [*loop.inner, Loop(loop.end, loop.end, loop.depth)]:
            for at in range(start, inner.start):
                if "sbr.rel" in self.text[at]:
                    ranges.append((start, at + 1))
                    start = at + 1
            ranges.append((start, inner.start))
            start = inner.end
        return [(start, end) for start, end in ranges if end > start]


def read(folder: Path, kernel: str) -> Schedule:
    """The schedule of the latest kernel of that name in a dump."""
    bundles = max(
        (path for path in folder.glob(f"*{kernel}*final_bundles.txt") if "schedule-analysis" not in path.name),
        key=lambda path: path.stat().st_mtime_ns,
    )
    utilization = max(
        folder.glob(f"*{kernel}*final_hlo-static-per-bundle-utilization.txt"), key=lambda p: p.stat().st_mtime_ns
    )
    text: list[str] = []
    depths: list[int] = []
    labels: list[str | None] = []
    for line in bundles.read_text().splitlines():
        match = LINE.match(line)
        if match:
            empty = match[4].startswith("}")  # a branch's delay: printed without the loop that it is in
            text.append(match[4])
            labels.append(match[2])
            depths.append(depths[-1] if empty and depths else match[3].count(">"))
    _within(depths, labels)
    lines = utilization.read_text().splitlines()
    units = dict(zip((unit.strip() for unit in lines[1].split(",")), map(int, lines[2].split()), strict=True))
    used = [list(map(int, line.split())) for line in lines[4:] if line.strip()]
    if len(used) != len(text):
        raise ValueError(f"{bundles.name} has {len(text)} bundles, its utilization {len(used)}")
    return Schedule(text, depths, _nest(depths, labels), units, used)


def _within(depths: list[int], labels: list[str | None]) -> None:
    """Give bundles that have nothing of the loop around them its depth: a loop is entered at its label only."""
    for at in range(1, len(depths)):
        if depths[at] > depths[at - 1] and labels[at] != "LB":
            before = at - 1
            while depths[before] < depths[at] and labels[before] != "LB":
                depths[before] = depths[at]
                before -= 1


def _nest(depths: list[int], labels: list[str | None]) -> Loop:
    root = Loop(0, len(depths), 0)
    around = [root]
    for at, (depth, label) in enumerate(zip(depths, labels, strict=True)):
        while around[-1].depth > depth or (label == "LB" and around[-1].depth >= depth):
            around.pop().end = at
        if label == "LB":
            loop = Loop(at, len(depths), depth)
            around[-1].inner.append(loop)
            around.append(loop)
    return root
