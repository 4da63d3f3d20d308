"""The instructions of a compiled program, as its text has them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

LINE = re.compile(r"^\s+(?:ROOT )?%([\w.\-]+) = (.*?) ([a-z][\w\-]*)\((.*)$")
SHAPE = re.compile(r"\b([a-z]+\d*)(?:e\dm\d\w*)?\[([\d,]*)\](?:\{([^}]*)\})?")
NAME = re.compile(r'op_name="([^"]*)"')
CALLS = re.compile(r"calls=%([\w.\-]+)")
BODY = re.compile(r"body=%([\w.\-]+)")
COMPUTATION = re.compile(r"^%([\w.\-]+) \(.*?\{$(.*?)^\}", re.M | re.S)
OPERAND = re.compile(r"%([\w.\-]+)")
OTHER_MEMORY = re.compile(r"S\([1-9]")
KINDS: tuple[tuple[str, str], ...] = (
    ("attention", r"op:(paged|row|latent)_attention/.*pallas_call"),
    ("recurrences", r"op:gated_delta/.*pallas_call"),
    ("cache writes", r"op:write_(kv|latents)"),
    ("experts", r"op:grouped_(mlp|(scaled_)?matmul)"),
    ("routing", r"top_k|argsort|/sort$|take_along_axis|ragged-dot-metadata"),
    ("rotation", r"op:rotate(?!.*layout_constraint)"),
    ("products", r"dot_general|op:matmul"),
    ("norms", r"op:inverse_root|op:mean_last|^[^)]*rsqrt"),
    ("moves", r"(transpose|reshape|layout_constraint|copy)$"),
)
"""By an instruction's operands and by what XLA says where it comes from; the first that fits."""


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
    def operands(self) -> list[str]:
        return OPERAND.findall(self.rest.partition(")")[0])

    @property
    def first_operand(self) -> str:
        found = OPERAND.search(self.rest)
        return found[1] if found else ""

    def hbm_bytes(self) -> int:
        """What a copy beside the program moves from HBM or to it."""
        shapes = SHAPE.findall(self.shape)[:2]
        moved = min(size_of(dtype, sizes) for dtype, sizes, _ in shapes)
        return moved * sum(not OTHER_MEMORY.search(layout) for _, _, layout in shapes)


def entry(hlo: str) -> list[Instruction]:
    """The instructions of the entry computation, in their order; those of a loop's body in the place of the loop, once."""
    bodies = dict(COMPUTATION.findall(hlo))
    return _passed(hlo.partition("\nENTRY ")[2].partition("\n}")[0], bodies)


def _passed(text: str, bodies: Mapping[str, str]) -> list[Instruction]:
    found: list[Instruction] = []
    for match in filter(None, map(LINE.match, text.splitlines())):
        instruction = Instruction(match[1], match[3], match[2], match[4])
        body = BODY.search(instruction.rest) if instruction.opcode == "while" else None
        found += [instruction] if body is None else _passed(bodies[body[1]], bodies)
    return found


def sizes_of(text: str) -> tuple[int, ...]:
    """Of `2048,128`."""
    return tuple(map(int, filter(None, text.split(","))))


def size_of(dtype: str, sizes: str) -> int:
    """Bytes of an array."""
    bits = 8 if dtype == "pred" else int(re.sub(r"\D", "", dtype) or 32)
    return math.prod(sizes_of(sizes)) * bits // 8
