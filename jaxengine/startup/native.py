"""The CPU's own products and attention: built, registered with XLA, and named for the programs that are to use them."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from tempfile import TemporaryDirectory

import jax

from jaxengine.options.config import EngineConfig
from jaxengine.startup.model_plan import ModelPlan
from jaxengine.startup.program_context import NATIVE
from jaxengine.startup.progress import Progress
from pallas_kernels.native import SOURCE, SYMBOLS, registered_name
from xla_cache import Bundle, CacheError, default_directory
from xla_cache.library import Library, obtain_library

logger = logging.getLogger("jaxengine")

MIN_WEIGHT_BYTES, MIN_ENCODER_BYTES = 64 << 20, 32 << 20
"""Of a model whose own products pay for being built once, and of one whose texts are multiplied whole."""

_registered: set[str] = set()
_registering = threading.Lock()


def obtain_native(
    config: EngineConfig, model: ModelPlan, progress: Progress, bundle: Bundle | None = None
) -> str | None:
    """The identity of the library that a model's programs call, registered in this process; None: XLA does what it would do.

    It is for one CPU device of this machine, and for models of `MIN_WEIGHT_BYTES` or more, encoders of `MIN_ENCODER_BYTES`.
    Programs of `--target cpu` are for any such machine, and those of a bundle are what they are: both call what was chosen where
    they were compiled. The library lies in the cache directory of the environment or the user, whatever `xla_cache_path` names,
    so that it is built once; with `off` nothing is kept, and it is used only where a bundle asks for it.
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
        with progress.phase("native"), TemporaryDirectory() as nowhere:
            name, built = register_native(Path(nowhere) if off else native_directory())
    except CacheError as error:
        logger.warning(
            "matrix products and attention are XLA's, which are slower on a CPU than the engine's own: %s", error
        )
        return None
    how = f"built in {progress.phases['native']:.1f} s" if built else "loaded"
    progress.say("native", f"the engine's own ({name}), {how}")
    return name


def _weight_bytes(model: ModelPlan) -> int:
    return sum(struct.size * struct.dtype.itemsize for struct in model.parameters.values())


def native_directory() -> Path:
    """Where the library is kept: beside the store of programs."""
    return default_directory().with_name("native")


def register_native(directory: Path, source: Path = SOURCE) -> tuple[str, bool]:
    """The identity of the registered library (`pallas_kernels.native.calling`), and whether it had to be built of `source`.

    Raises:
        CacheError: they cannot be built, kept or loaded.
    """
    library = obtain_library(source, directory)
    _register(library)
    return library.identity, library.built


def _register(library: Library) -> None:
    with _registering:
        if library.identity in _registered:
            return
        for symbol in SYMBOLS:
            capsule = jax.ffi.pycapsule(getattr(library.symbols, symbol))
            jax.ffi.register_ffi_target(registered_name(symbol, library.identity), capsule, platform="cpu")
        _registered.add(library.identity)
