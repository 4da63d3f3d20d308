"""Whether a start's programs call the CPU's own products and attention, and what is begun for them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path

from jaxengine.options.config import EngineConfig
from jaxengine.startup.model_plan import ModelPlan
from jaxengine.startup.native_libraries import (
    MIN_WEIGHT_BYTES,
    find_native,
    known_identities,
    known_native,
    native_directory,
)
from jaxengine.startup.program_context import NATIVE
from jaxengine.startup.progress import Progress
from pallas_kernels.native import FOLDER, PACKED_PRODUCT, PRODUCT, RMS_NORM, SYMBOLS
from xla_cache import Bundle, CacheError, LinkError

logger = logging.getLogger("jaxengine")

MIN_ENCODER_BYTES = 32 << 20
"""As `MIN_WEIGHT_BYTES`, of a model whose texts are multiplied whole."""

_refused: set[str] = set()


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


def begin_native(model: ModelPlan) -> None:
    """Begin to build what every such model's programs call; they say what else when they are traced."""
    if model.native is None:
        return
    libraries = known_native(model.native)
    if model.codes:
        libraries.begin_coder()
    libraries.begin([PACKED_PRODUCT if model.config.whole_rows else PRODUCT, RMS_NORM])


def native_linker(model: ModelPlan) -> Callable[[bytes], None] | None:
    """What registers the libraries that a model's programs call, of `ProgramCache.link`; None of one whose programs call none."""
    return None if model.native is None else known_native(model.native).link


def refuse_native(error: LinkError) -> None:
    """Warn that libraries cannot be built; no program of this process that is traced from now on calls them."""
    _warn(error)
    _refused.update(known_identities())


def register_native(directory: Path, folder: Path = FOLDER, symbols: Iterable[str] = SYMBOLS) -> tuple[str, bool]:
    """The identity of libraries whose custom calls are registered, and whether any had to be built.

    Raises:
        CacheError: they cannot be built, kept or loaded.
    """
    libraries = find_native(directory, folder)
    return libraries.identity, libraries.register(symbols)
