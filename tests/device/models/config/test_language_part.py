"""A model that also sees pictures answers texts as its language model does by itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from jaxengine.device.layers.sharding import ONE_DEVICE
from jaxengine.device.models.parameters import abstract_model
from jaxengine.device.models.registry import read_config, resolve
from jaxengine.device.weights.matching import match
from jaxengine.errors import CheckpointError, ConfigError
from tests.device.models.cases import PROMPTS, Fixture
from tests.device.models.paged import PagedModel

OUTER = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "model_type": "gemma3",
    "vision_config": {"model_type": "siglip_vision_model", "hidden_size": 8},
    "mm_tokens_per_image": 256,
    "image_token_index": 262_144,
}
GEMMA_3_27B = {
    "hidden_size": 5376,
    "intermediate_size": 21_504,
    "num_hidden_layers": 62,
    "num_attention_heads": 32,
    "num_key_value_heads": 16,
    "head_dim": 128,
    "query_pre_attn_scalar": 168,
    "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    "sliding_window": 1024,
    "model_type": "gemma3_text",
}
MINISTRAL_3 = {
    "architectures": ["Mistral3ForConditionalGeneration"],
    "model_type": "mistral3",
    "image_token_index": 10,
    "multimodal_projector_bias": False,
    "projector_hidden_act": "gelu",
    "spatial_merge_size": 2,
    "vision_feature_layer": -1,
    "vision_config": {"model_type": "pixtral", "hidden_size": 8},
}
GEMMA_4 = {
    "architectures": ["Gemma4ForConditionalGeneration"],
    "model_type": "gemma4",
    "vision_config": {"model_type": "gemma4_vision"},
    "audio_config": None,
    "image_token_id": 258_880,
}
PICTURES = (
    "vision_tower.vision_model.encoder.layers.0.mlp.fc1.weight",
    "multi_modal_projector.mm_soft_emb_norm.weight",
)
MISTRALS = ("vision_tower.patch_conv.weight", "multi_modal_projector.patch_merger.merging_layer.weight")
GEMMA_4S = (
    "vision_tower.encoder.layers.0.mlp.gate_proj.linear.weight",
    "embed_vision.embedding_projection.weight",
    "audio_tower.x.weight",
)
"""Tensors of what sees, which texts alone leave unread: Gemma 3's, Mistral 3's, and Gemma 4's, with what hears."""
OLD, NEW = ("language_model.", ""), ("model.", "language_model.")
"""What transformers 4 and 5 write before a tensor's name, and before what follows its `model.`."""


def renamed(name: str, naming: tuple[str, str]) -> str:
    outer, inner = naming
    if not name.startswith("model."):
        return name if naming is NEW else outer + name
    return f"{outer}{inner}{name.removeprefix('model.')}" if naming is NEW else outer + name


def read(config: dict[str, Any]) -> Any:
    return read_config(resolve(config), config)


@pytest.mark.parametrize("naming", [OLD, NEW], ids=["transformers 4", "transformers 5"])
@pytest.mark.parametrize(
    ("case", "outer"),
    [
        ("gemma3", OUTER),
        ("gemma3-biases-untied-linear", OUTER),
        ("ministral3", MINISTRAL_3),
        ("mistral-full", MINISTRAL_3),
        ("gemma4-shared", GEMMA_4),
        ("gemma4-experts", GEMMA_4),
    ],
)
def test_every_tensor_of_the_language_model_has_its_place(case, outer, naming):
    fixture = Fixture.load(case)
    config = {**outer, "text_config": dict(fixture.config)}
    model_class = resolve(config)
    read = replace(read_config(model_class, config), tower=None)
    _, parameters = abstract_model(model_class, read, dtype="bfloat16", layout=ONE_DEVICE, platform="cpu")
    names = [renamed(name, naming) for name in fixture.shapes]
    parts = GEMMA_4S if outer is GEMMA_4 else PICTURES
    parts = MISTRALS if outer is MINISTRAL_3 else parts
    pictures = [naming[0] * (naming is NEW) + name for name in parts]
    assignments = match([*names, *pictures], model_class.WEIGHTS, parameters, read)
    assert {name for assignment in assignments for name in assignment.sources} == set(names)
    with pytest.raises(CheckpointError, match="sound_tower"):
        match([*names, "sound_tower.weight"], model_class.WEIGHTS, parameters, read)


