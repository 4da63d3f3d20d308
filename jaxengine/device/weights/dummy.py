"""Random weights for measuring and testing without a checkpoint: seeded, cheap, the same whatever the sharding.

Drawing every number afresh would take most of a minute for a billion of them. One block of random numbers is drawn instead
and each tensor is that block, repeated, from an offset of its own. The block's length is prime, so rows of a matrix never
fall on the same place of the block and no two of them are equal.
"""

from __future__ import annotations

import functools
import math
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxengine.device.weights.mapped_file import DTYPES, StoredTensor
from jaxengine.device.weights.rules import Array, Rule

BLOCK = 1_048_573
"""Numbers drawn: the largest prime under 2^20."""

DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


class RandomTensors:
    """A checkpoint (`TensorCheckpoint`) that is made up, with a tensor for each parameter of a model, under the same name.

    Matrices that a parameter `[G, in, out]` stacks are a tensor `[out, in]` each, as in checkpoints: `own_rules` stacks them.
    Matrices are uniform with a variance of one over their last axis, so that activations keep their size through the layers;
    vectors are near one, except biases, which are near zero.
    """

    def __init__(self, parameters: Mapping[str, jax.ShapeDtypeStruct], *, seed: int) -> None:
        """Equal seeds give equal tensors. `parameters` are dotted paths to shapes and floating dtypes."""
        # Raw Philox words are stable over NumPy versions, which its distributions are not.
        uniform = (np.random.Philox(seed).random_raw(BLOCK) >> np.uint64(40)).astype(np.float32) / 2.0**23 - 1.0

        @functools.cache
        def block(dtype: np.dtype[Any], width: float, center: float) -> Array:
            return (uniform * np.float32(width) + np.float32(center)).astype(dtype)

        self._block = block
        self.path = Path("random weights")
        self.tensors: Mapping[str, StoredTensor] = {
            name: StoredTensor(DTYPE_NAMES[np.dtype(spec.dtype)], shape, 0, math.prod(shape) * spec.dtype.itemsize)
            for path, spec in parameters.items()
            for name, shape in _tensors_of(path, spec.shape)
        }

    def view(self, name: str) -> Array:
        stored = self.tensors[name]
        assert stored.dtype is not None
        block = self._block(stored.dtype, *_distribution(name, stored.shape))
        return np.resize(np.roll(block, -(zlib.crc32(name.encode()) % BLOCK)), stored.shape)

    def release(self, name: str) -> None:
        """Nothing is kept of what was viewed."""


def own_rules(parameters: Mapping[str, jax.ShapeDtypeStruct]) -> tuple[Rule, ...]:
    """The weight table of `RandomTensors`: a rule for all layers, or one for each where some have experts under the same name."""
    patterns: dict[str, dict[str, bool]] = {}
    for path, spec in parameters.items():
        of_all = patterns.setdefault(re.sub(r"(?<=\.)\d+(?=\.)", "*", path), {})
        of_all[path] = is_stack(path, spec.shape)
    rules: list[Rule] = []
    for pattern, stacked in patterns.items():
        kinds = set(stacked.values())
        targets = {pattern: kinds.pop()} if len(kinds) == 1 else stacked
        rules += (Rule(path, f"{path}.{{matrix}}" if stack else path) for path, stack in targets.items())
    return tuple(rules)


def is_stack(path: str, shape: tuple[int, ...]) -> bool:
    """Whether a parameter stacks matrices that are tensors each: of experts, and not of the heads of latent attention."""
    return len(shape) == 3 and path.endswith(".weight")


def _tensors_of(path: str, shape: tuple[int, ...]) -> list[tuple[str, tuple[int, ...]]]:
    """Names and shapes of the tensors that make a parameter."""
    if not is_stack(path, shape):
        return [(path, shape)]
    count, inputs, outputs = shape
    return [(f"{path}.{number}", (outputs, inputs)) for number in range(count)]


def _distribution(path: str, shape: tuple[int, ...]) -> tuple[float, float]:
    """Half width and center of the uniform distribution of a parameter."""
    if len(shape) >= 2:
        return math.sqrt(3.0 / shape[-1]), 0.0
    return 0.02, 0.0 if path.endswith("bias") else 1.0
