"""The libraries of the CPU's own products and attention: found or built beside the rest of a start, and registered with XLA.

It loads JAX and nothing else of the device half, so that a build can begin before that is loaded (`native_ahead.py`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory

import jax

from pallas_kernels.coded_matmul.coding import SOURCE, Coder, code_by
from pallas_kernels.native import FOLDER, SOURCES, calls, registered_name
from xla_cache import CacheError, LinkError, available_cores, default_directory
from xla_cache.library import Library, Recipe, obtain_library

logger = logging.getLogger("jaxengine")

MIN_WEIGHT_BYTES = 64 << 20
"""Of a model whose own products pay for being built once."""


CODED_NEEDS = frozenset({"__AVX512F__", "__AVX512BW__", "__AVX512DQ__", "__AVX512VL__"})
"""What a compiler says of a machine for which coded matrices are multiplied: vectors of 64 bytes (`float_tile.h`)."""


class NativeLibraries:
    """The libraries of one identity (`pallas_kernels.native`). Each is built when it is first asked for, in a thread beside."""

    def __init__(self, recipe: Recipe, directory: Path | None, folder: Path = FOLDER) -> None:
        """`directory` keeps them; None: nothing does."""
        self.identity = recipe.identity
        self.multiplies_coded = recipe.compiler.macros >= CODED_NEEDS
        self._recipe = recipe
        self._kept_in = directory
        self._folder = folder
        self._lock = threading.Lock()
        self._building: dict[str, Future[Library]] = {}
        self._registered: set[str] = set()

    def begin(self, symbols: Iterable[str]) -> None:
        """Load or build what has these custom calls, without waiting."""
        for source in _sources(symbols):
            self._begin(source)

    def _begin(self, source: str) -> None:
        with self._lock:
            if source not in self._building:
                self._building[source] = self._threads.submit(self._obtain, source)

    def register(self, symbols: Iterable[str]) -> bool:
        """Wait for what has these custom calls, and register them. Whether any had to be built.

        Raises:
            CacheError: it cannot be built, kept or loaded.
        """
        symbols = tuple(symbols)
        self.begin(symbols)
        built = False
        for source in _sources(symbols):
            library = self._building[source].result()
            built |= library.built
            with self._lock:
                if source not in self._registered:
                    self._register(source, library)
                    self._registered.add(source)
        return built

    def begin_coder(self) -> None:
        """Load or build what codes matrices while they are loaded, and have it do so in this process."""
        self._begin(SOURCE)
        code_by(self._coder)

    def _coder(self) -> Coder:
        try:
            return Coder(self._building[SOURCE].result().symbols)
        except CacheError as error:
            raise LinkError(str(error)) from error

    def link(self, program: bytes) -> None:
        """Register what a program calls that is about to be compiled or loaded (`pallas_kernels.native.calls`).

        Raises:
            LinkError: it cannot be.
        """
        try:
            self.register(calls(program, self.identity))
        except CacheError as error:
            raise LinkError(str(error)) from error

    @cached_property
    def _threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(available_cores(), thread_name_prefix="native")

    @cached_property
    def _directory(self) -> Path:
        if self._kept_in is not None:
            return self._kept_in
        self._nowhere = TemporaryDirectory()  # until the process ends
        return Path(self._nowhere.name)

    def _obtain(self, source: str) -> Library:
        begun = time.perf_counter()
        library = obtain_library(self._folder / source, self._directory, self._recipe)
        if library.built:
            logger.info("native: %s was built in %.1f s", source, time.perf_counter() - begun)
        return library

    def _register(self, source: str, library: Library) -> None:
        for symbol in SOURCES[source]:
            capsule = jax.ffi.pycapsule(getattr(library.symbols, symbol))
            jax.ffi.register_ffi_target(registered_name(symbol, self.identity), capsule, platform="cpu")


def _sources(symbols: Iterable[str]) -> list[str]:
    wanted = set(symbols)
    return [source for source, own in SOURCES.items() if wanted.intersection(own)]


_libraries: dict[str, NativeLibraries] = {}
_finding = threading.Lock()


def native_directory() -> Path:
    """Where libraries are kept: beside the store of programs."""
    return default_directory().with_name("native")


def find_native(directory: Path | None, folder: Path = FOLDER) -> NativeLibraries:
    """The libraries that the sources of `folder` become here.

    Raises:
        CacheError: there is no compiler.
    """
    recipe = Recipe.of(folder)
    with _finding:
        return _libraries.setdefault(recipe.identity, NativeLibraries(recipe, directory, folder))


def known_native(identity: str) -> NativeLibraries:
    """Those of an identity that `find_native` has met in this process."""
    return _libraries[identity]


def multiplies_coded(native: str | None) -> bool:
    """Whether libraries of this identity multiply with matrices of bfloat16 that are kept in 12 bits (`schemes.coded`)."""
    return native is not None and known_native(native).multiplies_coded


def known_identities() -> tuple[str, ...]:
    """All that it has met."""
    return tuple(_libraries)
