"""The scalar half of a final schedule, run: which bundles are passed how often, and what is copied from and to HBM meanwhile.

Loops, branches and the sizes of copies depend on scalars alone, in XLA's fusions on constants. Kernels of Pallas read theirs from
operands, which are given. A bundle takes a cycle; a copy takes its bytes at the bandwidth that is given and begins when the ones
before it are through; where the schedule waits for one it waits here. A branch on what is not known is not taken, so that a loop
is passed once. Not in it: how long a copy of few bytes takes to arrive, and conflicts in memory.
"""

from __future__ import annotations

import operator
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from xla_cache.schedules.bundles import DELAY_SLOTS, GRANULE_BYTES

BUNDLE = re.compile(r"^ *(?:0x[0-9a-f]+|0) +(?:\w\w)? *: *[> ]*(?=\{)", re.M)
GENERAL = re.compile(r"dma\.general( [^;{}]*?/\* (\w+)-to-(\w+) \*/)")
"""A copy with strides, which says only in a comment from where to where it goes."""
COMMENT = re.compile(r"/\*.*?\*/", re.S)
NOTE = re.compile(r"\[(?:thread|resolvable):\$\w+\]")
STARTED = re.compile(r"Start(?:/End empty)? region (\d+)")
INSTRUCTION = re.compile(r"%(\w+) = ([a-z][\w.]*(?:<no memory space>)?) ?(.*)", re.S)
PREDICATED = re.compile(r"\((!?)%(\w+)\),? *")
APART = 1 << 40
"""From one allocation to the next: no offset leads into another."""
MOST_BUNDLES = 100_000_000

Scalar = int | None
"""None where it is not known."""


@dataclass(frozen=True)
class Passed:
    """What a schedule came to. `cycles` are its bundles and the waiting for its copies; `unknown` counts branches, and copies.

    `ended`: when it was through itself, whatever of its copies was still under way.
    """

    bundles: int
    cycles: float
    ended: float
    read_bytes: int
    written_bytes: int
    unknown: int


@dataclass(frozen=True)
class Instruction:
    """Of the scalar units, a copy, or of a flag. It happens where scalar `when` is `expected`, or always."""

    target: str
    opcode: str
    operands: tuple[str, ...]
    when: str | None = None
    expected: bool = True


@dataclass(frozen=True)
class Program:
    """The scalar instructions of each bundle, and the bundle at which each region starts."""

    bundles: list[list[Instruction]]
    starts: dict[str, int]

    @classmethod
    def parse(cls, text: str) -> Program:
        headers = list(BUNDLE.finditer(text))
        bundles: list[list[Instruction]] = []
        starts: dict[str, int] = {}
        for at, (header, following) in enumerate(zip_longest(headers, headers[1:])):
            begin, end = header.end(), following.start() if following else len(text)
            starts.update((region, at) for region in STARTED.findall(text, begin, end))
            told = GENERAL.sub(r"dma.\2_to_\3\1", text[begin + 1 : end])
            parts = COMMENT.sub("", told).rpartition("}")[0].split(";;")
            # Values that come from before are taken first; a pointer is a name for what the same bundle makes.
            bundles.append(sorted(filter(None, map(_parse, parts)), key=_order))
        return cls(bundles, starts)


def run(program: Program, *, bytes_per_cycle: float, operands: Mapping[int, Sequence[int]] | None = None) -> Passed:
    """Run it. `operands` has the numbers that a kernel reads, by the operand's index."""
    return _Run(program, bytes_per_cycle, operands or {}).whole()


def _order(instruction: Instruction) -> int:
    return {"sphi": 0, "int_to_ptr": 2}.get(instruction.opcode.partition(".")[0], 1)


def _parse(text: str) -> Instruction | None:
    match = INSTRUCTION.match(text.strip())
    if not match or not match[2].startswith(TAKEN):
        return None
    target, opcode, rest = match[1], match[2], NOTE.sub("", match[3]).strip()
    if opcode.startswith("inlined_call_operand"):
        index = re.search(r"index: (\d+)", rest)
        return Instruction(target, opcode, (index[1],)) if index else None
    if chosen := re.match(r"\((!?)%(\w+), ([^)]*)\), *(\S+)", rest):  # kept where it does not hold
        new, kept = (chosen[4], chosen[3]) if not chosen[1] else (chosen[3], chosen[4])
        return Instruction(target, "scalar_select", ("%" + chosen[2], new, kept))
    found = PREDICATED.search(rest)
    when, expected = (found[2], not found[1]) if found else (None, True)
    rest = PREDICATED.sub("", rest, count=1)
    if opcode in ("sld", "sst"):
        place, _, value = rest.removeprefix("[smem:[").partition("]]")
        return Instruction(target, opcode, (place.strip(), value.strip()), when, expected)
    if opcode == "sbr.rel":
        return Instruction(target, opcode, (rest.rpartition("$region")[2].strip(),), when, expected)
    return Instruction(target, opcode, tuple(part.strip() for part in rest.split(",")), when, expected)


