"""What an executable depends on, part by part, known without tracing it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax

from xla_cache.program import Program

TRACED = ("source.", "model.", "fact.", "versions.flax")
"""Parts that only shape the traced program: where its HLO is the same, they need not be."""

DIGESTS = ("arguments", "source.")
"""Parts whose values tell a reader nothing."""


@dataclass(frozen=True)
class Difference:
    """One part of two keys that is not equal; None where a key does not have it."""

    part: str
    wanted: str | None
    found: str | None

    def __str__(self) -> str:
        return f"{self.part}: {_short(self.wanted)} here, {_short(self.found)} there"


@dataclass(frozen=True)
class Key:
    """The named parts that decide whether an executable is the right one."""

    parts: Mapping[str, str]

    @cached_property
    def digest(self) -> str:
        """sha256 of all parts, in hexadecimal."""
        return hashlib.sha256(json.dumps(dict(self.parts), sort_keys=True).encode()).hexdigest()

    @cached_property
    def compiled_parts(self) -> dict[str, str]:
        """The parts that matter beside the HLO: program, arguments, versions, flags and target."""
        return {part: value for part, value in self.parts.items() if not part.startswith(TRACED)}

    def differences(self, found: Key) -> tuple[Difference, ...]:
        """What differs, by part; what is only a digest comes last."""
        names = sorted({*self.parts, *found.parts}, key=lambda name: (name.startswith(DIGESTS), name))
        pairs = ((name, self.parts.get(name), found.parts.get(name)) for name in names)
        return tuple(Difference(name, wanted, other) for name, wanted, other in pairs if wanted != other)


def program_key(program: Program, context: Mapping[str, str]) -> Key:
    """The key of one program. `context` holds the parts that all programs of a build share, as dotted names."""
    facts = {f"fact.{name}": str(value) for name, value in program.facts.items()}
    own = {
        "program": program.name,
        "arguments": describe_arguments(program),
        "donate": ",".join(map(str, program.donate)),
        "compiler_options": json.dumps(dict(program.compiler_options), sort_keys=True),
    }
    return Key({**context, **facts, **own})


def describe_arguments(program: Program) -> str:
    """A digest of tree, shapes, dtypes and shardings of the arguments."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(program.arguments)
    lines = [
        f"{jax.tree_util.keystr(path)} {leaf.dtype} {tuple(leaf.shape)} {_sharding(leaf.sharding)}"
        for path, leaf in leaves
    ]
    return f"{len(leaves)} arrays {hashlib.sha256(chr(10).join(lines).encode()).hexdigest()[:32]}"


def _sharding(sharding: Any) -> str:
    if sharding is None:
        return ""
    if isinstance(sharding, jax.sharding.NamedSharding):
        mesh = dict(sharding.mesh.shape)
        return f"{mesh} {sharding.spec} {sharding.memory_kind}"
    return repr(sharding)


def _short(value: str | None) -> str:
    return "nothing" if value is None else value if len(value) <= 60 else f"{value[:57]}..."
