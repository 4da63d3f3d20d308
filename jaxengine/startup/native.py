"""The CPU's own products and attention: built beside everything else of a start, and registered with XLA before the first program
that calls them is compiled or loaded."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory

import jax

from jaxengine.options.config import EngineConfig
from jaxengine.startup.model_plan import ModelPlan
from jaxengine.startup.program_context import NATIVE
from jaxengine.startup.progress import Progress
from pallas_kernels.native import FOLDER, PACKED_PRODUCT, PRODUCT, SOURCES, SYMBOLS, calls, registered_name
from xla_cache import Bundle, CacheError, LinkError, available_cores, default_directory
from xla_cache.library import Library, Recipe, obtain_library

logger = logging.getLogger("jaxengine")

MIN_WEIGHT_BYTES, MIN_ENCODER_BYTES = 64 << 20, 32 << 20
"""Of a model whose own products pay for being built once, and of one whose texts are multiplied whole."""


class NativeLibraries:
    """The libraries of one identity (`pallas_kernels.native`). Each is built when it is first asked for, in a thread beside."""

    def __init__(self, recipe: Recipe, directory: Path | None, folder: Path = FOLDER) -> None:
        """`directory` keeps them; None: nothing does."""
        self.identity = recipe.identity
        self._recipe = recipe
        self._kept_in = directory
        self._folder = folder
        self._lock = threading.Lock()
        self._building: dict[str, Future[Library]] = {}
        self._registered: set[str] = set()

    def begin(self, symbols: Iterable[str]) -> None:
        """Load or build what has these custom calls, without waiting."""
        with self._lock:
            for source in _sources(symbols):
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
_refused: set[str] = set()
_finding = threading.Lock()


def obtain_native(
    config: EngineConfig, model: ModelPlan, progress: Progress, bundle: Bundle | None = None
) -> str | None:
    """The identity of the libraries that a model's programs call; None: XLA does what it would do. Nothing is built yet.

    They are for one CPU device of this machine, and for models of `MIN_WEIGHT_BYTES` or more, encoders of `MIN_ENCODER_BYTES`.
    Programs of `--target cpu` are for any such machine, and those of a bundle are what they are: both call what was chosen where
    they were compiled. Libraries lie in the cache directory of the environment or the user, whatever `xla_cache_path` names, so
    that they are built once; with `off` nothing is kept, and they are used only where a bundle asks for them.
    """
    if model.platform != "cpu" or model.layout.devices is not None or model.target.name != "local":
        return None
    if bundle is not None and NATIVE not in bundle.manifest.context:
        return None
    if _weight_bytes(model) < (MIN_ENCODER_BYTES if model.config.whole_rows else MIN_WEIGHT_BYTES):
        return None
    off = config.compilation.xla_cache_path == "off"
    if off and bundle is None:
        progress.say("native", "XLA's: xla_cache_path is off, and the engine's own are kept or not used")
        return None
    try:
        libraries = find_native(None if off else native_directory())
    except CacheError as error:
        _warn(error)
        return None
    if libraries.identity in _refused:
        return None
    progress.say("native", f"the engine's own ({libraries.identity})")
    return libraries.identity


def _weight_bytes(model: ModelPlan) -> int:
    return sum(struct.size * struct.dtype.itemsize for struct in model.parameters.values())


def _warn(error: Exception) -> None:
    logger.warning(
        "matrix products and attention are XLA's, which are slower on a CPU than the engine's own: %s", error
    )


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


def begin_native(model: ModelPlan) -> None:
    """Begin to build what every such model's programs call; they say what else when they are traced."""
    if model.native is not None:
        _libraries[model.native].begin([PACKED_PRODUCT if model.config.whole_rows else PRODUCT])


def native_linker(model: ModelPlan) -> Callable[[bytes], None] | None:
    """What registers the libraries that a model's programs call, of `ProgramCache.link`; None of one whose programs call none."""
    return None if model.native is None else _libraries[model.native].link


def refuse_native(error: LinkError) -> None:
    """Warn that libraries cannot be built; no program of this process that is traced from now on calls them."""
    _warn(error)
    _refused.update(_libraries)


def register_native(directory: Path, folder: Path = FOLDER, symbols: Iterable[str] = SYMBOLS) -> tuple[str, bool]:
    """The identity of libraries whose custom calls are registered, and whether any had to be built.

    Raises:
        CacheError: they cannot be built, kept or loaded.
    """
    libraries = find_native(directory, folder)
    return libraries.identity, libraries.register(symbols)
