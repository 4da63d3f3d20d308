"""How a model's matrices are kept: what the `quantization` option and config.json say of them, together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from jaxengine.device.layers.schemes import EMBEDDING, HEAD, is_numbers, is_weight
from jaxengine.device.layers.schemes.by_path import SCHEMES, Schemes
from jaxengine.device.layers.schemes.dense import DENSE
from jaxengine.device.layers.schemes.stored import Stored
from jaxengine.device.models.config.quantization import DECODED, METHODS, read_quantization
from jaxengine.device.weights.cache_scales import WithoutCacheScales
from jaxengine.device.weights.checkpoint import OrbaxCheckpoint, TensorCheckpoint
from jaxengine.device.weights.matching import source_pattern
from jaxengine.device.weights.rules import Ignore, Rule
from jaxengine.device.weights.unpacked import UnpackedCheckpoint
from jaxengine.errors import ConfigError

KERNELS = ("_marlin", "_bitblas", "_fp4")
"""What vLLM adds to a method's name for one of its kernels, or for the numbers."""


def choose_schemes(option: str | None, config_json: Mapping[str, Any], rules: Sequence[Rule | Ignore]) -> Schemes:
    """What keeps each matrix: as the checkpoint has it, if that is quantised, else as the option says.

    Raises:
        ConfigError: neither knows a way, or they contradict each other.
    """
    stored = read_quantization(config_json)
    method = option
    for kernel in KERNELS:
        method = method and method.removesuffix(kernel)
    if stored is not None and stored.method in DECODED and option is not None and method != stored.method:
        return replace(Schemes.by_option(option), decoded=stored)
    if stored is None:
        if method in METHODS and method not in SCHEMES:
            raise ConfigError(
                f"quantization={option!r} is how a checkpoint is stored, and config.json says of this one that it is not "
                f"quantised; leave the option out, or make matrices while loading: {', '.join(SCHEMES)}"
            )
        return Schemes.by_option(option)
    if method not in (None, stored.method):
        raise ConfigError(
            f"quantization={option!r} was asked for, and the checkpoint is quantised already, in {stored.method!r}; leave the "
            "option out, or name a checkpoint that is not quantised"
        )
    return Schemes(stored.method, stored=Stored.by(stored, rules))


def choose_head(schemes: Schemes, lm_head_dtype: str, *, tied: bool) -> Schemes:
    """`schemes`, and the matrix of the vocabulary as the `lm_head_dtype` option says; `tied`: it is the embedding's, too.

    Raises:
        ConfigError: the checkpoint has it quantised.
    """
    if lm_head_dtype == "auto":
        return schemes
    path = head_path(tied=tied)
    if schemes.of(path) is not DENSE:
        raise ConfigError(
            f"lm_head_dtype={lm_head_dtype!r} was asked for, and the checkpoint has its head in {schemes.of(path).dtype} "
            f"({schemes.name}); leave the option out"
        )
    return replace(schemes, vocabulary=(path, SCHEMES[lm_head_dtype]))


def head_path(*, tied: bool) -> str:
    """The parameter that is the matrix of the vocabulary."""
    return EMBEDDING if tied else HEAD


def unpacked(
    checkpoint: TensorCheckpoint | OrbaxCheckpoint, schemes: Schemes, rules: Sequence[Rule | Ignore]
) -> TensorCheckpoint | OrbaxCheckpoint:
    """The checkpoint as the weight table of `schemes` reads it. `rules` are those of a plain one."""
    if isinstance(checkpoint, OrbaxCheckpoint):
        return checkpoint
    checkpoint = WithoutCacheScales(checkpoint)
    if schemes.decoded is not None:
        return UnpackedCheckpoint(checkpoint, schemes.decoded.of, dense=lambda name: True)
    if schemes.stored is None:
        return checkpoint
    others = [
        source_pattern(rule.source)
        for rule in rules
        if isinstance(rule, Rule) and not (is_numbers(rule.target) and schemes.is_stored(rule.target))
    ]
    return UnpackedCheckpoint(
        checkpoint,
        schemes.stored.formats.of,
        dense=lambda name: any(other.fullmatch(name) for other in others),
    )


def describe_matrices(
    parameters: Mapping[str, jax.ShapeDtypeStruct], schemes: Schemes, dtype: np.dtype[Any]
) -> str | None:
    """One line for the log: which matrices are quantised, which are not, and what that saves; None without any."""
    ways: dict[str, list[str]] = defaultdict(list)
    head, others = "", "embeddings, head, norms and routers"
    kept = plain = 0
    for path, struct in filter(lambda item: is_numbers(item[0]), parameters.items()):
        scheme, module = schemes.of(path), path.rpartition(".")[0]
        if is_weight(path):
            ways["" if scheme.dtype == "model" else scheme.dtype].append(module)
        elif scheme.dtype != "model":
            tied = path == EMBEDDING
            head = f"; head{' and embedding, which are one,' if tied else ''} in {scheme.dtype}"
            others = f"{'' if tied else 'embeddings, '}norms and routers"
        if scheme.dtype != "model":
            own = [
                part
                for other, part in parameters.items()
                if other.startswith(f"{module}.") and other != f"{module}.bias"
            ]
            kept += sum(part.size * part.dtype.itemsize for part in own)
            plain += struct.size * (2 if struct.dtype == np.uint8 else 1) * dtype.itemsize
    left = ways.pop("", [])
    if schemes.name is None and not head:
        return None
    counted = ", ".join(f"{len(paths)} in {way}" for way, paths in ways.items()) or "none"
    named = f" but {', '.join(left[:3])}{' ...' if len(left) > 3 else ''} ({len(left)})" if left and ways else ""
    layers = f"matrices of layers by {schemes.name}: {counted}{named}" if schemes.name else "no matrices of layers"
    return (
        f"{layers}{head}; {_mib(kept)} of memory in all, scales included, "
        f"{_mib(plain)} in {dtype}; {others} are not quantised"
    )


def _mib(count: int) -> str:
    return f"{count / 2**20:,.1f} MiB"
