"""Which checkpoint tensors each parameter is made of: pure names, no files, every disagreement reported at once."""

from __future__ import annotations

import logging
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxengine.device.weights.problems import Problems
from jaxengine.device.weights.rules import Ignore, KvHeads, Rule, Transform

logger = logging.getLogger("jaxengine")


@dataclass(frozen=True, slots=True)
class Write:
    """A parameter, and how it is made from its tensor, from each of them, or from `each` item of the one there is."""

    target: str
    transform: Transform | None
    each: bool = False


@dataclass(frozen=True, slots=True)
class Assignment:
    """Checkpoint tensors that are read together, and the parameters that are made of them.

    With `stacked` the tensors lie one behind the other along a leading axis of each parameter; else there is one, or each
    parameter is made of all of them.
    """

    sources: tuple[str, ...]
    writes: tuple[Write, ...]
    stacked: bool = False


@dataclass(frozen=True, slots=True)
class _Candidate:
    """Tensors that could make a parameter: those of one rule and the same numbers, by their `{expert}` (None without one)."""

    rule: Rule
    tensors: Mapping[int | None, Sequence[str]]
    also: Sequence[str] = ()

    @property
    def names(self) -> list[str]:
        own = [name for index in sorted(self.tensors, key=lambda index: index or 0) for name in self.tensors[index]]
        return [*own, *self.also]

    @property
    def count(self) -> int:
        """How many tensors it should be."""
        return len(self.tensors) + len(self.rule.also)

    @property
    def missing(self) -> list[int]:
        numbers = {index for index in self.tensors if index is not None}
        return sorted(set(range(max(numbers, default=-1) + 1)) - numbers)


def match(
    tensors: Iterable[str], rules: Sequence[Rule | Ignore], parameters: Iterable[str], config: KvHeads
) -> tuple[Assignment, ...]:
    """Find the tensors of every parameter, and a use for every tensor.

    Args:
        tensors: Names in the checkpoint.
        rules: The model family's table.
        parameters: Dotted paths of the model's parameters.
        config: The model config, whose attributes `absent_if` names.

    Returns:
        The assignments in the order of `tensors`, in which files are read fastest.

    Raises:
        CheckpointError: a parameter that no tensor writes, that several do, or of whose tensors some are missing; a tensor that
            no rule maps, that several rows claim or that the model has no parameter for. All of them are listed.
    """
    order = {tensor: place for place, tensor in enumerate(tensors)}
    wanted = list(parameters)
    problems = Problems()
    candidates = _candidates(_claims(order, rules, config, problems), rules, set(wanted), config, problems)
    for target in sorted(set(wanted) - candidates.keys(), key=_natural):
        problems.add("parameters that no tensor of the checkpoint fills", target, _expectation(target, rules, config))
    groups: dict[tuple[str, ...], tuple[bool, list[Write]]] = {}
    for target in wanted:
        found = candidates.get(target, [])
        names = [name for candidate in found for name in candidate.names]
        for number in (number for candidate in found for number in candidate.missing):
            problems.add(
                "parameters of whose tensors some are missing", target, f"number {number} of {found[0].rule.source}"
            )
        if len(names) < sum(candidate.count for candidate in found):
            lacking = " or ".join(found[0].rule.also)
            problems.add("parameters of whose tensors some are missing", target, f"expected {lacking}")
        if len(names) > sum(candidate.count for candidate in found[:1]):
            problems.add("several tensors write one parameter", target, f"from {', '.join(names)}")
        for candidate in found[:1]:
            _, writes = groups.setdefault(tuple(names), (None not in candidate.tensors, []))
            writes.append(Write(target, candidate.rule.transform, candidate.rule.each))
    problems.raise_any("the checkpoint does not match the model")
    assignments = [Assignment(sources, tuple(writes), stacked) for sources, (stacked, writes) in groups.items()]
    return tuple(sorted(assignments, key=lambda assignment: order[assignment.sources[0]]))


def targets_of(
    tensors: Sequence[str], rules: Sequence[Rule | Ignore], parameters: Iterable[str], config: KvHeads
) -> set[str]:
    """The parameters that some of their tensors are among these: what `match` is to be asked for when they are not all."""
    ignored = Problems()
    order = dict.fromkeys(tensors, 0)
    return set(_candidates(_claims(order, rules, config, ignored), rules, set(parameters), config, ignored))


_Claims = Mapping[str, Mapping[tuple[str, ...], Mapping[int | None, list[str]]]]
"""Tensors by the source that they match, the numbers that stand for its `*`, and the number of its `{expert}`."""


