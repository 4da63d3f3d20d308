"""What the formats' own libraries wrote, recorded by `benchmarks/quantised_checkpoints.py --record`.

llm-compressor 0.14.0.1 and 0.6.0.1 (compressed-tensors 0.19.0 and 0.10.2), GPTQModel 7.6.0, AutoAWQ 0.2.9,
transformers 5.23.0, Optimum 2.3.0. Of one matrix of each checkpoint eight outputs, as they were stored, and its product as the
library reads them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from jaxengine.device.models.config.quantization import read_quantization
from jaxengine.device.weights.checkpoint import open_checkpoint
from jaxengine.device.weights.unpacked import UnpackedCheckpoint
from jaxengine.errors import ConfigError
from tests.device.weights.files import write_single

RECORDED = Path(__file__).parent / "recorded"
CONFIGS: dict[str, Any] = json.loads((RECORDED / "libraries.json").read_text())
MODULE = "model.layers.1.self_attn.k_proj"
OUTPUTS, INPUTS = 8, 256


@pytest.fixture(scope="module")
def arrays() -> dict[str, np.ndarray]:
    return dict(np.load(RECORDED / "libraries.npz"))


def stored(arrays: dict[str, np.ndarray], name: str) -> dict[str, np.ndarray]:
    """Tensors as they were, of types that NumPy has no name for among them."""
    own = [key.split("/") for key in arrays if key.startswith(f"{name}/") and key.count("/") == 2]
    return {
        last: arrays[f"{name}/{last}/{dtype}"].view(np.dtype(getattr(ml_dtypes, dtype, dtype)))
        for _, last, dtype in own
    }


@pytest.mark.parametrize("name", CONFIGS)
def test_a_matrix_is_what_its_library_takes_it_for(name: str, arrays: dict[str, np.ndarray], tmp_path: Path) -> None:
    tensors = {f"{MODULE}.{last}": tensor for last, tensor in stored(arrays, name).items()}
    checkpoint = open_checkpoint(write_single(tmp_path, tensors))
    formats = read_quantization({"quantization_config": CONFIGS[name]})
    assert formats is not None
    dense = UnpackedCheckpoint(checkpoint, formats.of, dense=lambda module: True).view(f"{MODULE}.weight")
    assert dense.shape == (OUTPUTS, INPUTS)
    found = dense.astype(np.float64) @ np.random.default_rng(0).normal(size=(INPUTS, 2))
    np.testing.assert_allclose(found, arrays[f"{name}/expected"], rtol=1e-5, atol=1e-6)


def test_several_ways_in_one_checkpoint_are_told_apart() -> None:
    formats = read_quantization({"quantization_config": CONFIGS["gptqmodel gptq-dynamic"]})
    assert formats is not None
    kept = {
        name: formats.of(f"model.layers.{name}")
        for name in ("0.self_attn.q_proj", "0.mlp.down_proj", "1.self_attn.q_proj")
    }
    assert [None if found is None else found.numbers.dtype for found in kept.values()] == [None, "int8", "int4"]


@pytest.mark.parametrize("changes", [{"checkpoint_format": "gemv"}, {"format": "gemv"}, {"version": "gemv_fast"}])
def test_an_awq_layout_that_is_not_built_is_refused_wherever_it_is_named(changes: dict[str, str]) -> None:
    config = CONFIGS["gptqmodel awq-sym"] | changes
    with pytest.raises(ConfigError, match=f"{next(iter(changes))} 'gemv.* is not built"):
        read_quantization({"quantization_config": config})


@pytest.mark.parametrize("actorder", ["weight", "static"])
def test_an_order_of_quantising_that_leaves_columns_in_place_is_none(actorder: str) -> None:
    config = json.loads(json.dumps(CONFIGS["llmcompressor w8a8-gptq"]))
    assert config["config_groups"]["group_0"]["weights"]["actorder"] == "static"
    config["config_groups"]["group_0"]["weights"]["actorder"] = actorder
    formats = read_quantization({"quantization_config": config})
    assert formats is not None
    found = formats.of(MODULE)
    assert found is not None
    assert found.numbers.round_rows
    assert not found.numbers.ordered
