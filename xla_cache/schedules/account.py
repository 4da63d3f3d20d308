"""What a program takes by the final schedules of its instructions, one after the other as XLA put them.

Each instruction's schedule is run (`scalars.py`): its bundles and its waiting for its own copies. No product takes
less than the published peak allows, which on v5e its bundles alone would. What XLA copies beside them, weights into VMEM for
one, has what bandwidth an instruction leaves, in the order in which it was started, and is waited for where the program waits.

Assumed: instructions follow each other without a gap, and nothing of one hides behind the next; a copy moves at the published
bandwidth whatever its size and direction; loops around instructions are passed once. What devices send each other has no
schedule that could be run: it is listed, and of kernels that send only their own bundles count, as `between devices`.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from xla_cache.schedules.scalars import Passed, Program, run

LINE = re.compile(r"^\s+(?:ROOT )?%([\w.\-]+) = (.*?) ([a-z][\w\-]*)\((.*)$")
SHAPE = re.compile(r"\b([a-z]+\d*)(?:e\dm\d\w*)?\[([\d,]*)\](?:\{([^}]*)\})?")
NAME = re.compile(r'op_name="([^"]*)"')
CALLS = re.compile(r"calls=%([\w.\-]+)")
COMPUTATION = re.compile(r"^%([\w.\-]+) \(.*?\{$(.*?)^\}", re.M | re.S)
OPERAND = re.compile(r"%([\w.\-]+)")
FILE = re.compile(r"\d+-(.+)-\d+-final_bundles\.txt")
OTHER_MEMORY = re.compile(r"S\([1-9]")
PASSES = "final_bundles|deduplication-map"
"""What of the compiler's dump is read."""
NOTHING = {"parameter", "constant", "bitcast", "tuple", "get-tuple-element", "after-all", "partition-id"}
"""No code of its own."""
AROUND = "TLP"
"""The name of the schedule of what starts instructions and copies, one after the other."""
SENT = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "send", "recv")
KINDS: tuple[tuple[str, str], ...] = (
    ("attention", r"op:(paged|row)_attention/.*pallas_call"),
    ("cache writes", r"op:write_kv"),
    ("rotation", r"op:rotate(?!.*layout_constraint)"),
    ("products", r"dot_general|op:matmul"),
    ("norms", r"op:inverse_root|op:mean_last|^[^)]*rsqrt"),
    ("moves", r"(transpose|reshape|layout_constraint|copy)$"),
)
"""By an instruction's operands and by what XLA says where it comes from; the first that fits."""

Operands = Callable[[str, Sequence[tuple[int, ...]]], Mapping[int, Sequence[int]]]
"""The scalars that a kernel of this name reads, from the shapes of its operands."""


@dataclass(frozen=True)
class Instruction:
    name: str
    opcode: str
    shape: str
    rest: str

    @property
    def calls(self) -> str:
        """The computation that a fusion is of."""
        found = CALLS.search(self.rest)
        return found[1] if found else ""

    @property
    def kind(self) -> str:
        found = NAME.search(self.rest)
        described = f"{self.rest.partition(')')[0]}) {found[1] if found else ''}"
        kind = next((kind for kind, pattern in KINDS if re.search(pattern, described)), None)
        return kind or ("moves" if self.opcode in ("copy", "transpose", "reshape", "slice") else "rest")

    @property
    def first_operand(self) -> str:
        found = OPERAND.search(self.rest)
        return found[1] if found else ""

    def hbm_bytes(self) -> int:
        """What a copy beside the program moves from HBM or to it."""
        shapes = SHAPE.findall(self.shape)[:2]
        moved = min(_bytes(dtype, sizes) for dtype, sizes, _ in shapes)
        return moved * sum(not OTHER_MEMORY.search(layout) for _, _, layout in shapes)


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
    hlo: str, texts: Mapping[str, str], *, bytes_per_cycle: float, flops_per_cycle: float, operands: Operands
) -> dict[str, Any]:
    """Cycles of a program by kind, the waiting for copies, and what has no figure. `hlo` is the compiled program's text."""
    computations = dict(COMPUTATION.findall(hlo))
    cycles: defaultdict[str, float] = defaultdict(float)
    details: dict[str, tuple[str, Passed]] = {}
    unread, sent = Counter[str](), Counter[str]()
    copies = _Copies(bytes_per_cycle)
    passes: dict[tuple[str, str], Passed] = {}
    if around := texts.get(AROUND):
        cycles["between instructions"] = len(Program.parse(around).bundles)
    for instruction in entry(hlo):
        name, opcode = instruction.name, instruction.opcode
        if opcode in NOTHING:
            continue
        if opcode.startswith(SENT):
            sent[opcode] += 1
        elif opcode.endswith("-start"):
            copies.start(name, instruction.hbm_bytes())
        elif opcode.endswith("-done"):
            cycles["waiting for copies"] += copies.wait(instruction.first_operand)
        elif text := texts.get(name):
            given: Mapping[int, Sequence[int]] = {}
            if "tpu_custom_call" in instruction.rest:
                layouts = re.search(r"operand_layout_constraints=\{(.*?\})\}", instruction.rest)
                shapes = [_sizes(sizes) for _, sizes, _ in SHAPE.findall(layouts[1] if layouts else "")]
                given = operands(name.rpartition(".")[0] or name, shapes)
            schedule = (text, repr(given))
            if schedule not in passes:  # layers have the same
                passes[schedule] = run(Program.parse(text), bytes_per_cycle=bytes_per_cycle, operands=given)
            passed = passes[schedule]
            within = computations.get(instruction.calls, "")
            passed = replace(passed, cycles=max(passed.cycles, operations(within) / flops_per_cycle))
            kind = "between devices" if any(f" {opcode}(" in within for opcode in SENT) else instruction.kind
            cycles[kind] += passed.cycles
            copies.let_pass(passed.cycles, passed.read_bytes + passed.written_bytes)
            details[name] = (kind, passed)
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
        "sent": dict(sent),
        "instructions": {name: _described(*detail) for name, detail in details.items()},
    }


def _described(kind: str, passed: Passed) -> dict[str, Any]:
    moved = passed.read_bytes + passed.written_bytes
    return {"kind": kind, "cycles": round(passed.cycles), "bundles": passed.bundles, "bytes": moved}


def entry(hlo: str) -> list[Instruction]:
    """The instructions of the entry computation, in their order."""
    lines = hlo.partition("\nENTRY ")[2].partition("\n}")[0].splitlines()
    return [Instruction(match[1], match[3], match[2], match[4]) for line in lines if (match := LINE.match(line))]


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
            count = math.prod(_sizes(results[2]))
            total += 2 * count * math.isqrt(math.prod(_sizes(left[2])) * math.prod(_sizes(right[2])) // count)
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


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(map(int, filter(None, text.split(","))))


def _bytes(dtype: str, sizes: str) -> int:
    bits = 8 if dtype == "pred" else int(re.sub(r"\D", "", dtype) or 32)
    return math.prod(_sizes(sizes)) * bits // 8
