"""Directories of small models that see, with random weights, as checkpoints have them: for tests of every layer.

Configurations and names of tensors are transformers' own, recorded in `media_models.json`:
`python -m tests.media_models [ARCHITECTURE ...]` (needs torch).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from safetensors.numpy import save_file
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from tests.device.models.cases import random_tensors

RECORDED = Path(__file__).with_suffix(".json")
FIRST = 256
"""The id of the first special token; those before are bytes."""
VOCABULARY = 288

TEXT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "bos_token_id": FIRST,
    "eos_token_id": FIRST + 1,
}
QWEN = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}"
    "{% if part.type == 'image' %}IMAGE{% elif part.type == 'video' %}VIDEO{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
QWEN_CHAT = CHATML.replace("IMAGE", "<|vision_start|><|image_pad|><|vision_end|>").replace(
    "VIDEO", "<|vision_start|><|video_pad|><|vision_end|>"
)


@dataclass(frozen=True, kw_only=True)
class Family:
    """How a small model of an architecture is made.

    `ids` are the keys of config.json that name special tokens; `text` and `vision` what the two parts are; `files` are the
    processor's.
    """

    special: tuple[str, ...]
    ids: Mapping[str, str]
    chat: str
    text: Mapping[str, Any]
    vision: Mapping[str, Any]
    files: Mapping[str, Mapping[str, Any]]
    outer: Mapping[str, Any] = field(default_factory=dict)

    @property
    def tokens(self) -> tuple[str, ...]:
        """All special tokens in the order of their ids."""
        return ("<s>", "</s>", "<|im_start|>", "<|im_end|>", *self.special)

    def id_of(self, token: str) -> int:
        """The id of a special token."""
        return FIRST + self.tokens.index(token)

    def config(self) -> dict[str, Any]:
        """The keys of config.json that choose sizes and tokens."""
        ids = {key: self.id_of(token) for key, token in self.ids.items()}
        return {**self.outer, **ids, "text_config": {**TEXT, **self.text}, "vision_config": dict(self.vision)}


QWEN_IDS = {
    "image_token_id": "<|image_pad|>",
    "video_token_id": "<|video_pad|>",
    "vision_start_token_id": "<|vision_start|>",
    "vision_end_token_id": "<|vision_end|>",
}
MROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
SIGLIP = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
QWEN3_EYES = {
    "depth": 2,
    "hidden_size": 32,
    "num_heads": 2,
    "intermediate_size": 48,
    "out_hidden_size": 64,
    "num_position_embeddings": 64,
}
QWEN3_FILES = {
    "preprocessor_config.json": {
        "image_processor_type": "Qwen2VLImageProcessor",
        "patch_size": 16,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "size": {"shortest_edge": 64 * 64, "longest_edge": 32 * 32 * 64},
    },
    "video_preprocessor_config.json": {
        "video_processor_type": "Qwen3VLVideoProcessor",
        "size": {"shortest_edge": 64 * 64, "longest_edge": 32 * 32 * 64},
    },
}
LLAMA4_TILES = ("<|tile_x_separator|>", "<|tile_y_separator|>")
FAMILIES: Mapping[str, Family] = {
    "Qwen2_5_VLForConditionalGeneration": Family(
        special=QWEN,
        ids=QWEN_IDS,
        chat=QWEN_CHAT,
        text={"rope_parameters": MROPE},
        vision={
            "depth": 2,
            "hidden_size": 32,
            "num_heads": 2,
            "intermediate_size": 48,
            "out_hidden_size": 64,
            "fullatt_block_indexes": [1],
        },
        files={
            "preprocessor_config.json": {
                "image_processor_type": "Qwen2VLImageProcessor",
                "min_pixels": 56 * 56,
                "max_pixels": 28 * 28 * 64,
            },
            "video_preprocessor_config.json": {
                "video_processor_type": "Qwen2VLVideoProcessor",
                "size": {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 8},
            },
        },
    ),
    "Qwen3VLForConditionalGeneration": Family(
        special=QWEN,
        ids=QWEN_IDS,
        chat=QWEN_CHAT,
        text={"head_dim": 16, "rope_parameters": {**MROPE, "mrope_interleaved": True}},
        vision={**QWEN3_EYES, "depth": 3, "deepstack_visual_indexes": [0, 1]},
        files=QWEN3_FILES,
    ),
    "Qwen3VLMoeForConditionalGeneration": Family(
        special=QWEN,
        ids=QWEN_IDS,
        chat=QWEN_CHAT,
        text={
            "head_dim": 16,
            "rope_parameters": {**MROPE, "mrope_interleaved": True},
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
        },
        vision={**QWEN3_EYES, "deepstack_visual_indexes": [0]},
        files=QWEN3_FILES,
    ),
    "Qwen3_5ForConditionalGeneration": Family(
        special=QWEN,
        ids=QWEN_IDS,
        chat=QWEN_CHAT,
        text={
            "head_dim": 32,
            "layer_types": ["linear_attention", "full_attention"],
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 16,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "rope_parameters": {**MROPE, "mrope_interleaved": True, "partial_rotary_factor": 0.5},
        },
        vision=QWEN3_EYES,
        files=QWEN3_FILES,
    ),
    "LlavaForConditionalGeneration": Family(
        special=("<image>",),
        ids={"image_token_index": "<image>"},
        chat=CHATML.replace("IMAGE", "<image>").replace("VIDEO", ""),
        text={"model_type": "llama"},
        vision={
            "model_type": "clip_vision_model",
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 3,
            "num_attention_heads": 2,
            "image_size": 56,
            "patch_size": 14,
            "projection_dim": 32,
        },
        files={
            "preprocessor_config.json": {
                "image_processor_type": "CLIPImageProcessor",
                "size": {"shortest_edge": 56},
                "crop_size": {"height": 56, "width": 56},
            }
        },
    ),
    "LlavaOnevisionForConditionalGeneration": Family(
        special=("<image>",),
        ids={"image_token_index": "<image>"},
        chat=CHATML.replace("IMAGE", "<image>").replace("VIDEO", ""),
        text={"model_type": "qwen2"},
        vision={
            **SIGLIP,
            "model_type": "siglip_vision_model",
            "image_size": 56,
            "patch_size": 14,
            "vision_use_head": False,
        },
        outer={
            "image_grid_pinpoints": [[56, 56], [56, 112], [56, 168], [112, 56], [112, 112], [168, 56]],
            "vision_aspect_ratio": "anyres_max_3",
        },
        files={
            "preprocessor_config.json": {
                "image_processor_type": "LlavaOnevisionImageProcessor",
                "size": {"height": 56, "width": 56},
                "image_grid_pinpoints": [[56, 56], [56, 112], [56, 168], [112, 56], [112, 112], [168, 56]],
            }
        },
    ),
    "Gemma3ForConditionalGeneration": Family(
        special=("<start_of_image>", "<image_soft_token>", "<end_of_image>"),
        ids={
            "boi_token_index": "<start_of_image>",
            "image_token_index": "<image_soft_token>",
            "eoi_token_index": "<end_of_image>",
        },
        chat=CHATML.replace("IMAGE", "<start_of_image>").replace("VIDEO", ""),
        text={"head_dim": 16, "sliding_window": 32},
        vision={**SIGLIP, "image_size": 112, "patch_size": 14, "vision_use_head": False},
        outer={"mm_tokens_per_image": 16},
        files={
            "preprocessor_config.json": {
                "image_processor_type": "Gemma3ImageProcessor",
                "size": {"height": 112, "width": 112},
                "resample": 2,
            }
        },
    ),
    "Gemma4ForConditionalGeneration": Family(
        special=("<|image>", "<|image|>", "<image|>"),
        ids={"boi_token_id": "<|image>", "image_token_id": "<|image|>", "eoi_token_id": "<image|>"},
        chat=CHATML.replace("IMAGE", "<|image|>").replace("VIDEO", ""),
        text={
            "head_dim": 16,
            "global_head_dim": 16,
            "sliding_window": 32,
            "layer_types": ["sliding_attention", "full_attention"],
            "hidden_size_per_layer_input": 0,
            "use_bidirectional_attention": "vision",
            "pad_token_id": FIRST,
        },
        vision={**SIGLIP, "num_key_value_heads": 2, "head_dim": 16, "patch_size": 4, "position_embedding_size": 256},
        outer={"audio_config": None},
        files={
            "preprocessor_config.json": {
                "image_processor_type": "Gemma4ImageProcessor",
                "patch_size": 4,
                "max_soft_tokens": 70,
                "pooling_kernel_size": 3,
            }
        },
    ),
    "Mistral3ForConditionalGeneration": Family(
        special=("[IMG]", "[IMG_BREAK]", "[IMG_END]"),
        ids={"image_token_index": "[IMG]"},
        chat=CHATML.replace("IMAGE", "[IMG]").replace("VIDEO", ""),
        text={"model_type": "mistral", "head_dim": 16},
        vision={**SIGLIP, "model_type": "pixtral", "image_size": 224, "patch_size": 14},
        outer={"spatial_merge_size": 2},
        files={
            "preprocessor_config.json": {
                "image_processor_type": "PixtralImageProcessor",
                "patch_size": 14,
                "size": {"longest_edge": 224},
            }
        },
    ),
    "LlavaForConditionalGeneration/pixtral": Family(
        special=("[IMG]", "[IMG_BREAK]", "[IMG_END]"),
        ids={"image_token_index": "[IMG]"},
        chat=CHATML.replace("IMAGE", "[IMG]").replace("VIDEO", ""),
        text={"model_type": "mistral", "head_dim": 16, "sliding_window": None},
        vision={**SIGLIP, "model_type": "pixtral", "image_size": 112, "patch_size": 14, "hidden_act": "silu"},
        outer={"vision_feature_layer": -1, "vision_feature_select_strategy": "full"},
        files={
            "preprocessor_config.json": {
                "image_processor_type": "PixtralImageProcessor",
                "patch_size": 14,
                "size": {"longest_edge": 112},
            }
        },
    ),
    "SmolVLMForConditionalGeneration": Family(
        special=(
            "<image>",
            "<fake_token_around_image>",
            "<global-img>",
            *(f"<row_{row}_col_{column}>" for row in range(1, 4) for column in range(1, 4)),
        ),
        ids={"image_token_id": "<image>"},
        chat=CHATML.replace("IMAGE", "<image>").replace("VIDEO", ""),
        text={"model_type": "llama"},
        vision={**SIGLIP, "model_type": "smolvlm_vision", "image_size": 64, "patch_size": 8},
        outer={"scale_factor": 2},
        files={
            "preprocessor_config.json": {
                "image_processor_type": "SmolVLMImageProcessor",
                "size": {"longest_edge": 192},
                "max_image_size": {"longest_edge": 64},
            }
        },
    ),
    "InternVLForConditionalGeneration": Family(
        special=("<IMG_CONTEXT>", "<img>", "</img>"),
        ids={"image_token_id": "<IMG_CONTEXT>"},
        chat=CHATML.replace("IMAGE", "<IMG_CONTEXT>").replace("VIDEO", ""),
        text={"model_type": "qwen2"},
        vision={**SIGLIP, "model_type": "internvl_vision", "image_size": [56, 56], "patch_size": [14, 14]},
        files={
            "preprocessor_config.json": {
                "image_processor_type": "GotOcr2ImageProcessor",
                "size": {"height": 56, "width": 56},
                "crop_to_patches": True,
                "max_patches": 6,
            }
        },
    ),
    "Llama4ForConditionalGeneration": Family(
        special=("<|image|>", "<|image_start|>", "<|image_end|>", "<|patch|>", *LLAMA4_TILES),
        ids={
            "image_token_index": "<|patch|>",
            "boi_token_index": "<|image_start|>",
            "eoi_token_index": "<|image_end|>",
        },
        chat=CHATML.replace("IMAGE", "<|image|>").replace("VIDEO", ""),
        text={"head_dim": 16, "intermediate_size_mlp": 96, "num_local_experts": 2},
        vision={
            **SIGLIP,
            "image_size": 56,
            "patch_size": 14,
            "intermediate_size": 128,
            "vision_output_dim": 64,
            "projector_input_dim": 64,
            "projector_output_dim": 64,
        },
        files={
            "preprocessor_config.json": {
                "image_processor_type": "Llama4ImageProcessor",
                "size": {"height": 56, "width": 56},
                "max_patches": 4,
            }
        },
    ),
}


def recorded_config(architecture: str) -> dict[str, Any]:
    """config.json of a small model."""
    config: dict[str, Any] = json.loads(RECORDED.read_text())[architecture]["config"]
    return config


def vlm_directory(folder: Path, architecture: str) -> Path:
    """A checkpoint of a small model with random weights, in `folder`: the same at every call."""
    family, recorded = FAMILIES[architecture], json.loads(RECORDED.read_text())[architecture]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(recorded["config"]))
    save_file(random_tensors(recorded["shapes"]), folder / "model.safetensors", metadata={"format": "pt"})
    write_text_files(folder, family)
    return folder


def write_text_files(folder: Path, family: Family) -> None:
    """The tokenizer, with a chat template, and the files of the processor."""
    tokenizer_of(family).save(str(folder / "tokenizer.json"))
    named = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": family.chat}
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **named}))
    for name, said in family.files.items():
        (folder / name).write_text(json.dumps(said))


def tokenizer_of(family: Family) -> tokenizers.Tokenizer:
    """A token for each byte, and the special ones."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(models.BPE({letter: at for at, letter in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in family.tokens])
    return backend


