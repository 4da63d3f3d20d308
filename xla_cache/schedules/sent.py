"""What the devices of a program send each other: its collectives, how many bytes they are about, and what hides their time."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from xla_cache.schedules.instructions import LINE, SHAPE, Instruction, size_of

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
LISTED = re.compile(r"replica_groups=\{\{([\d,]+)\}")
COUNTED = re.compile(r"replica_groups=\[\d+,(\d+)\]<=")
PAIRS = re.compile(r"source_target_pairs=\{((?:\{\d+,\d+\},?)*)\}")
PARTITIONS = re.compile(r"num_partitions=(\d+)")
SCATTERED = "all-reduce-scatter"
"""The name of a computation that XLA:TPU makes a reduce-scatter of: a sum, of which each device takes its part."""


@dataclass(frozen=True)
class Collective:
    """`bytes` are those of the whole array: of what is summed, of what is gathered or scattered, or of what a device sends on.

    Of a permutation `pairs` are the devices that send and those that receive.
    """

    kind: str
    bytes: int
    devices: int
    pairs: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Passage:
    """The least cycles that a collective takes by the links between devices, and which of those it takes; None: all of them."""

    cycles: float
    links: frozenset[tuple[int, int]] | None = None

    def meets(self, other: Passage) -> bool:
        """Whether one has to wait for the other."""
        return self.links is None or other.links is None or not self.links.isdisjoint(other.links)


Sending = Callable[[Collective], Passage | None]
"""What one takes; None where nothing is published of the links."""


class Collectives:
    """Those of a program, by the instruction that is or that starts one."""

    def __init__(self, hlo: str, computations: Mapping[str, str]) -> None:
        found = PARTITIONS.search(hlo.partition("\n")[0])
        self.all = int(found[1]) if found else 1
        self.computations = computations

    def of(self, instruction: Instruction) -> list[Collective]:
        """What an instruction sends: itself, or what the computation has that it calls."""
        own = self._one(instruction)
        if own is not None:
            return [own]
        called = instruction.calls
        lines = map(LINE.match, self.computations.get(called, "").splitlines())
        inside = [self._one(Instruction(line[1], line[3], line[2], line[4])) for line in lines if line]
        scattered = called.startswith(SCATTERED)
        return [
            Collective("reduce-scatter" if scattered else one.kind, one.bytes, one.devices) for one in inside if one
        ]

    def _one(self, instruction: Instruction) -> Collective | None:
        kind = instruction.opcode.removesuffix("-start")
        if kind not in KINDS:
            return None
        groups = LISTED.search(instruction.rest)
        counted = COUNTED.search(instruction.rest)
        devices = len(groups[1].split(",")) if groups else int(counted[1]) if counted else self.all
        sizes = [size_of(dtype, sizes) for dtype, sizes, _ in SHAPE.findall(instruction.shape)]
        if instruction.opcode.endswith("-start"):  # operand and result, and flags
            size = max(sizes)
        else:
            size = sum(sizes)
            size *= devices if kind == "reduce-scatter" else 1
        listed = PAIRS.search(instruction.rest)
        pairs = re.findall(r"\{(\d+),(\d+)\}", listed[1]) if listed else []
        return Collective(kind, size, devices, tuple((int(source), int(target)) for source, target in pairs))


class Links:
    """The time that sending takes. What is started has its links until it is through, in the order in which it was started."""

    def __init__(self, sending: Sending) -> None:
        self.sending = sending
        self.pending: dict[str, list[Passage]] = {}
        self.counts: Counter[tuple[Collective, bool]] = Counter()
        self.hidden = self.waited = 0.0
        self.unknown = False

    def start(self, name: str, collectives: list[Collective]) -> None:
        self.pending[name] = self._take(collectives, asynchronous=True)

    def within(self, collectives: list[Collective], own_cycles: float) -> float:
        """Cycles that a kernel which sends these waits, beyond its own."""
        taken = math.fsum(passage.cycles for passage in self._take(collectives, asynchronous=False))
        while moving := self._moving():
            taken += self._pass(moving)
        waited = max(0.0, taken - own_cycles)
        self.hidden += taken - waited
        self.waited += waited
        return waited

    def let_pass(self, cycles: float) -> None:
        """Something else is computed meanwhile."""
        while cycles > 0 and (moving := self._moving()):
            passed = self._pass(moving, cycles)
            cycles -= passed
            self.hidden += passed

    def wait(self, name: str) -> float:
        """Cycles until what was started under that name is through."""
        waited = 0.0
        while self.pending.get(name):
            waited += self._pass(self._moving())
        self.pending.pop(name, None)
        self.waited += waited
        return waited

    def described(self) -> dict[str, Any]:
        """All that was sent, the cycles in which something was, and those of them that are `hidden` behind computing.

        None: a link's rate is unknown.
        """
        kinds = [
            {"kind": one.kind, "bytes": one.bytes, "devices": one.devices, "asynchronous": started, "count": count}
            for (one, started), count in sorted(
                self.counts.items(), key=lambda item: (item[0][0].kind, item[0][0].bytes)
            )
        ]
        figures = {"cycles": self.hidden + self.waited, "hidden": self.hidden}
        return {"collectives": kinds, **(dict.fromkeys(figures) if self.unknown else figures)}

    def _take(self, collectives: list[Collective], *, asynchronous: bool) -> list[Passage]:
        taken = []
        for one in collectives:
            passage = self.sending(one)
            self.unknown |= passage is None
            self.counts[replace(one, pairs=()), asynchronous] += 1
            taken.append(passage or Passage(0.0))
        return taken

    def _moving(self) -> list[tuple[str, int]]:
        """What has its links, by name and place: nothing that was started before needs one of them."""
        before: list[Passage] = []
        found = []
        for name, passages in self.pending.items():
            for at, passage in enumerate(passages):
                if not any(passage.meets(other) for other in before):
                    found.append((name, at))
                before.append(passage)
        return found

    def _pass(self, moving: list[tuple[str, int]], most: float = math.inf) -> float:
        """Let time pass until one of those is through, or `most` cycles; how many did."""
        passed = min(most, *(self.pending[name][at].cycles for name, at in moving))
        for name, at in reversed(moving):
            passage = self.pending[name][at]
            if passage.cycles <= passed:
                del self.pending[name][at]
            else:
                self.pending[name][at] = Passage(passage.cycles - passed, passage.links)
        return passed
