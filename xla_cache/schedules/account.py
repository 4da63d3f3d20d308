"""What a program takes by the final schedules of its instructions, one after the other as XLA put them.

Each instruction's schedule is run (`scalars.py`): its bundles and its waiting for its own copies. No product takes
less than the published peak allows, which on v5e its bundles alone would. What XLA copies beside them, weights into VMEM for
one, has what bandwidth an instruction leaves, in the order in which it was started, and is waited for where the program waits.
So has what a kernel starts to read and gives semaphores for, on which the kernel waits that takes these; here before it begins.

Assumed: instructions follow each other without a gap, and nothing of one hides behind the next; a copy moves at the published
bandwidth whatever its size and direction; loops around instructions are passed once. What devices send each other takes what
`sending` says of it (`sent.py`): what is started hides behind what is computed until it is waited for, all else behind nothing
but the bundles of its own kernel, which count as `between devices`. The cycles of a program are without what it waits for that.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from xla_cache.schedules.instructions import COMPUTATION, LINE, OPERAND, SHAPE, entry, sizes_of
from xla_cache.schedules.scalars import Passed, Program, run
from xla_cache.schedules.sent import Collectives, Links, Sending

FILE = re.compile(r"\d+-(.+)-\d+-final_bundles\.txt")
PASSES = "final_bundles|deduplication-map"
"""What of the compiler's dump is read."""
NOTHING = {"parameter", "constant", "bitcast", "tuple", "get-tuple-element", "after-all", "partition-id"}
"""No code of its own."""
SEMAPHORE = "S(2)"
"""In the shape of what has some."""
AROUND = "TLP"
"""The name of the schedule of what starts instructions and copies, one after the other."""

Operands = Callable[[str, int, Sequence[tuple[int, ...]]], Mapping[int, Sequence[int]]]
"""The scalars that a kernel reads: of this name, with so many of that name before it, from the shapes of its operands."""


def read(folder: Path) -> dict[str, str]:
    """The text of every instruction's schedule: one of those that XLA found equal stands for all."""
    texts = {match[1]: path.read_text() for path in folder.iterdir() if (match := FILE.fullmatch(path.name))}
    for path in folder.glob("*deduplication-map.txt"):
        for group in path.read_text().split("key:")[1:]:
            names = group.split()
            key, equal = names[0], names[names.index(next(n for n in names if n.startswith("equivalent"))) + 1 :]
            texts.update({name: texts[key] for name in equal if key in texts})
    return texts


