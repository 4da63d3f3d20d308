"""Looking a program up before it is compiled, and keeping it after.

Order: a bundle, the local store, the compiler. A key is known without tracing. Where it is not found, the program is traced
and lowered, and an executable of the same HLO, versions, flags and target is taken whatever its source looked like.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import jax

from xla_cache.cycles import estimated_cycles
from xla_cache.errors import CacheError, RefusedError
from xla_cache.key import Key, program_key
from xla_cache.payload import pack, unpack
from xla_cache.program import Program
from xla_cache.record import Memory, Record, Seconds
from xla_cache.store import FAST, Store, compress, decompress
from xla_cache.tree import encode_tree

logger = logging.getLogger(__name__)


class Source(Protocol):
    """Where programs are kept: a store or a bundle."""

    def find(self, key: Key) -> Record | None: ...

    def records(self) -> Any: ...

    def packed(self, record: Record) -> bytes: ...


@dataclass(frozen=True)
class Found:
    """The record of a program that need not be compiled, and where it is: `bundle` or `store`."""

    record: Record
    source: Source
    place: str


def hlo_digest(lowered: jax.stages.Lowered) -> str:
    """sha256 of the lowered module without debug information: the place of a checkout does not change it."""
    return hashlib.sha256(lowered.as_text().encode()).hexdigest()


class ProgramCache:
    """Finds and keeps the programs of one build. `context` holds the key parts that all its programs share.

    A place that is damaged, full or read-only never stops anything: it is warned about once, and the compiler does the work. Only
    with `require_bundle` is a program that the bundle cannot give an error.
    """

    def __init__(
        self,
        context: Mapping[str, str],
        *,
        store: Store | None = None,
        bundle: Source | None = None,
        require_bundle: bool = False,
        rebuild: str = "",
        level: int = FAST,
        link: Callable[[bytes], None] | None = None,
    ) -> None:
        """
        Args:
            rebuild: what to do about a required bundle that is damaged.
            level: how hard to compress.
            link: registers the custom calls that it finds in the lowered text or the executable of a program, before that is
                compiled or loaded; or raises `LinkError`.
        """
        self.context = dict(context)
        self.store = store
        self.bundle = bundle
        self.require_bundle = require_bundle
        self.keys: dict[str, Key] = {}
        self.rebuild = rebuild
        self._level = level
        self._link = link
        self._lock = threading.Lock()
        self._warned: set[str] = set()

    def find(self, program: Program) -> Found | None:
        """What is kept under the program's key.

        Raises:
            RefusedError: with `require_bundle`, the bundle is damaged.
        """
        key = self.key(program)
        for place, source in self._sources:
            try:
                record = source.find(key)
            except CacheError as error:
                self.problem(place, error)
            else:
                if record is not None:
                    return Found(record, source, place)
        return None

    def find_lowered(self, program: Program, lowered: jax.stages.Lowered) -> Found | None:
        """What is kept with the same HLO, where only what shapes the HLO differs: source code, most often.

        It is also kept under the program's own key, so that the next start need not lower.
        """
        key, hlo = self.key(program), hlo_digest(lowered)
        for found in self._known:
            record = found.record
            if record.hlo != hlo or record.key.compiled_parts != key.compiled_parts:
                continue
            try:
                if record.out_tree != encode_tree(lowered.out_tree, program.nodes):
                    continue
                packed = found.source.packed(record)
            except CacheError as error:
                self.problem(found.place, error)
                continue
            self._write(replace(record, parts=key.parts), packed)
            return found
        return None

    def expect(self, programs: Sequence[Program]) -> list[str]:
        """Name all programs of the build, whether they are asked for now or later.

        Returns the names of those for which the bundle, where there is one, has no key that differs in traced parts alone.
        """
        self.keys = {program.name: self.key(program) for program in programs}
        if self.bundle is None:
            return []
        held = [record.key.compiled_parts for record in self.bundle.records()]
        return [name for name, key in self.keys.items() if key.compiled_parts not in held]

    def link(self, program: bytes) -> None:
        """Register what a program calls: its lowered text, or its executable as it was written.

        Raises:
            LinkError: it cannot be.
        """
        if self._link is not None:
            self._link(program)

    def key(self, program: Program) -> Key:
        """The key of a program of this build."""
        return program_key(program, self.context)

    def why_missing(self, program: Program) -> str:
        """Which parts of the key differ from the nearest program that is kept."""
        key = self.key(program)
        nearest = min(
            (
                (record.program != program.name, len(differences), created_last, differences)
                for record in (found.record for found in self._known)
                for created_last, differences in [(-record.created, key.differences(record.key))]
            ),
            default=None,
            key=lambda entry: entry[:3],
        )
        if nearest is None:
            return "nothing is kept yet"
        other_name, _, _, differences = nearest
        if not differences:
            return "it was kept, and cannot be loaded"
        if other_name:
            return f"no program {program.name!r} is kept"
        return "; ".join(map(str, differences))

    def keep(
        self, program: Program, lowered: jax.stages.Lowered, compiled: jax.stages.Compiled, seconds: Seconds
    ) -> Record | None:
        """Keep what the compiler made; None where there is no store or it cannot be written.

        `compiled` must come from the compiler, never from JAX's own disk cache.
        """
        if self.store is None:
            return None
        try:
            payload, out_tree = pack(compiled, program)
            packed = compress(payload, level=self._level)
            record = Record(
                parts=self.key(program).parts,
                hlo=hlo_digest(lowered),
                file=hashlib.sha256(packed).hexdigest(),
                size=len(payload),
                packed=len(packed),
                out_tree=out_tree,
                memory=Memory.of(compiled),
                cycles=estimated_cycles(compiled) if program.platform == "tpu" else None,
                seconds=seconds,
                created=time.time(),
            )
        except CacheError as error:
            self.problem("store", error)
            return None
        return record if self._write(record, packed) else None

    def load(self, program: Program, found: Found) -> jax.stages.Compiled | None:
        """Read, verify and load an executable; None when it is not what was written, with a warning.

        Raises:
            RefusedError: with `require_bundle`, the bundle's executable is damaged.
            LinkError: it calls what cannot be registered.
        """
        try:
            payload = decompress(found.source.packed(found.record), found.record)
            self.link(payload)
            return unpack(payload, found.record.out_tree, program)
        except CacheError as error:
            self.problem(found.place, error)
            return None

    def without(self, program: Program, error: Exception) -> ProgramCache:
        """A cache that does not have the executable of `program`, which was loaded and failed with `error`.

        Raises:
            RefusedError: it came from a required bundle.
        """
        found = self.find(program)
        place = "store" if found is None else found.place
        self.problem(place, CacheError(f"the executable of {program.name!r} was loaded and does not run: {error}"))
        if found is not None and self.store is not None and found.source is self.store:
            try:
                self.store.forget(found.record)
            except CacheError as failure:
                self.problem("store", failure)
                return ProgramCache(self.context, link=self._link)
        return ProgramCache(self.context, store=self.store, level=self._level, link=self._link)

    def is_whole(self, found: Found) -> bool:
        """Whether the executable is there and undamaged; a problem is warned about."""
        try:
            found.source.packed(found.record)
        except CacheError as error:
            self.problem(found.place, error)
            return False
        return True

    def problem(self, place: str, error: CacheError) -> None:
        """Warn, once per problem; with `require_bundle` a problem of the bundle is an error.

        Raises:
            RefusedError: the bundle is required.
        """
        if place == "bundle" and self.require_bundle:
            raise RefusedError(f"{error}. {self.rebuild}") from error
        with self._lock:
            first = str(error) not in self._warned
            self._warned.add(str(error))
        if first:
            logger.warning("%s: %s; the program is compiled instead", place, error)

    def _write(self, record: Record, packed: bytes) -> bool:
        if self.store is None:
            return False
        try:
            self.store.write(record, packed)
        except CacheError as error:
            self.problem("store", error)
            return False
        return True

    @cached_property
    def _sources(self) -> list[tuple[str, Source]]:
        store = None if self.require_bundle else self.store
        pairs: list[tuple[str, Source | None]] = [("bundle", self.bundle), ("store", store)]
        return [(place, source) for place, source in pairs if source is not None]

    @cached_property
    def _known(self) -> list[Found]:
        return [Found(record, source, place) for place, source in self._sources for record in source.records()]