@pytest.mark.slow
def test_texts_are_answered_as_by_the_language_model_alone():
    fixture = Fixture.load("gemma3")
    alone = PagedModel(fixture.config, fixture.tensors).logprobs(PROMPTS, seq=5)
    tensors = {renamed(name, NEW): tensor for name, tensor in fixture.tensors.items()}
    found = PagedModel({**OUTER, "text_config": dict(fixture.config)}, tensors).logprobs(PROMPTS, seq=5)
    for ours, expected in zip(found, alone, strict=True):
        np.testing.assert_array_equal(ours, expected)


def test_the_published_configuration_is_read():
    config = read({**OUTER, "torch_dtype": "bfloat16", "eos_token_id": [1, 106], "text_config": GEMMA_3_27B})
    assert (config.num_layers, config.hidden_size, config.scale) == (62, 5376, 168**-0.5)
    assert config.windows[:7] == (1024, 1024, 1024, 1024, 1024, None, 1024)
    assert config.global_rope.scaling.factor == 8.0
    assert config.dtype == "bfloat16"


def test_mistral_reads_the_language_model_that_its_section_names():
    """Mistral Small 3.1 has Mistral's, whose queries do not grow; another one is refused."""
    small = {"vocab_size": 131_072, "hidden_size": 5120, "intermediate_size": 32_768, "num_hidden_layers": 40}
    small |= {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "rope_theta": 1e9}
    small |= {"max_position_embeddings": 131_072, "sliding_window": None, "model_type": "mistral"}
    config = read({**MINISTRAL_3, "torch_dtype": "bfloat16", "text_config": small})
    assert (config.temperature, config.rope.theta, config.windows[0]) == (None, 1e9, None)
    rope = {
        "rope_type": "yarn",
        "type": "yarn",
        "rope_theta": 1e6,
        "factor": 16.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    }
    rope |= {"original_max_position_embeddings": 16_384, "llama_4_scaling_beta": 0.1, "beta_fast": 32, "beta_slow": 1}
    large = {**small, "rope_theta": None, "model_type": "ministral3", "rope_parameters": rope}
    config = read({**MINISTRAL_3, "text_config": large})
    assert (config.temperature.share, config.temperature.floor, config.rope.magnitude) == (0.1, 16_384, 1.0)
    with pytest.raises(ConfigError, match="model_type='mistral4' is not built; known are mistral, ministral3"):
        read({**MINISTRAL_3, "text_config": {**large, "model_type": "mistral4"}})
    with pytest.raises(ConfigError, match="no 'rope_parameters', which say how queries of Ministral 3 grow"):
        read({**MINISTRAL_3, "text_config": {**small, "model_type": "ministral3"}})


def test_what_stands_outside_of_the_section_counts():
    inner = {**GEMMA_3_27B, "eos_token_id": 1, "dtype": "float32"}
    config = read({**OUTER, "dtype": "bfloat16", "eos_token_id": [1, 106], "text_config": inner})
    assert config.dtype == "bfloat16"


def test_unknown_keys_are_named_with_their_section():
    with pytest.raises(ConfigError, match=r"config\.json: text_config: moon_phase=3 is a key that it does not read"):
        read({**OUTER, "text_config": {**GEMMA_3_27B, "moon_phase": 3}})
    with pytest.raises(ConfigError, match=r"config\.json: audio_config=\{\} is a key that it does not read"):
        read({**OUTER, "audio_config": {}, "text_config": GEMMA_3_27B})
    with pytest.raises(ConfigError, match="no 'text_config'"):
        read(OUTER)
