"""Everything that is wrong with a checkpoint in one error: a user mends it once, not name by name."""

from __future__ import annotations

import re
from collections.abc import Sequence

from jaxengine.errors import CheckpointError


class Problems:
    """Disagreements by kind. Names that differ in one number alone are reported as one line."""

    def __init__(self) -> None:
        self._lines: dict[str, list[tuple[str, str]]] = {}

    def add(self, kind: str, name: str, detail: str = "") -> None:
        self._lines.setdefault(kind, []).append((name, detail))

    def raise_any(self, summary: str) -> None:
        """Raise a `CheckpointError` that lists everything added, if anything was."""
        if not self._lines:
            return
        text = [summary + ":"]
        for kind, lines in self._lines.items():
            text.append(f"  {kind} ({len(lines)}):")
            text += [f"    {line}" for line in _condensed(lines)]
        raise CheckpointError("\n".join(text))


def _condensed(lines: Sequence[tuple[str, str]]) -> list[str]:
    """Lines with the first number of the name folded into ranges: `layers.{0-27}.norm: expected layers.*.norm.weight`."""
    groups: dict[tuple[str, str], list[int]] = {}
    for name, detail in lines:
        number = re.search(r"\d+", name)
        if number is None:
            groups[name, detail] = []
            continue
        # The detail is folded too where it repeats the number as a whole part of a dotted name.
        folded = re.sub(rf"(?<=\.){number.group()}(?=\.)", "{}", detail)
        groups.setdefault((f"{name[: number.start()]}{{}}{name[number.end() :]}", folded), []).append(
            int(number.group())
        )
    text = []
    for (name, detail), numbers in groups.items():
        shown, many = _ranges(sorted(numbers)), len(numbers) > 1
        line = f"{name}: {detail.replace('{}', '*' if many else shown)}" if detail else name
        text.append(line.replace("{}", f"{{{shown}}}" if many else shown))
    return text


def _ranges(numbers: Sequence[int]) -> str:
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number <= runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)
