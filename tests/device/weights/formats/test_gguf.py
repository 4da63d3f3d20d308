from __future__ import annotations

import numpy as np
import pytest

from jaxengine.device.weights.formats.gguf import BLOCK_TYPES, BLOCKS, GgufBlocks
from jaxengine.device.weights.formats.words import FLOAT4
from jaxengine.device.weights.mapped_file import StoredTensor

gguf_files = pytest.importorskip("tests.device.weights.gguf.gguf_files", reason="the gguf library is not installed")


def _made(blocks: GgufBlocks, tensors: dict[str, np.ndarray]) -> np.ndarray:
    """What the kept parts stand for, in float64."""
    numbers = blocks.numbers
    weight = blocks.parts["weight"](tensors)
    weight = FLOAT4[weight] if numbers.dtype.startswith("float4") else weight.astype(np.float64)
    weight = weight - (8 if numbers.dtype == "int4" else 0)
    scale = np.repeat(blocks.parts["scale"](tensors).astype(np.float64), numbers.group, axis=-1)
    if numbers.zeros:
        weight = weight - np.repeat(blocks.parts["zero"](tensors).astype(np.float64), numbers.group, axis=-1)
    return weight * scale


@pytest.mark.parametrize("type_name", BLOCK_TYPES)
@pytest.mark.parametrize("shape", [(6, 512), (3, 4, 256)])
def test_parts_stand_for_what_the_library_reads(type_name: str, shape: tuple[int, ...]) -> None:
    blocks = GgufBlocks(type_name)
    tensors = {BLOCKS: gguf_files.random_blocks(type_name, shape)}
    expected = gguf_files.gguf.dequantize(tensors[BLOCKS], gguf_files.GGMLQuantizationType[type_name])
    assert expected.shape == shape
    np.testing.assert_array_equal(blocks.parts["dense"](tensors), expected)
    if blocks.numbers.zeros:  # an offset is a zero times the scale, which rounds once more
        np.testing.assert_allclose(_made(blocks, tensors), expected, rtol=1e-5, atol=1e-6 * np.abs(expected).max())
    else:
        np.testing.assert_array_equal(_made(blocks, tensors).astype(np.float32), expected)


@pytest.mark.parametrize("type_name", [name for name, own in BLOCK_TYPES.items() if own.offsets])
def test_a_group_without_scale_stands_for_its_offset(type_name: str) -> None:
    tensors = {BLOCKS: gguf_files.random_blocks(type_name, (4, 256))}
    tensors[BLOCKS].reshape(-1, BLOCK_TYPES[type_name].bytes)[:, :2] = 0
    expected = gguf_files.gguf.dequantize(tensors[BLOCKS], gguf_files.GGMLQuantizationType[type_name])
    assert np.any(expected)
    np.testing.assert_array_equal(_made(GgufBlocks(type_name), tensors).astype(np.float32), expected)


def test_rows_that_are_no_blocks_are_refused() -> None:
    stored = {BLOCKS: StoredTensor("U8", (4, 100), 0, 400)}
    with pytest.raises(ValueError, match="rows of 100 bytes are no blocks of Q4_K, which have 144"):
        GgufBlocks("Q4_K").shape(stored)