def _unsigned(value: int) -> int:
    return value & 0xFFFFFFFF


ARITHMETIC: dict[str, Callable[..., int]] = {
    "sadd": operator.add,
    "ssub": operator.sub,
    "smul": operator.mul,
    "smulhi": lambda left, right: (_unsigned(left) * _unsigned(right)) >> 32,
    "sand": operator.and_,
    "sor": operator.or_,
    "sxor": operator.xor,
    "sshll": lambda value, by: value << by,
    "sshrl": lambda value, by: (_unsigned(value) if value < 0 else value) >> by,
    "sshra": operator.rshift,
    "smin": min,
    "smax": max,
    "por": lambda left, right: left | right,
    "pand": lambda left, right: left & right,
    "pxor": lambda left, right: left ^ right,
    "pnand": lambda left, right: 1 - (left & right),
    "pnor": lambda left, right: 1 - (left | right),
    "pneg": lambda value: 1 - value,
    "smov": lambda value: value,
    "int_to_ptr": lambda value: value,
    "scalar_lea": lambda base, *offsets: base + sum(offsets),
}
COMPARED = {
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "eq": operator.eq,
    "ne": operator.ne,
}
TAKEN = (
    *ARITHMETIC,
    "scmp",
    "scalar_select",
    "sphi",
    "sld",
    "sst",
    "spop",
    "sbr",
    "dma",
    "vsync",
    "inlined_call_operand",
)