def _claims(tensors: Iterable[str], rules: Sequence[Rule | Ignore], config: KvHeads, problems: Problems) -> _Claims:
    by_layer = [row for row in rules if isinstance(row, Ignore) and row.layers is not None]
    left = [(source_pattern(row.source), getattr(config, str(row.layers))) for row in by_layer]
    rest = [source_pattern(row.source) for row in rules if isinstance(row, Ignore) and row.others]
    rules = [row for row in rules if row not in by_layer and not getattr(row, "others", False)]
    sources = (source for row in rules for source in (row.source, *getattr(row, "also", ())))
    patterns = {source: source_pattern(source) for source in sources}
    claims: Any = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for tensor in tensors:
        if any((found := pattern.fullmatch(tensor)) and int(found.group(1)) in layers for pattern, layers in left):
            continue
        hits = {source: found for source, pattern in patterns.items() if (found := pattern.fullmatch(tensor))}
        if not hits and not any(pattern.fullmatch(tensor) for pattern in rest):
            problems.add("the checkpoint has tensors that no rule maps", tensor)
        elif len(hits) > 1:
            claimed = f"claimed by {', '.join(sorted(hits))}"
            problems.add("several rows of the weight table claim one tensor", tensor, claimed)
        for source, found in list(hits.items())[:1]:
            index = found.groupdict().get("index")
            place = None if index is None else found.re.groupindex["index"]
            numbers = tuple(number for group, number in enumerate(found.groups(), 1) if group != place)
            claims[source][numbers][None if index is None else int(index)].append(tensor)
    return claims  # type: ignore[no-any-return]


def _candidates(
    claims: _Claims, rules: Sequence[Rule | Ignore], wanted: set[str], config: KvHeads, problems: Problems
) -> dict[str, list[_Candidate]]:
    """What could make each parameter; complains of tensors for parameters that the model has not."""
    candidates: dict[str, list[_Candidate]] = defaultdict(list)
    unread: dict[str, list[str]] = defaultdict(list)
    for rule in rules:
        if isinstance(rule, Ignore):
            continue
        for numbers, tensors in claims.get(rule.source, {}).items():
            if rule.layers is not None and int(numbers[0]) not in getattr(config, rule.layers):
                continue
            others = [name for also in rule.also for name in claims.get(also, {}).get(numbers, {}).get(None, ())]
            candidate, target = _Candidate(rule, tensors, others), filled(rule.target, numbers)
            if _absent(rule, config):
                unread[str(rule.absent_if)] += candidate.names
            elif target in wanted:
                candidates[target].append(candidate)
            else:
                for tensor in candidate.names:
                    kind = "the checkpoint has tensors for parameters that the model has not"
                    problems.add(kind, tensor, f"for {target}")
    for switch, names in unread.items():
        logger.warning("left unread, since the config says %s: %s", switch, ", ".join(dict.fromkeys(names)))
    return candidates


def source_pattern(source: str) -> re.Pattern[str]:
    """`[model.]layers.*.experts.{expert}.weight` as a regular expression: a group per `*`, one named `index`; `**` is all."""
    number = "(0|[1-9][0-9]*)"
    special = {"*": number, "**": ".+", "[": "(?:", "]": ")?"}
    pattern = "".join(
        f"(?P<index>{number[1:]}" if token.startswith("{") else special.get(token, re.escape(token))
        for token in re.split(r"(\*\*|[*\[\]]|\{\w+\})", source)
    )
    return re.compile(pattern)


def filled(target: str, numbers: Sequence[str]) -> str:
    """A rule's target with these numbers in the places of its `*`."""
    if target.count("*") != len(numbers):
        raise ValueError(f"rule target {target!r} must have as many * as its source has ({len(numbers)})")
    remaining = iter(numbers)
    return re.sub(r"\*", lambda _: next(remaining), target)


def _absent(rule: Rule, config: KvHeads) -> bool:
    return rule.absent_if is not None and bool(getattr(config, rule.absent_if))


def _expectation(target: str, rules: Sequence[Rule | Ignore], config: KvHeads) -> str:
    """Which tensor would have filled `target`."""
    for rule in rules:
        if isinstance(rule, Rule) and not _absent(rule, config):
            found = source_pattern(rule.target).fullmatch(target)
            if found:
                return f"expected {filled(rule.source.replace('[', '').replace(']', ''), found.groups())}"
    return "no rule of the weight table writes it"


def _natural(name: str) -> list[tuple[int, str]]:
    """Sort key that puts layer 2 before layer 10."""
    return [(int(token), "") if token.isdigit() else (-1, token) for token in re.split(r"(\d+)", name)]
