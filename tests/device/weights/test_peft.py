"""Adapters are read as PEFT writes them, and what PEFT can do beyond is refused by name."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from jaxengine.device.weights.peft import read_adapter
from jaxengine.errors import CheckpointError, UnsupportedError

BEFORE = "base_model.model.model.layers.0."
Q = "model.layers.0.self_attn.q_proj"
DOWN = "model.layers.0.mlp.down_proj"


def tensors_of(rank: int = 4) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)

    def made(*shape: int) -> np.ndarray:
        return random.normal(size=shape).astype(np.float32)

    return {
        f"{BEFORE}self_attn.q_proj.lora_A.weight": made(rank, 6),
        f"{BEFORE}self_attn.q_proj.lora_B.weight": made(8, rank),
        f"{BEFORE}mlp.down_proj.lora_A.weight": made(2, 12),
        f"{BEFORE}mlp.down_proj.lora_B.weight": made(6, 2),
    }


def config_of(**changes: Any) -> dict[str, Any]:
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "rank_pattern": {"down_proj": 2}}
    return {**config, "base_model_name_or_path": "acme/base", "bias": "none", "target_modules": ["q_proj"], **changes}


def write(folder: Path, tensors: dict[str, np.ndarray] | None = None, **changes: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(config_of(**changes)))
    save_file(tensors_of() if tensors is None else tensors, folder / "adapter_model.safetensors")
    return folder


def test_matrices_come_in_pairs_with_their_scale(tmp_path: Path) -> None:
    adapter = read_adapter(write(tmp_path / "a", alpha_pattern={r"layers\.0\.mlp\.down_proj": 3}))
    assert (adapter.rank, list(adapter.modules)) == (4, [DOWN, Q])
    assert (adapter.modules[Q].scale, adapter.modules[DOWN].scale) == (8 / 4, 3 / 2)
    np.testing.assert_array_equal(adapter.modules[Q].a, tensors_of()[f"{BEFORE}self_attn.q_proj.lora_A.weight"])
    np.testing.assert_array_equal(adapter.modules[DOWN].b, tensors_of()[f"{BEFORE}mlp.down_proj.lora_B.weight"])
    assert not adapter.saved


def test_rslora_divides_by_the_root(tmp_path: Path) -> None:
    adapter = read_adapter(write(tmp_path / "a", use_rslora=True))
    assert adapter.modules[DOWN].scale == 8 / math.sqrt(2)


def test_embeddings_and_whole_tensors(tmp_path: Path) -> None:
    tensors = {
        "base_model.model.model.embed_tokens.lora_embedding_A": np.ones((4, 10), np.float16),
        "base_model.model.model.embed_tokens.lora_embedding_B": np.ones((6, 4), np.float16),
        "base_model.model.model.embed_tokens.base_layer.weight": np.ones((10, 6), ml_dtypes.bfloat16),
        "base_model.model.lm_head.modules_to_save.weight": np.zeros((10, 6), np.float32),
        "base_model.model.score.weight": np.zeros((2, 6), np.float32),
    }
    adapter = read_adapter(write(tmp_path / "a", tensors))
    embedding = adapter.modules["model.embed_tokens"]
    assert embedding.embedding
    assert (embedding.rank, embedding.a.dtype) == (4, np.float16)
    assert adapter.saved.keys() == {"model.embed_tokens.weight", "lm_head.weight", "score.weight"}
    assert adapter.saved["model.embed_tokens.weight"].dtype == ml_dtypes.bfloat16


def test_the_digest_is_of_the_contents_alone(tmp_path: Path) -> None:
    one, same = read_adapter(write(tmp_path / "a")), read_adapter(write(tmp_path / "b"))
    assert one.digest == same.digest
    other = tensors_of()
    other[f"{BEFORE}mlp.down_proj.lora_B.weight"][0, 0] += 1
    digests = {
        one.digest,
        read_adapter(write(tmp_path / "c", other)).digest,
        read_adapter(write(tmp_path / "d", lora_alpha=9)).digest,
    }
    assert len(digests) == 3
    write(tmp_path / "a", other)  # what was read stays as it was
    np.testing.assert_array_equal(one.modules[DOWN].b, tensors_of()[f"{BEFORE}mlp.down_proj.lora_B.weight"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"peft_type": "LOHA"}, "peft_type is 'LOHA', and only LORA"),
        ({"use_dora": True}, "asks for DoRA, which is not built"),
        ({"use_qalora": True}, "QALoRA"),
        ({"lora_bias": True}, "lora_bias"),
        ({"bias": "all"}, "bias='all' trains the base model's biases"),
        ({"trainable_token_indices": [1]}, "trainable_token_indices"),
        ({"layer_replication": [[0, 2]]}, "replicated layers"),
        ({"alora_invocation_tokens": [5]}, "activated LoRA"),
        ({"target_parameters": ["mlp.experts.gate_up_proj"]}, "target_parameters"),
        ({"init_lora_weights": "pissa_niter_4"}, "changed the base model that the adapter belongs to"),
        ({"some_new_key": 3}, "has some_new_key, of which is not known what it changes"),
    ],
    ids=str,
)
def test_what_is_not_built_is_refused_by_name(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError) as refused:
        read_adapter(write(tmp_path / "a", **changes))
    assert message in str(refused.value)


def test_what_asks_for_nothing_passes(tmp_path: Path) -> None:
    neutral = {"use_dora": False, "some_new_key": None, "lora_dropout": 0.1, "init_lora_weights": "gaussian"}
    assert read_adapter(write(tmp_path / "a", loftq_config={}, fan_in_fan_out=True, **neutral)).rank == 4


def without(name: str) -> dict[str, np.ndarray]:
    return {key: tensor for key, tensor in tensors_of().items() if name not in key}


@pytest.mark.parametrize(
    ("tensors", "changes", "message"),
    [
        ({}, {}, "has no tensors of an adapter"),
        (without("down_proj.lora_B"), {}, f"has one of the two matrices of {DOWN} and not the other"),
        (tensors_of(rank=5), {}, "and adapter_config.json says rank 4"),
        (None, {"lora_alpha": "8"}, "lora_alpha must be a number, got '8'"),
        (None, {"rank_pattern": {"(": 2}}, "'(' is no regular expression"),
        (None, {"alpha_pattern": {"(a+)+": 2}}, "repeats a group"),
        ({"model.q.lora_A.weight": np.ones((4, 2), np.float32)}, {}, "does not begin with base_model.model."),
    ],
)
def test_damaged_adapters(
    tmp_path: Path, tensors: dict[str, np.ndarray] | None, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(CheckpointError) as refused:
        read_adapter(write(tmp_path / "a", tensors, **changes))
    assert message in str(refused.value)


def test_dora_is_refused_by_its_tensors_too(tmp_path: Path) -> None:
    tensors = {**tensors_of(), f"{BEFORE}self_attn.q_proj.lora_magnitude_vector.weight": np.ones(8, np.float32)}
    with pytest.raises(UnsupportedError, match="DoRA that is not built"):
        read_adapter(write(tmp_path / "a", tensors))


def test_missing_and_damaged_files(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"adapter_config.json cannot be read \(No such file"):
        read_adapter(tmp_path / "nowhere")
    folder = write(tmp_path / "a")
    (folder / "adapter_config.json").write_text("[]")
    with pytest.raises(CheckpointError, match="must map names to values, got list"):
        read_adapter(folder)
    folder = write(tmp_path / "a")
    content = (folder / "adapter_model.safetensors").read_bytes()
    (folder / "adapter_model.safetensors").write_bytes(content[:-1])
    with pytest.raises(CheckpointError, match="is damaged"):
        read_adapter(folder)
    (folder / "adapter_model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"adapter_model.safetensors cannot be read"):
        read_adapter(folder)