def picture(width: int, height: int, seed: int = 0) -> np.ndarray:
    """Pixels of a picture, `uint8 [height, width, 3]`: smooth, so that sizes change little of it."""
    words = np.random.Philox(seed).random_raw(6).astype(np.float64) / 2.0**64
    rows, columns = np.mgrid[0 : 1 : height * 1j, 0 : 1 : width * 1j]
    waves = [np.sin(2 * np.pi * (3 * words[at] * rows + 3 * words[at + 3] * columns + words[at])) for at in range(3)]
    return np.asarray(np.stack(waves, axis=-1) * 100 + 128, np.uint8)


def record() -> None:
    """Ask transformers for the names of all tensors, of those that are asked for or of all."""
    import sys
    import tempfile

    import torch
    import transformers
    from safetensors.numpy import load_file

    found = json.loads(RECORDED.read_text())
    for architecture in sys.argv[1:] or FAMILIES:
        family = FAMILIES[architecture]
        name = architecture.partition("/")[0]  # what is behind it tells the tower
        kind = getattr(transformers, name)
        config = kind.config_class(**family.config())
        config.architectures = [name]
        with tempfile.TemporaryDirectory() as folder:
            kind(config).to(torch.float32).save_pretrained(folder)
            shapes = {name: list(of.shape) for name, of in load_file(Path(folder) / "model.safetensors").items()}
            saved = json.loads((Path(folder) / "config.json").read_text())
        saved.pop("dtype", None)
        found[architecture] = {"config": saved, "shapes": shapes}
    RECORDED.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    record()
