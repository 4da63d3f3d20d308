"""Which scheme keeps which matrix of a model, by the matrix's path."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import jax

from jaxengine.device.layers.schemes import HEAD, Scheme, is_numbers, is_weight
from jaxengine.device.layers.schemes.coded import CODED
from jaxengine.device.layers.schemes.dense import DENSE
from jaxengine.device.layers.schemes.int8 import INT8
from jaxengine.device.layers.schemes.scaled import FP8, INT4, INT4_G32, Scaled
from jaxengine.device.layers.schemes.stored import Stored, StoredFormats
from jaxengine.device.weights.rules import Ignore, Rule
from jaxengine.errors import ConfigError, nearest

SCHEMES: Mapping[str, Scheme] = {"int8": INT8, "int4": INT4, "int4_g32": INT4_G32, "fp8": FP8}
"""By the name that the `quantization` option gives them."""


TOWER = "tower."
"""Begins the paths of what encodes pictures or sounds, whose matrices are plain: they are few, and read once an item."""


@dataclass(frozen=True)
class Schemes:
    """A value: equal ones make equal programs.

    `layers` keeps all matrices of layers and is made of plain ones while they load, or, with `stored`, a checkpoint says of each
    how it has it; with `decoded` the plain ones are what that checkpoint's stand for. `name` is what the option or the checkpoint
    calls that. `vocabulary` keeps the table at this path, by which hidden states are multiplied; with tied embeddings rows of it
    are looked up, too (`layers.embedding`).
    """

    name: str | None = None
    layers: Scheme = DENSE
    stored: Stored | None = None
    decoded: StoredFormats | None = None
    vocabulary: tuple[str, Scheme] | None = None

    @classmethod
    def by_option(cls, name: str | None) -> Schemes:
        """What the `quantization` option names; None: matrices as a plain checkpoint has them.

        Raises:
            ConfigError: there is none of that name; the message lists what there is.
        """
        if name is None:
            return cls()
        if name not in SCHEMES:
            raise ConfigError(
                f"quantization must be one of {', '.join(SCHEMES)}, or left out, got {name!r}.{nearest(name, SCHEMES)}"
            )
        return cls(name, SCHEMES[name])

    def of(self, path: str) -> Scheme:
        """What keeps the matrix whose numbers are the parameter `path`."""
        if path.startswith(TOWER):
            return DENSE
        if self.vocabulary is not None and path == self.vocabulary[0]:
            return self.vocabulary[1]
        if self.stored is not None:
            return self.stored.of(path)
        return self.layers if is_weight(path) else DENSE

    def is_stored(self, path: str) -> bool:
        """Whether a checkpoint has it in that form; else it is made of the plain one."""
        if (
            self.stored is None
            or path.startswith(TOWER)
            or (self.vocabulary is not None and path == self.vocabulary[0])
        ):
            return False
        return is_weight(path) or (path == HEAD and self.of(path) is not DENSE)

    def coded(self, head: str) -> Schemes:
        """The same, but that plain matrices of layers, and the vocabulary's at the path `head`, are kept coded."""
        layers = CODED if self.layers is DENSE and self.stored is None else self.layers
        plain_head = self.vocabulary is None and self.of(head) is DENSE
        return replace(self, layers=layers, vocabulary=(head, CODED) if plain_head else self.vocabulary)

    def packed(self, parameters: Mapping[str, jax.ShapeDtypeStruct]) -> dict[str, jax.ShapeDtypeStruct]:
        """The parameters as a CPU's library reads them best: matrices of 4 bits lie otherwise where they can."""
        return {
            path: scheme.packed(struct) if is_numbers(path) and isinstance(scheme := self.of(path), Scaled) else struct
            for path, struct in parameters.items()
        }

    def table(
        self, rules: Iterable[Rule | Ignore], targets: Iterable[str] = (), *, plain: bool = False
    ) -> tuple[Rule | Ignore, ...]:
        """The weight table of a model whose matrices are kept so, from the family's own.

        `targets` are the model's parameters, which tell layers apart that are kept in several ways. `plain`: of a checkpoint
        whose matrices are all plain, whatever was said of another.
        """
        numbers = [path for path in targets if is_numbers(path)]
        table: list[Rule | Ignore] = []
        for rule in rules:
            if not isinstance(rule, Rule) or not is_numbers(rule.target):
                table.append(rule)
                continue
            for scheme, of_some in self._by_scheme(rule, numbers):
                stored = not plain and self.is_stored(of_some.target)
                table += scheme.stored_rules(of_some) if stored else scheme.rules(of_some)
        return tuple(table)

    def _by_scheme(self, rule: Rule, targets: Iterable[str]) -> list[tuple[Scheme, Rule]]:
        """The rule by schemes: itself where all layers have one, else a rule for each layer."""
        pattern = re.compile(re.escape(rule.target).replace(r"\*", "([0-9]+)"))
        found = {match.groups(): self.of(path) for path in targets if (match := pattern.fullmatch(path))}
        different = set(found.values()) or {self.of(rule.target)}
        if len(different) == 1:
            return [(different.pop(), rule)]
        return [
            (
                scheme,
                replace(
                    rule,
                    target=_filled(rule.target, numbers),
                    source=_filled(rule.source, numbers),
                    also=tuple(_filled(source, numbers) for source in rule.also),
                ),
            )
            for numbers, scheme in found.items()
        ]


def _filled(pattern: str, numbers: tuple[str, ...]) -> str:
    remaining = iter(numbers)
    return re.sub(r"\*", lambda _: next(remaining), pattern)


PLAIN = Schemes()
"""Matrices as a plain checkpoint has them."""
