"""What each start of an engine needed and how it went, kept in the store: to report on, and to export as a bundle."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from xla_cache.errors import CacheError, CorruptError
from xla_cache.files import write_whole
from xla_cache.record import SCHEMA, Record
from xla_cache.sealed import seal, unseal
from xla_cache.store import Store


@dataclass(frozen=True)
class ProgramReport:
    """Where one program of a start came from (`compiler`, `store` or `bundle`), its seconds, and why it was not kept before."""

    name: str
    origin: str
    trace_s: float
    lower_s: float
    compile_s: float
    load_s: float
    missed: str | None


@dataclass(frozen=True)
class StartRecord:
    """One start: what it was for (as in a bundle's manifest), its programs' keys by name, and how each was obtained.

    `time` is in seconds since the epoch. `programs` holds those that were ready with the engine.
    """

    description: Mapping[str, Any]
    context: Mapping[str, str]
    keys: Mapping[str, str]
    programs: Sequence[ProgramReport]
    time: float

    @cached_property
    def id(self) -> str:
        """Equal for starts that need the same programs."""
        keys = json.dumps(dict(self.keys), sort_keys=True)
        return hashlib.sha256(keys.encode()).hexdigest()[:12]

    def records(self, store: Store) -> list[Record]:
        """The records of its programs.

        Raises:
            CacheError: one is not kept, or no longer.
        """
        found = {name: store.find_digest(key) for name, key in self.keys.items()}
        missing = [name for name, record in found.items() if record is None]
        if missing:
            raise CacheError(
                f"{len(missing)} programs of this start are not kept: {', '.join(missing)}. Start it once more."
            )
        return [record for record in found.values() if record is not None]


def write_start(store: Store, start: StartRecord) -> None:
    """Keep the record of a start, in place of the last one that needed the same programs.

    Raises:
        CacheError: the store cannot be written.
    """
    try:
        store.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        (store.path / "starts").mkdir(mode=0o700, exist_ok=True)
        write_whole(store.path / "starts" / f"{start.id}.json", seal({"schema": SCHEMA, **asdict(start)}))
    except OSError as error:
        raise CacheError(f"{store.path} cannot be written: {error}") from error


def read_starts(store: Store) -> list[StartRecord]:
    """All starts whose records are whole, the latest first."""
    return sorted(_read(store), key=lambda start: -start.time)


def _read(store: Store) -> Iterator[StartRecord]:
    for path in (store.path / "starts").glob("[0-9a-f]*.json"):
        try:
            body = unseal(path.read_bytes(), name=str(path))
            programs = [ProgramReport(**program) for program in body.pop("programs")]
            if body.pop("schema") == SCHEMA:
                yield StartRecord(programs=programs, **body)
        except (OSError, CorruptError, KeyError, TypeError):
            continue
