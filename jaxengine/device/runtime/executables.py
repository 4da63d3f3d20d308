"""The table of compiled programs: all that the serving loop may call."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax

from jaxengine.errors import BundleError, CapacityError, UnplannedShapeError
from xla_cache import CacheError, CompileRecord, Program, ProgramCache, compile_programs, obtain

logger = logging.getLogger(__name__)


class Executables:
    """Program name to compiled program.

    A name that is missing raises `UnplannedShapeError`, unless `on_demand` is given: then it is compiled there and then, with a
    warning each time.
    """

    def __init__(
        self,
        compiled: dict[str, jax.stages.Compiled],
        *,
        on_demand: dict[str, Program] | None = None,
        loaded: dict[str, Program] | None = None,
        cache: ProgramCache | None = None,
    ) -> None:
        """`loaded` are the programs that came from `cache`."""
        self._compiled = compiled
        self._loaded = loaded or {}
        self._cache = cache
        self._on_demand = on_demand or {}
        self._lock = threading.Lock()

    @classmethod
    def compile(
        cls,
        programs: Sequence[Program],
        *,
        threads: int | None,
        on_done: Callable[[CompileRecord, jax.stages.Compiled], None] | None = None,
        cache: ProgramCache | None = None,
    ) -> tuple[Executables, list[CompileRecord]]:
        """Load every program from `cache`, or compile it ahead, in parallel.

        Raises:
            CapacityError: the compiler says that a program does not fit the device.
            BundleError: a bundle is required, and a program in it is damaged or not the one that is needed.
        """
        try:
            done = compile_programs(programs, threads=threads, on_done=on_done, cache=cache)
        except CacheError as error:
            raise BundleError(str(error)) from error
        except RuntimeError as error:
            if "RESOURCE_EXHAUSTED" in str(error):
                raise CapacityError(
                    f"{error}. Use fewer tokens a step (max_num_batched_tokens), fewer sequences (max_num_seqs) "
                    "or more devices (tensor_parallel_size)."
                ) from error
            raise
        records = [record for _, record in done.values()]
        from_cache = {record.name for record in records if record.origin != "compiler"}
        loaded = {program.name: program for program in programs if program.name in from_cache}
        compiled = {name: compiled for name, (compiled, _) in done.items()}
        return cls(compiled, loaded=loaded, cache=cache), records

    @classmethod
    def lazy(cls, programs: Sequence[Program], cache: ProgramCache | None = None) -> Executables:
        """Compile nothing ahead: each program is loaded or compiled when it is first called."""
        return cls({}, on_demand={program.name: program for program in programs}, cache=cache)

    def add(self, name: str, compiled: jax.stages.Compiled) -> None:
        """One more program, from any thread."""
        self._compiled[name] = compiled

    def compile_again(self, name: str, error: Exception) -> bool:
        """Compile a program whose first run failed with `error`, if it was loaded; False if it came from the compiler.

        Raises:
            BundleError: it came from a required bundle.
        """
        program = self._loaded.pop(name, None)
        if program is None or self._cache is None:
            return False
        try:
            self._compiled[name], _ = obtain(program, self._cache.without(program, error))
        except CacheError as refused:
            raise BundleError(str(refused)) from error
        return True

    def __getitem__(self, name: str) -> jax.stages.Compiled:
        found = self._compiled.get(name)
        return found if found is not None else self._compile_now(name)

    def __contains__(self, name: str) -> bool:
        return name in self._compiled or name in self._on_demand

    def __len__(self) -> int:
        return len(self._compiled)

    def items(self) -> list[tuple[str, Any]]:
        return list(self._compiled.items())

    def _compile_now(self, name: str) -> jax.stages.Compiled:
        with self._lock:
            if name in self._compiled:
                return self._compiled[name]
            if name not in self._on_demand:
                raise UnplannedShapeError(
                    f"no program {name!r} was compiled; the planned ones are {', '.join(sorted(self._compiled))}"
                )
            compiled, record = obtain(self._on_demand[name], self._cache)
            logger.warning(
                "%s %r on first use in %.1f s, while a request waited; choose warmup full or background to have it ahead",
                "compiled" if record.origin == "compiler" else "loaded",
                name,
                record.wall_s,
            )
            self._compiled[name] = compiled
            return compiled
