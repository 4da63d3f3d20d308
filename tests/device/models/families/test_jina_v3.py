"""The checkpoint as published is transformers' with the adapter of the last task multiplied in."""

from __future__ import annotations

import numpy as np
import pytest

from jaxengine.device.models.families.jina_v3 import JinaRobertaConfig, JinaRobertaModel
from jaxengine.device.models.registry import read_config, resolve
from jaxengine.device.weights.rules import Rule

CONFIG = {
    "architectures": ["XLMRobertaModel"],
    "position_embedding_type": "rotary",
    "rotary_emb_base": 20000.0,
    "vocab_size": 100,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "type_vocab_size": 1,
    "lora_alpha": 2,
    "lora_rank": 4,
    "lora_adaptations": ["retrieval.query", "text-matching"],
}


@pytest.mark.parametrize(
    ("target", "shape", "first", "second", "rows"),
    [
        ("embed.table", (100, 48), (2, 100, 4), (2, 4, 48), slice(0, 100)),
        ("layers.*.attention.k.weight", (144, 48), (2, 4, 48), (2, 144, 4), slice(48, 96)),
        ("layers.*.mlp.down.weight", (48, 80), (2, 4, 80), (2, 48, 4), slice(0, 48)),
    ],
)
def test_the_last_tasks_adapter_is_multiplied_in(target, shape, first, second, rows):
    assert resolve(CONFIG) is JinaRobertaModel
    config = read_config(JinaRobertaModel, CONFIG)
    assert isinstance(config, JinaRobertaConfig)
    numbers = np.random.default_rng(0)
    tensors = tuple(numbers.normal(size=of).astype(np.float32) for of in (shape, first, second))
    [rule] = [row for row in JinaRobertaModel.WEIGHTS if isinstance(row, Rule) and row.target == target]
    assert len(rule.also) == 2
    assert rule.transform is not None
    left, right = (tensors[1], tensors[2]) if target == "embed.table" else (tensors[2], tensors[1])
    expected = tensors[0] + 0.5 * left[-1] @ right[-1]
    np.testing.assert_allclose(rule.transform(tensors, config, shape), expected[rows], atol=1e-5)
