"""Blocks and scales of MXFP4 become the numbers that the format says, as one tensor of a checkpoint."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from jaxengine.device.weights.checkpoint import open_checkpoint
from jaxengine.device.weights.formats.mxfp4 import Experts, Mxfp4
from jaxengine.device.weights.unpacked import UnpackedCheckpoint
from tests.device.weights.files import write_shards, write_single

EXPERTS, OUT, GROUPS = 3, 5, 2


def random_parts() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    blocks = rng.integers(0, 256, (EXPERTS, OUT, GROUPS, 16)).astype(np.uint8)
    return blocks, rng.integers(110, 140, (EXPERTS, OUT, GROUPS)).astype(np.uint8)


def by_hand(blocks: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Number by number, by the definition of e2m1: sign, two bits of exponent with a bias of 1, one of mantissa."""
    out = np.empty((EXPERTS, GROUPS * 32, OUT))
    for expert, row, group, byte in np.ndindex(blocks.shape):
        for half in range(2):
            bits = int(blocks[expert, row, group, byte]) >> (4 * half) & 15
            sign, exponent, mantissa = -1 if bits & 8 else 1, bits >> 1 & 3, bits & 1
            magnitude = mantissa / 2 if exponent == 0 else (1 + mantissa / 2) * 2.0 ** (exponent - 1)
            scale = 2.0 ** (int(scales[expert, row, group]) - 127)
            out[expert, group * 32 + 2 * byte + half, row] = sign * magnitude * scale
    return out


def test_numbers_are_those_of_the_format() -> None:
    blocks, scales = random_parts()
    decoded = Experts(blocks, scales)
    assert decoded.shape == (EXPERTS, GROUPS * 32, OUT)
    expected = by_hand(blocks, scales)
    for expert in range(EXPERTS):
        assert decoded[expert].dtype == ml_dtypes.bfloat16
        np.testing.assert_array_equal(decoded[expert].astype(np.float64), expected[expert])


def format_of(module: str) -> Mxfp4 | None:
    return Mxfp4() if module.startswith("e.") else None


@pytest.mark.parametrize("shards", [False, True])
def test_a_pair_is_one_tensor_wherever_its_parts_lie(shards: bool, tmp_path: Path) -> None:
    blocks, scales = random_parts()
    bias = np.ones((EXPERTS, OUT), np.float32)
    tensors = {"e.down_proj_blocks": blocks, "e.down_proj_bias": bias, "e.down_proj_scales": scales}
    if shards:
        write_shards(tmp_path, [{name: tensor} for name, tensor in tensors.items()])
    else:
        write_single(tmp_path, tensors)
    checkpoint = UnpackedCheckpoint(open_checkpoint(tmp_path), format_of, dense=lambda name: True)
    assert {name: stored.shape for name, stored in checkpoint.tensors.items()} == {
        "e.down_proj": (EXPERTS, GROUPS * 32, OUT),
        "e.down_proj_bias": bias.shape,
    }
    np.testing.assert_array_equal(checkpoint.view("e.down_proj")[1].astype(float), by_hand(blocks, scales)[1])
    np.testing.assert_array_equal(checkpoint.view("e.down_proj_bias"), bias)
    for name in checkpoint.tensors:
        checkpoint.release(name)
