"""Scales of quantised KV caches that a checkpoint brings: of each layer one for keys and one for values, or one for each KV head.

    self_attn.k_scale, self_attn.v_scale              also with attn. between; of all or by head (compressed-tensors, fp8)
    self_attn.k_proj.k_scale, self_attn.v_proj.v_scale                                                          (ModelOpt)
    self_attn.k_proj.output_scale, self_attn.v_proj.output_scale                             (older compressed-tensors)
    self_attn.kv_scale                                                                         one for both (older fp8)

What is stored times its scale is the key or the value. They are no part of a matrix, and no rule of a weight table reads them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from jaxengine.device.weights.checkpoint import TensorCheckpoint
from jaxengine.device.weights.mapped_file import StoredTensor
from jaxengine.device.weights.problems import Problems
from jaxengine.device.weights.rules import Array, KvHeads

LAST = re.compile(r"(?:.*\.)?(?:[kv]_proj\.output_scale|(?:k|v|kv|q|prob)_scale)")
OF_KEYS, OF_VALUES = ("k_scale", "kv_scale", "k_proj.output_scale"), ("v_scale", "kv_scale", "v_proj.output_scale")
PARAMETERS: Mapping[str, tuple[str, ...]] = {"k_scale": OF_KEYS, "v_scale": OF_VALUES, "latent_scale": OF_KEYS}
"""The last part of a parameter's path, and the last parts of the tensors that fill it."""


def cache_scale_paths(parameters: Iterable[str]) -> list[str]:
    """Those of a model's parameters that are scales of its cache."""
    return [path for path in parameters if path.rpartition(".")[2] in PARAMETERS]


def cache_scale_names(tensors: Iterable[str]) -> list[str]:
    """Those of a checkpoint's tensors that are scales of caches."""
    return [name for name in tensors if LAST.fullmatch(name)]


class WithoutCacheScales:
    """A `TensorCheckpoint` without them."""

    def __init__(self, checkpoint: TensorCheckpoint) -> None:
        self.path: Path = checkpoint.path
        self.view = checkpoint.view
        self.release = checkpoint.release
        hidden = set(cache_scale_names(checkpoint.tensors))
        self.tensors: Mapping[str, StoredTensor] = {
            name: tensor for name, tensor in checkpoint.tensors.items() if name not in hidden
        }


def read_cache_scales(checkpoint: TensorCheckpoint, shapes: Mapping[str, int], config: KvHeads) -> dict[str, Array]:
    """The scales of each parameter, float32 of its length; empty where the checkpoint has none.

    Args:
        checkpoint: with them.
        shapes: the length of each parameter `layers.*.k_scale`, `v_scale` or `latent_scale`.
        config: of the model; where a parameter has more heads than the checkpoint, each is repeated.

    Raises:
        CheckpointError: some layers have scales and others have not, or one is no positive number for all heads or for each.
    """
    tensors = {
        (_layer(name), last): name
        for name in cache_scale_names(checkpoint.tensors)
        for last in (*OF_KEYS, *OF_VALUES)
        if name.endswith(f".{last}")
    }
    problems, found = Problems(), dict[str, Array]()
    if not any(last in (*OF_KEYS, *OF_VALUES) for _, last in tensors):
        return {}
    for path, length in shapes.items():
        lasts = PARAMETERS[path.rpartition(".")[2]]
        name = next((tensors[_layer(path), last] for last in lasts if (_layer(path), last) in tensors), None)
        if name is None:
            problems.add("scales of the KV cache that are missing beside others", path, f"expected {lasts[0]}")
            continue
        scales = np.asarray(checkpoint.view(name)).astype(np.float32).reshape(-1)
        if not (np.isfinite(scales).all() and (scales > 0).all()):
            problems.add("scales of the KV cache that are no positive numbers", name)
        elif len(scales) == 1 or (len(scales) == config.num_kv_heads and length % len(scales) == 0):
            found[path] = np.repeat(scales, length // len(scales))
        else:
            stored = list(checkpoint.tensors[name].shape)
            problems.add("scales of the KV cache of a wrong shape", name, f"{stored} for {config.num_kv_heads} heads")
    problems.raise_any(
        f"{checkpoint.path} has scales of a quantised KV cache that cannot be used (kv_cache_dtype='bfloat16' does without)"
    )
    return found


def _layer(name: str) -> int:
    """The first number in a dotted name."""
    return next((int(part) for part in name.split(".") if part.isdigit()), -1)
