"""Which checkpoint tensor becomes which parameter: pure names, no files, every disagreement reported at once."""

from __future__ import annotations

import logging
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from jaxengine.weights.problems import Problems
from jaxengine.weights.rules import Ignore, Rule, Transform

logger = logging.getLogger("jaxengine")


@dataclass(frozen=True, slots=True)
class Write:
    """A parameter, and how it is made from the tensor."""

    target: str
    transform: Transform | None


@dataclass(frozen=True, slots=True)
class Assignment:
    """One checkpoint tensor and the parameters that it is read for."""

    source: str
    writes: tuple[Write, ...]


def match(
    tensors: Iterable[str], rules: Sequence[Rule | Ignore], parameters: Iterable[str], config: Any
) -> tuple[Assignment, ...]:
    """Assign every tensor to a rule and every parameter to a tensor, in the order of `tensors`.

    Args:
        tensors: Names in the checkpoint.
        rules: The model family's table.
        parameters: Dotted paths of the model's parameters.
        config: The model config, whose attributes `absent_if` names.

    Raises:
        CheckpointError: a tensor that no rule maps, that several rows claim or that the model has no parameter for; a
            parameter that no tensor writes or that several do. All of them are listed.
    """
    table = [(row, _source_pattern(row.source)) for row in rules]
    wanted = set(parameters)
    problems = Problems()
    assignments: list[Assignment] = []
    unread: dict[str, list[str]] = defaultdict(list)
    writers: dict[str, list[str]] = defaultdict(list)
    for tensor in tensors:
        hits = [(row, found.groups()) for row, pattern in table if (found := pattern.fullmatch(tensor))]
        if not hits:
            problems.add("the checkpoint has tensors that no rule maps", tensor)
            continue
        if len({row.source for row, _ in hits}) > 1:
            claims = ", ".join(sorted({row.source for row, _ in hits}))
            problems.add("several rows of the weight table claim one tensor", tensor, f"claimed by {claims}")
            continue
        writes = []
        for row, numbers in hits:
            if isinstance(row, Ignore):
                continue
            if _absent(row, config):
                unread[str(row.absent_if)].append(tensor)
                continue
            target = _fill(row.target, numbers)
            if target not in wanted:
                problems.add(
                    "the checkpoint has tensors for parameters that the model has not", tensor, f"for {target}"
                )
                continue
            writes.append(Write(target, row.transform))
            writers[target].append(tensor)
        if writes:
            assignments.append(Assignment(tensor, tuple(writes)))
    for target in sorted(wanted - writers.keys(), key=_natural):
        problems.add("parameters that no tensor of the checkpoint fills", target, _expectation(target, rules, config))
    for target, sources in writers.items():
        if len(sources) > 1:
            problems.add("several tensors write one parameter", target, f"from {', '.join(sources)}")
    problems.raise_any("the checkpoint does not match the model")
    for switch, names in unread.items():
        logger.warning("left unread, since the config says %s: %s", switch, ", ".join(names))
    return tuple(assignments)


def _source_pattern(source: str) -> re.Pattern[str]:
    """`[model.]layers.*.weight` as a regular expression with one group per `*`."""
    special = {"*": r"(0|[1-9][0-9]*)", "[": "(?:", "]": ")?"}
    return re.compile("".join(special.get(token, re.escape(token)) for token in re.split(r"([*\[\]])", source)))


def _fill(target: str, numbers: Sequence[str]) -> str:
    if target.count("*") != len(numbers):
        raise ValueError(f"rule target {target!r} must have as many * as its source has ({len(numbers)})")
    remaining = iter(numbers)
    return re.sub(r"\*", lambda _: next(remaining), target)


def _absent(rule: Rule, config: Any) -> bool:
    return rule.absent_if is not None and bool(getattr(config, rule.absent_if))


def _expectation(target: str, rules: Sequence[Rule | Ignore], config: Any) -> str:
    """Which tensor would have filled `target`."""
    for rule in rules:
        if isinstance(rule, Rule) and not _absent(rule, config):
            found = _source_pattern(rule.target).fullmatch(target)
            if found:
                return f"expected {_fill(rule.source.replace('[', '').replace(']', ''), found.groups())}"
    return "no rule of the weight table writes it"


def _natural(name: str) -> list[tuple[int, str]]:
    """Sort key that puts layer 2 before layer 10."""
    return [(int(token), "") if token.isdigit() else (-1, token) for token in re.split(r"(\d+)", name)]
