"""The CPU's own products begun before the device half of the engine is loaded, where a start will call them.

To load it keeps one core busy for a second, and to build them another for four. What is begun here `native.py` finds begun.
"""

from __future__ import annotations

import json
import threading
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from jaxengine.options.config import EngineConfig, ModelConfig
from jaxengine.options.parallel import ParallelConfig, asked_platforms

DECODERS = ("ForCausalLM", "ForConditionalGeneration")
"""How the names of architectures end whose programs call what is begun."""
WEIGHTS = (".safetensors", ".gguf", ".bin")
PLUGINS = ("libtpu", "jax_plugins")
"""What JAX finds devices other than the CPU with."""


def begin_ahead(config: EngineConfig) -> None:
    """Begin to find or build them on a thread, if options and the model's files on this machine say that this start calls them.

    JAX is loaded for it, and of a hub id the hub's library. Errors are left to the start, which meets them again.
    """
    compilation = config.compilation
    if compilation.xla_cache_path == "off" or compilation.bundle is not None or not _on_one_cpu(config.parallel):
        return
    from jaxengine.startup.native_libraries import MIN_WEIGHT_BYTES

    path = _files(config.model)
    if path is not None and _is_decoder(path, MIN_WEIGHT_BYTES):
        threading.Thread(target=_begin, name="native ahead", daemon=True).start()


def _files(model: ModelConfig) -> Path | None:
    """Where the model's files are: the path that is named, or what the hub's cache has of a hub id."""
    if model.model is None:
        return None
    path = Path(model.model).expanduser()
    if path.exists():
        return path
    from huggingface_hub import try_to_load_from_cache

    with suppress(ValueError, OSError):  # no such id
        found = try_to_load_from_cache(
            model.model, "config.json", cache_dir=model.download_dir, revision=model.revision
        )
        if isinstance(found, str):
            return Path(found).parent
    return None


def _begin() -> None:
    from jaxengine.startup.native_libraries import find_native, native_directory
    from pallas_kernels.native import PRODUCT, RMS_NORM
    from xla_cache import CacheError

    with suppress(CacheError):
        find_native(native_directory()).begin([PRODUCT, RMS_NORM])


def _on_one_cpu(parallel: ParallelConfig) -> bool:
    if max(parallel.tensor_parallel_size, parallel.pipeline_parallel_size, parallel.nnodes) > 1:
        return False
    asked = asked_platforms(parallel.device)
    return asked == ("cpu",) if asked else all(find_spec(name) is None for name in PLUGINS)


def _is_decoder(path: Path, least_bytes: int) -> bool:
    """Whether a directory, or a GGUF file, holds a decoder with so many bytes of weights."""
    try:
        if path.is_file():
            return path.suffix == ".gguf" and path.stat().st_size >= least_bytes
        architectures = json.loads((path / "config.json").read_text())["architectures"]
        size = sum(file.stat().st_size for file in path.iterdir() if file.suffix in WEIGHTS)
        return size >= least_bytes and any(str(name).endswith(DECODERS) for name in architectures)
    except (OSError, ValueError, KeyError, TypeError):
        return False  # the start says what is wrong with it
