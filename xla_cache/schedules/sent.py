"""What the devices of a program send each other: its collectives, how many bytes they are about, and what hides their time."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from xla_cache.schedules.instructions import LINE, SHAPE, Instruction, size_of

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
LISTED = re.compile(r"replica_groups=\{\{([\d,]+)\}")
COUNTED = re.compile(r"replica_groups=\[\d+,(\d+)\]<=")
PARTITIONS = re.compile(r"num_partitions=(\d+)")
SCATTERED = "all-reduce-scatter"
"""The name of a computation that XLA:TPU makes a reduce-scatter of: a sum, of which each device takes its part."""


@dataclass(frozen=True)
class Collective:
    """`bytes` are those of the whole array: of what is summed, of what is gathered or scattered, or of what a device sends on."""

    kind: str
    bytes: int
    devices: int


Sending = Callable[[Collective], float | None]
"""The least cycles that one takes by the links between devices; None where nothing is published of them."""


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
        return Collective(kind, size, devices)


class Links:
    """The time that sending takes, one collective after the other. What is started has the links until it is waited for."""

    def __init__(self, sending: Sending) -> None:
        self.sending = sending
        self.pending: dict[str, float] = {}
        self.counts: Counter[tuple[Collective, bool]] = Counter()
        self.total = self.waited = 0.0
        self.unknown = False

    def take(self, collectives: list[Collective], *, asynchronous: bool) -> float:
        """Cycles of these."""
        taken = 0.0
        for one in collectives:
            cycles = self.sending(one)
            self.unknown |= cycles is None
            self.counts[one, asynchronous] += 1
            taken += cycles or 0.0
        self.total += taken
        return taken

    def start(self, name: str, collectives: list[Collective]) -> None:
        self.pending[name] = self.take(collectives, asynchronous=True)

    def within(self, collectives: list[Collective], own_cycles: float) -> float:
        """Cycles that a kernel which sends these waits, beyond its own."""
        waited = max(0.0, self.take(collectives, asynchronous=False) + self._left() - own_cycles)
        self.pending = dict.fromkeys(self.pending, 0.0)
        self.waited += waited
        return waited

    def let_pass(self, cycles: float) -> None:
        """Something else is computed meanwhile."""
        for name in self.pending:
            done = min(cycles, self.pending[name])
            cycles -= done
            self.pending[name] -= done

    def wait(self, name: str) -> float:
        """Cycles until what was started under that name, and all before it, is through."""
        waited = 0.0
        while name in self.pending:
            waited += self.pending.pop(next(iter(self.pending)))
        self.waited += waited
        return waited

    def described(self) -> dict[str, Any]:
        """All that was sent, and the cycles of it, of which `hidden` behind computing; None where a link's rate is unknown."""
        kinds = [
            {"kind": one.kind, "bytes": one.bytes, "devices": one.devices, "asynchronous": started, "count": count}
            for (one, started), count in sorted(
                self.counts.items(), key=lambda item: (item[0][0].kind, item[0][0].bytes)
            )
        ]
        figures = {"cycles": self.total, "hidden": self.total - self.waited}
        return {"collectives": kinds, **(dict.fromkeys(figures) if self.unknown else figures)}

    def _left(self) -> float:
        return math.fsum(self.pending.values())
