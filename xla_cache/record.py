"""What is known of one kept program: a closed JSON schema."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, get_type_hints

import jax

from xla_cache.errors import CorruptError
from xla_cache.key import Key

SCHEMA = 2


@dataclass(frozen=True)
class Memory:
    """The compiler's own memory analysis, in bytes per device."""

    argument: int
    output: int
    temp: int
    alias: int
    code: int

    @classmethod
    def of(cls, compiled: jax.stages.Compiled) -> Memory:
        analysis = compiled.memory_analysis()
        names = ("argument", "output", "temp", "alias", "generated_code")
        return cls(*(int(getattr(analysis, f"{name}_size_in_bytes", 0)) for name in names))


@dataclass(frozen=True)
class Seconds:
    """What building the program took."""

    trace: float
    lower: float
    compile: float


@dataclass(frozen=True)
class Record:
    """One kept program.

    `parts` are those of its `Key`; `hlo` the digest of the lowered module without debug information; `file` the sha256 of its
    compressed bytes, which is their name too; `size` and `packed` count bytes before and after compression; `out_tree` is as
    `encode_tree` made it; `cycles` are `estimated_cycles`, of programs for TPUs; `created` is in seconds since the epoch.
    """

    parts: Mapping[str, str]
    hlo: str
    file: str
    size: int
    packed: int
    out_tree: Any
    memory: Memory
    cycles: int | None
    seconds: Seconds
    created: float

    @cached_property
    def key(self) -> Key:
        return Key(self.parts)

    @property
    def program(self) -> str:
        return self.parts["program"]

    def to_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA, **dataclasses.asdict(self)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any], *, name: str) -> Record:
        """Read a record; every field must be there, with its type, and no other.

        Raises:
            CorruptError: another schema; the message begins with `name`.
        """
        if values.get("schema") != SCHEMA:
            raise CorruptError(f"{name} has schema {values.get('schema')!r}, and this version reads {SCHEMA}")
        rest = {field: value for field, value in values.items() if field != "schema"}
        record = _read(cls, rest, name)
        if "program" not in record.parts or not all(
            isinstance(text, str) for pair in record.parts.items() for text in pair
        ):
            raise CorruptError(f"{name}: parts must map names to texts and name the program")
        if len(record.file) != 64 or set(record.file) - set("0123456789abcdef"):
            raise CorruptError(f"{name}: file must be a sha256 in hexadecimal, got {record.file!r:.80}")
        return record


def _read(kind: type, values: Any, name: str) -> Any:
    if not isinstance(values, Mapping):
        raise CorruptError(f"{name}: expected an object for {kind.__name__}")
    hints = get_type_hints(kind)
    if set(values) != set(hints):
        wrong = sorted(set(values) ^ set(hints))
        raise CorruptError(f"{name}: {kind.__name__} has missing or unknown fields: {', '.join(wrong)}")
    return kind(**{field: _value(hint, values[field], f"{name}: {field}") for field, hint in hints.items()})


def _value(hint: Any, value: Any, name: str) -> Any:
    if dataclasses.is_dataclass(hint):
        return _read(hint, value, name)  # type: ignore[arg-type]
    if hint is Any:
        return value
    if hint == int | None:
        return None if value is None else _value(int, value, name)
    allowed: tuple[type, ...] = {int: (int,), float: (int, float), str: (str,)}.get(hint, (Mapping,))
    wrong = not isinstance(value, allowed) or isinstance(value, bool)
    if wrong or (isinstance(value, (int, float)) and not 0 <= value < 2**63):
        raise CorruptError(f"{name} must be of type {getattr(hint, '__name__', 'object')}, got {value!r:.80}")
    return value
