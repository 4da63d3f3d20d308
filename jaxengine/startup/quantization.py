"""How a model's matrices are kept: what the `quantization` option and config.json say of them, together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxengine.errors import ConfigError
from jaxengine.layers.schemes import SCHEMES, WEIGHT, Schemes, find_scheme
from jaxengine.layers.schemes.stored import AsStored
from jaxengine.models.interface import CausalLM
from jaxengine.models.quantization_config import DECODED, METHODS, read_quantization
from jaxengine.weights.cache_scales import WithoutCacheScales
from jaxengine.weights.checkpoint import OrbaxCheckpoint, TensorCheckpoint
from jaxengine.weights.matching import source_pattern
from jaxengine.weights.mxfp4 import DecodedCheckpoint
from jaxengine.weights.rules import Ignore, Rule
from jaxengine.weights.unpacked import UnpackedCheckpoint

KERNELS = ("_marlin", "_bitblas")
"""What vLLM adds to a method's name for one of its kernels."""


def choose_schemes(option: str | None, config_json: Mapping[str, Any], model_class: type[CausalLM]) -> Schemes:
    """What keeps each matrix: as the checkpoint has it, if that is quantised, else as the option says.

    Raises:
        ConfigError: neither knows a way, or they contradict each other.
    """
    stored = read_quantization(config_json)
    method = option
    for kernel in KERNELS:
        method = method and method.removesuffix(kernel)
    if stored is not None and stored.method in DECODED and option is not None and method != stored.method:
        return find_scheme(option)
    if stored is None:
        if method in METHODS and method not in SCHEMES:
            raise ConfigError(
                f"quantization={option!r} is how a checkpoint is stored, and config.json says of this one that it is not "
                f"quantised; leave the option out, or make matrices while loading: {', '.join(SCHEMES)}"
            )
        return find_scheme(option)
    if method not in (None, stored.method):
        raise ConfigError(
            f"quantization={option!r} was asked for, and the checkpoint is quantised already, in {stored.method!r}; leave the "
            "option out, or name a checkpoint that is not quantised"
        )
    return AsStored.by(stored, model_class.WEIGHTS)


def unpacked(
    checkpoint: TensorCheckpoint | OrbaxCheckpoint, schemes: Schemes, rules: Sequence[Rule | Ignore]
) -> TensorCheckpoint | OrbaxCheckpoint:
    """The checkpoint as the weight table of `schemes` reads it. `rules` are the family's own."""
    if isinstance(checkpoint, OrbaxCheckpoint):
        return checkpoint
    if isinstance(checkpoint, DecodedCheckpoint) and isinstance(schemes, AsStored):
        checkpoint = checkpoint.as_stored()
    checkpoint = WithoutCacheScales(checkpoint)
    if not isinstance(schemes, AsStored):
        return checkpoint
    others = [
        source_pattern(rule.source)
        for rule in rules
        if isinstance(rule, Rule) and rule.target.rpartition(".")[2] != WEIGHT
    ]
    return UnpackedCheckpoint(
        checkpoint,
        schemes.formats.of,
        dense=lambda module: any(other.fullmatch(f"{module}.{WEIGHT}") for other in others),
    )


def describe_matrices(
    parameters: Mapping[str, jax.ShapeDtypeStruct], schemes: Schemes, dtype: np.dtype[Any]
) -> str | None:
    """One line for the log: which matrices are quantised, which are not, and what that saves; None without any."""
    if schemes.name is None:
        return None
    ways: dict[str, list[str]] = defaultdict(list)
    kept = plain = 0
    for path, struct in parameters.items():
        if path.rpartition(".")[2] != WEIGHT:
            continue
        scheme = schemes.of(path)
        ways["" if scheme.name is None else scheme.dtype].append(path.removesuffix(f".{WEIGHT}"))
        if scheme.name is not None:
            module = path.removesuffix(WEIGHT)
            own = [part for other, part in parameters.items() if other.startswith(module) and other != f"{module}bias"]
            kept += sum(part.size * part.dtype.itemsize for part in own)
            plain += struct.size * (2 if struct.dtype == np.uint8 else 1) * dtype.itemsize
    left = ways.pop("", [])
    counted = ", ".join(f"{len(paths)} in {way}" for way, paths in ways.items()) or "none"
    named = f" but {', '.join(left[:3])}{' ...' if len(left) > 3 else ''} ({len(left)})" if left else ""
    return (
        f"matrices of layers by {schemes.name}: {counted}{named}; {_mib(kept)} of memory in all, scales included, "
        f"{_mib(plain)} in {dtype}; embeddings, head, norms and routers are not quantised"
    )


def _mib(count: int) -> str:
    return f"{count / 2**20:,.1f} MiB"