def account(
    hlo: str,
    texts: Mapping[str, str],
    *,
    bytes_per_cycle: float,
    flops_per_cycle: float,
    operands: Operands,
    sending: Sending = lambda collective: None,
) -> dict[str, Any]:
    """Cycles of a program by kind, the waiting for copies, and what has no figure. `hlo` is the compiled program's text."""
    computations = dict(COMPUTATION.findall(hlo))
    cycles: defaultdict[str, float] = defaultdict(float)
    details: dict[str, tuple[str, Passed]] = {}
    unread, kernels = Counter[str](), Counter[str]()
    copies, links, collectives = _Copies(bytes_per_cycle), Links(sending), Collectives(hlo, computations)
    passes: dict[tuple[str, str], Passed] = {}
    left_by: dict[str, str] = {}
    """The kernel that gave each semaphore of copies that it left under way."""

    def let_pass(taken: float, own_bytes: int = 0) -> None:
        copies.let_pass(taken, own_bytes)
        links.let_pass(taken)

    def wait_for_copy(name: str) -> None:
        waited = copies.wait(name)
        links.let_pass(waited)
        cycles["waiting for copies"] += waited

    if around := texts.get(AROUND):
        cycles["between instructions"] = len(Program.parse(around).bundles)
    for instruction in entry(hlo):
        name, opcode = instruction.name, instruction.opcode
        if opcode in NOTHING:
            if SEMAPHORE in instruction.shape and (source := instruction.first_operand) in left_by:
                left_by[name] = left_by[source]
            continue
        sent = collectives.of(instruction)
        if opcode.endswith("-start"):
            if sent:
                links.start(name, sent)
            else:
                copies.start(name, instruction.hbm_bytes())
        elif opcode.endswith("-done"):
            wait_for_copy(instruction.first_operand)
            copies.let_pass(links.wait(instruction.first_operand), 0)
        elif text := texts.get(name):
            given: Mapping[int, Sequence[int]] = {}
            if "tpu_custom_call" in instruction.rest:
                layouts = re.search(r"operand_layout_constraints=\{(.*?\})\}", instruction.rest)
                shapes = [sizes_of(sizes) for _, sizes, _ in SHAPE.findall(layouts[1] if layouts else "")]
                kernel = name.rpartition(".")[0] or name
                given = operands(kernel, kernels[kernel], shapes)
                kernels[kernel] += 1
            schedule = (text, repr(given))
            if schedule not in passes:  # layers have the same
                passes[schedule] = run(Program.parse(text), bytes_per_cycle=bytes_per_cycle, operands=given)
            passed = passes[schedule]
            for operand in instruction.operands:
                if operand in left_by:
                    wait_for_copy(left_by[operand])
            if SEMAPHORE in instruction.shape and passed.cycles > passed.ended:
                copies.start(name, passed.read_bytes)
                left_by[name] = name
                passed = replace(passed, cycles=passed.ended, read_bytes=0)
            within = computations.get(instruction.calls, "")
            passed = replace(passed, cycles=max(passed.cycles, operations(within) / flops_per_cycle))
            kind = "between devices" if sent else instruction.kind
            cycles[kind] += passed.cycles
            let_pass(passed.cycles, passed.read_bytes + passed.written_bytes)
            if sent:
                copies.let_pass(links.within(sent, passed.cycles), 0)
            details[name] = (kind, passed)
        elif sent:
            copies.let_pass(links.within(sent, 0.0), 0)
        elif "ConcatBitcast" not in instruction.rest:
            unread[opcode] += 1
    cycles["waiting for copies"] += copies.wait_for_all()
    moved = copies.bytes + sum(passed.read_bytes + passed.written_bytes for _, passed in details.values())
    return {
        "cycles": sum(cycles.values()),
        "by_kind": dict(cycles),
        "moved_bytes": moved,
        "unknown_branches": {name: passed.unknown for name, (_, passed) in details.items() if passed.unknown},
        "without_schedule": dict(unread),
        "sent": links.described(),
        "instructions": {name: _described(*detail) for name, detail in details.items()},
    }


def _described(kind: str, passed: Passed) -> dict[str, Any]:
    moved = passed.read_bytes + passed.written_bytes
    return {"kind": kind, "cycles": round(passed.cycles), "bundles": passed.bundles, "bytes": moved}


def operations(computation: str) -> int:
    """Of its products, in floating point: 2 M K N, where both operands together have M K^2 N numbers for M N results."""
    found = [match.groups() for line in computation.splitlines() if (match := LINE.match(line))]
    shapes = {name: SHAPE.search(shape) for name, shape, _, _ in found}
    total = 0
    for name, _, opcode, rest in found:
        if opcode not in ("dot", "convolution"):
            continue
        results, left, right = (shapes[of] for of in (name, *OPERAND.findall(rest)[:2]))
        if results and left and right and "s8" not in (left[1], right[1]):
            count = math.prod(sizes_of(results[2]))
            total += 2 * count * math.isqrt(math.prod(sizes_of(left[2])) * math.prod(sizes_of(right[2])) // count)
    return total


class _Copies:
    """Copies beside a program, first come first served, with the bandwidth that its instructions leave."""

    def __init__(self, bytes_per_cycle: float) -> None:
        self.rate, self.bytes = bytes_per_cycle, 0
        self.pending: dict[str, float] = {}

    def start(self, name: str, count: int) -> None:
        self.bytes += count
        self.pending[name] = count / self.rate

    def let_pass(self, cycles: float, own_bytes: int) -> None:
        left = max(0.0, cycles - own_bytes / self.rate)
        for name in list(self.pending):
            done = min(left, self.pending[name])
            left -= done
            self.pending[name] -= done

    def wait(self, name: str) -> float:
        """Cycles until a copy, and with it all that was started before, is through."""
        waited = 0.0
        while name in self.pending:
            first = next(iter(self.pending))
            waited += self.pending.pop(first)
        return waited

    def wait_for_all(self) -> float:
        return self.wait(next(reversed(self.pending))) if self.pending else 0.0