class _Run:
    def __init__(self, program: Program, bytes_per_cycle: float, given: Mapping[int, Sequence[int]]) -> None:
        self.program, self.rate, self.given = program, bytes_per_cycle, given
        self.values: dict[str, Scalar] = {}
        self.registers: dict[str, Scalar] = {}
        self.memory: dict[int, Scalar] = {}
        self.bases: defaultdict[str, int] = defaultdict(lambda: APART * (len(self.bases) + 1))
        self.contents: dict[int, Sequence[int]] = {}
        self.arrivals: defaultdict[int, list[tuple[float, int]]] = defaultdict(list)
        self.clock = self.free = 0.0
        self.bundles = self.read = self.written = self.unknown = 0

    def whole(self) -> Passed:
        bundles = self.program.bundles
        at, jump = 0, None
        while at < len(bundles):
            if self.bundles > MOST_BUNDLES:
                raise ValueError(f"a loop that has not ended after {MOST_BUNDLES} bundles, near bundle {at:#x}")
            self.bundles += 1
            self.clock += 1
            if bundles[at] and (target := self._bundle(bundles[at])) is not None:
                jump = (at + DELAY_SLOTS, target)
            at, jump = (jump[1], None) if jump and at == jump[0] else (at + 1, jump)
        return Passed(self.bundles, max(self.clock, self.free), self.clock, self.read, self.written, self.unknown)

    def _bundle(self, instructions: list[Instruction]) -> int | None:
        """Its effects; to which bundle it branches, if it does. All read what was there before."""
        results: list[tuple[str, Scalar]] = []
        target = None
        for instruction in instructions:
            holds = True if instruction.when is None else self.values.get(instruction.when)
            if holds is None and instruction.opcode.startswith(("sbr", "dma")):
                self.unknown += 1
            if holds is None or bool(holds) != instruction.expected:
                continue
            if instruction.opcode == "sbr.rel":
                target = self.program.starts[instruction.operands[0]]
            elif instruction.opcode.startswith(("dma", "vsync")):
                self._copy(instruction)
            elif instruction.opcode == "sst":
                place = self._place(instruction.operands[0])
                if place is not None:
                    self.memory[place] = self._value(instruction.operands[1])
            elif instruction.opcode.startswith("int_to_ptr"):
                self._keep(results)
                results = [(instruction.target, self._value(instruction.operands[0]))]
            elif instruction.opcode == "sphi":
                self.values[instruction.target] = self.registers.get(_register(instruction.target))
            else:
                results.append((instruction.target, self._result(instruction)))
        self._keep(results)
        return target

    def _keep(self, results: list[tuple[str, Scalar]]) -> None:
        for name, value in results:
            self.values[name] = self.registers[_register(name)] = value

    def _result(self, instruction: Instruction) -> Scalar:
        opcode, operands = instruction.opcode, instruction.operands
        if opcode.startswith("inlined_call_operand"):
            return self._operand(opcode.removeprefix("inlined_call_operand."), int(operands[0]))
        if opcode == "sld":
            place = self._place(operands[0])
            return None if place is None else self.memory.get(place)
        if opcode == "scalar_select":
            chosen = self._value(operands[0])
            return None if chosen is None else self._value(operands[1 if chosen else 2])
        if opcode.startswith("spop"):
            return None  # it comes from the vector units
        values = [self._value(part) for part in operands]
        name, _, kind = opcode.partition(".")
        if name in ("por", "pand", "pnand", "pnor") and None in values:
            decided = int(name in ("por", "pnor"))  # one operand is enough
            return None if decided not in values else ARITHMETIC[name](decided, decided)
        known = [value for value in values if value is not None]
        if len(known) < len(values):
            return None
        if ("u32" in kind and name in ("smin", "smax", "scmp")) and min(known) < 0:
            known = [_unsigned(value) for value in known]
        if name == "scmp":
            return int(COMPARED[kind.partition(".")[0]](*known))
        return ARITHMETIC[name](*known)

    def _operand(self, space: str, index: int) -> Scalar:
        if space.startswith("<no"):
            return int(self.given[index][0]) if index in self.given else None
        base = self.bases[f"operand {index}"]
        if index in self.given:
            self.contents[base] = self.contents[base << 4] = self.given[index]
            if space == "smem":
                self.memory.update((base + at, int(value)) for at, value in enumerate(self.given[index]))
        return base

    def _copy(self, instruction: Instruction) -> None:
        opcode = instruction.opcode
        if opcode.startswith("vsync"):
            if opcode in ("vsyncadd", "vsyncpa"):
                flag, count = map(self._value, instruction.operands[:2])
                if flag is not None and count is not None:
                    if opcode == "vsyncpa":
                        self.arrivals[flag].clear()
                    self.arrivals[flag].append((self.clock, count))
            return
        if opcode.startswith("dma.done"):
            flag, count = map(self._value, instruction.operands[:2])
            if flag is not None and count is not None:
                self._wait(flag, count)
            return
        source, granules, destination, flag = map(self._value, instruction.operands[:4])
        if granules is None:
            self.unknown += 1
            return
        count = granules * GRANULE_BYTES
        if "hbm" in opcode:
            self.free = max(self.free, self.clock) + count / self.rate
            self.read += count * opcode.startswith("dma.hbm")
            self.written += count * opcode.endswith("hbm")
        if opcode.endswith("to_smem") and source in self.contents and destination is not None:
            self.memory.update((destination + at, int(value)) for at, value in enumerate(self.contents[source]))
        if flag is not None:
            self.arrivals[flag].append((self.free if "hbm" in opcode else self.clock, granules))

    def _wait(self, flag: int, count: int) -> None:
        """Until so many granules have arrived; for what never does, sent by another device, not at all."""
        there = 0
        for time, granules in sorted(self.arrivals[flag]):
            there += granules
            if there >= count:
                self.clock = max(self.clock, time)
                self.arrivals[flag] = [
                    (time, there),
                    *(arrival for arrival in self.arrivals[flag] if arrival[0] > time),
                ]
                return

    def _place(self, text: str) -> Scalar:
        terms = [self._value(part.strip()) for part in text.split("+")]
        known = [term for term in terms if term is not None]
        return sum(known) if len(known) == len(terms) else None

    def _value(self, text: str) -> Scalar:
        if text.startswith("%"):
            return self.values.get(text[1:].partition(" ")[0])
        if text.startswith("["):
            return self._place(text[1 : text.index("]")])
        if text.startswith("#"):
            return self.bases[text]
        try:
            value = int(text.removeprefix("$"), 16 if text.startswith("$") else 10)
        except ValueError:
            return None
        return value - (1 << 32) if value >= 1 << 31 else value


def _register(name: str) -> str:
    return name.rpartition("_")[2]
