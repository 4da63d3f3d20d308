"""Small random models that see: what their prompts show, and what transformers made of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from jaxengine.contract.media import MediaItem, Modality, Mosaic
from tests.device.models.cases import log_softmax, random_tensors

FIXTURES = Path(__file__).parent.parent / "fixtures" / "media"
VOCAB = 96
NUM_GREEDY = 64
PICTURE, VIDEO = 90, 91
"""The tokens in whose places embeddings stand."""

TEXT = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
VIT = {"hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
MROPE = {"rope_type": "default", "rope_theta": 10000.0}


@dataclass(frozen=True)
class Case:
    """`config` of an `architecture` of transformers; the pictures of each prompt by their grids, `None` being a text's place."""

    architecture: str
    config: Mapping[str, Any]
    pictures: Sequence[Sequence[tuple[int, int, int]]]
    block: int
    patch: int = 14
    """Patches of an embedding, and the side of one in pixels."""
    sight: bool = False
    video: bool = False
    """Videos stand in the place of pictures, each frame of Qwen3-VL's for itself."""
    mosaics: Mapping[tuple[int, int, int], tuple[tuple[int, int], Mosaic]] = field(default_factory=dict)
    """By grid: height and width of a picture, and how its tiles are put together, where they are."""

    @property
    def token(self) -> int:
        """What stands where embeddings do."""
        return VIDEO if self.video else PICTURE

    def runs(self, grid: tuple[int, int, int]) -> Sequence[int]:
        """The tokens of each run of what is shown."""
        frame = grid[1] * grid[2] // self.block
        if grid in self.mosaics:
            return [frame + self.mosaics[grid][1].num_embeddings]
        return [frame] * grid[0] if self.video and self.architecture.startswith("Qwen3") else [grid[0] * frame]

    def spans(self, ids: Sequence[int]) -> list[tuple[int, int]]:
        """Tokens that see each other, where those of a picture do."""
        shown = np.flatnonzero(np.diff([0, *(token == PICTURE for token in ids), 0]))
        return shown.reshape(-1, 2).tolist() if self.sight else []


QWEN = {"depth": 4, "hidden_size": 48, "num_heads": 4, "intermediate_size": 64, "out_hidden_size": 64}
QWEN_TOKENS = {
    "image_token_id": PICTURE,
    "video_token_id": VIDEO,
    "vision_start_token_id": 92,
    "vision_end_token_id": 93,
}
ANY_SIZE = [[(1, 6, 4), (1, 4, 10)], [(1, 8, 6)], [], [(1, 2, 2)]]
"""Two pictures in the first prompt, none in the third."""

CASES: Mapping[str, Case] = {
    "qwen2_5-vl": Case(
        "Qwen2_5_VLForConditionalGeneration",
        {
            "text_config": {**TEXT, "rope_parameters": {**MROPE, "mrope_section": [2, 3, 3]}},
            "vision_config": {
                **QWEN,
                "patch_size": 14,
                "window_size": 56,
                "fullatt_block_indexes": [1, 3],
            },
            **QWEN_TOKENS,
        },
        ANY_SIZE,
        block=4,
    ),
    "qwen3-vl": Case(
        "Qwen3VLForConditionalGeneration",
        {
            "text_config": {
                **TEXT,
                "num_hidden_layers": 4,
                "head_dim": 16,
                "rope_parameters": {**MROPE, "mrope_section": [4, 2, 2], "mrope_interleaved": True},
            },
            "vision_config": {
                **QWEN,
                "patch_size": 14,
                "num_position_embeddings": 64,
                "deepstack_visual_indexes": [0, 2],
            },
            **QWEN_TOKENS,
        },
        ANY_SIZE,
        block=4,
    ),
    "qwen3-vl-moe": Case(
        "Qwen3VLMoeForConditionalGeneration",
        {
            "text_config": {
                **TEXT,
                "num_hidden_layers": 3,
                "head_dim": 16,
                "num_experts": 8,
                "num_experts_per_tok": 2,
                "moe_intermediate_size": 24,
                "rope_parameters": {**MROPE, "mrope_section": [4, 2, 2], "mrope_interleaved": True},
            },
            "vision_config": {
                **QWEN,
                "patch_size": 14,
                "num_position_embeddings": 64,
                "deepstack_visual_indexes": [1],
            },
            **QWEN_TOKENS,
        },
        ANY_SIZE,
        block=4,
    ),
    "qwen3_5": Case(
        "Qwen3_5ForConditionalGeneration",
        {
            "text_config": {
                **TEXT,
                "layer_types": ["linear_attention", "full_attention"],
                "head_dim": 32,
                "linear_key_head_dim": 12,
                "linear_value_head_dim": 12,
                "linear_num_key_heads": 4,
                "linear_num_value_heads": 8,
                "rope_parameters": {
                    **MROPE,
                    "partial_rotary_factor": 0.5,
                    "mrope_section": [4, 2, 2],
                    "mrope_interleaved": True,
                },
            },
            "vision_config": {**QWEN, "depth": 2, "patch_size": 14, "num_position_embeddings": 64},
            **QWEN_TOKENS,
        },
        ANY_SIZE,
        block=4,
    ),
    "gemma3": Case(
        "Gemma3ForConditionalGeneration",
        {
            "text_config": {
                **TEXT,
                "num_hidden_layers": 6,
                "head_dim": 16,
                "query_pre_attn_scalar": 24,
                "sliding_window": 7,
            },
            "vision_config": {
                "model_type": "siglip_vision_model",
                **VIT,
                "image_size": 112,
                "patch_size": 14,
                "vision_use_head": False,
            },
            "mm_tokens_per_image": 16,
            "image_token_id": PICTURE,
            "boi_token_index": 92,
            "eoi_token_index": 93,
        },
        [[(1, 8, 8)] * 2, [(1, 8, 8)], []],
        block=4,
        sight=True,
    ),
    "gemma4": Case(
        "Gemma4ForConditionalGeneration",
        {
            "text_config": {
                **TEXT,
                "num_hidden_layers": 4,
                "layer_types": ["sliding_attention", "full_attention"] * 2,
                "head_dim": 16,
                "global_head_dim": 24,
                "sliding_window": 7,
                "hidden_size_per_layer_input": 0,
                "use_bidirectional_attention": "vision",
            },
            "vision_config": {
                **VIT,
                "head_dim": 16,
                "num_key_value_heads": 4,
                "patch_size": 4,
                "pooling_kernel_size": 2,
                "position_embedding_size": 16,
                "standardize": True,
            },
            "audio_config": None,
            "image_token_id": PICTURE,
            "video_token_id": 94,
            "audio_token_id": 95,
            "boi_token_id": 92,
            "eoi_token_id": 93,
        },
        [[(1, 4, 6), (1, 2, 10)], [(1, 8, 4)], [], [(1, 2, 2)]],
        block=4,
        patch=4,
        sight=True,
    ),
    "gemma4-beside": Case(
        "Gemma4ForConditionalGeneration",
        {
            "text_config": {
                **TEXT,
                "num_hidden_layers": 4,
                "layer_types": ["sliding_attention", "full_attention"] * 2,
                "head_dim": 16,
                "global_head_dim": 24,
                "sliding_window": 7,
                "num_kv_shared_layers": 2,
                "hidden_size_per_layer_input": 12,
                "vocab_size_per_layer_input": VOCAB,
            },
            "vision_config": {
                **VIT,
                "head_dim": 16,
                "num_key_value_heads": 4,
                "patch_size": 4,
                "pooling_kernel_size": 2,
                "position_embedding_size": 16,
                "use_clipped_linears": True,
            },
            "audio_config": None,
            "image_token_id": PICTURE,
            "video_token_id": 94,
            "audio_token_id": 95,
            "boi_token_id": 92,
            "eoi_token_id": 93,
        },
        [[(1, 4, 6), (1, 2, 10)], [(1, 8, 4)], []],
        block=4,
        patch=4,
    ),
    "mistral3": Case(
        "Mistral3ForConditionalGeneration",
        {
            "text_config": {"model_type": "mistral", **TEXT, "head_dim": 16},
            "vision_config": {"model_type": "pixtral", **VIT, "image_size": 168, "patch_size": 14, "head_dim": 12},
            "spatial_merge_size": 2,
            "image_token_index": PICTURE,
        },
        [*ANY_SIZE[:3], [(1, 2, 4)]],  # transformers fails at a picture of one embedding
        block=4,
    ),
    "pixtral": Case(
        "LlavaForConditionalGeneration",
        {
            "text_config": {"model_type": "mistral", **TEXT, "head_dim": 16, "sliding_window": None},
            "vision_config": {
                "model_type": "pixtral",
                **VIT,
                "image_size": 168,
                "patch_size": 14,
                "head_dim": 12,
                "hidden_act": "silu",
            },
            "image_token_index": PICTURE,
            "vision_feature_layer": -1,
            "vision_feature_select_strategy": "full",
        },
        [[(1, 4, 3), (1, 3, 5)], [(1, 4, 4)], [], [(1, 1, 2)]],
        block=1,
    ),
    "smolvlm": Case(
        "SmolVLMForConditionalGeneration",
        {
            "text_config": {"model_type": "llama", **TEXT},
            "vision_config": {**VIT, "image_size": 64, "patch_size": 8},
            "scale_factor": 2,
            "image_token_id": PICTURE,
        },
        [[(1, 8, 8), (2, 8, 8)], [(1, 8, 8)], []],
        block=4,
        patch=8,
    ),
    "idefics3": Case(
        "Idefics3ForConditionalGeneration",
        {
            "text_config": {"model_type": "llama", **TEXT},
            "vision_config": {**VIT, "image_size": 64, "patch_size": 8},
            "scale_factor": 2,
            "image_token_id": PICTURE,
        },
        [[(1, 8, 8), (2, 8, 8)], [(1, 8, 8)], []],
        block=4,
        patch=8,
    ),
    "internvl": Case(
        "InternVLForConditionalGeneration",
        {
            "text_config": {"model_type": "qwen2", **TEXT},
            "vision_config": {**VIT, "image_size": [56, 56], "patch_size": [14, 14], "attention_bias": True},
            "image_token_id": PICTURE,
            "image_seq_length": 4,
        },
        [[(1, 4, 4), (3, 4, 4)], [(2, 4, 4)], []],
        block=4,
    ),
    "llama4": Case(
        "Llama4ForConditionalGeneration",
        {
            "text_config": {
                **TEXT,
                "head_dim": 16,
                "intermediate_size_mlp": 96,
                "num_local_experts": 4,
                "attention_chunk_size": 64,
            },
            "vision_config": {
                **VIT,
                "image_size": 56,
                "patch_size": 14,
                "intermediate_size": 192,
                "projector_input_dim": 64,
                "projector_output_dim": 64,
                "vision_output_dim": 64,
            },
            "image_token_index": PICTURE,
            "boi_token_index": 92,
            "eoi_token_index": 93,
        },
        [[(1, 4, 4), (3, 4, 4)], [(2, 4, 4)], []],
        block=4,
    ),
    "llava-onevision": Case(
        "LlavaOnevisionForConditionalGeneration",
        {
            "text_config": {"model_type": "qwen2", **TEXT},
            "vision_config": {
                "model_type": "siglip_vision_model",
                **VIT,
                "image_size": 56,
                "patch_size": 14,
                "vision_use_head": False,
            },
            "image_token_index": PICTURE,
            "video_token_index": VIDEO,
            "image_grid_pinpoints": [[56, 56], [56, 112], [112, 56], [112, 112]],
            "vision_aspect_ratio": "anyres_max_2",
        },
        [[(2, 4, 4), (5, 4, 4)], [(3, 4, 4)], []],
        block=1,
        mosaics={
            (2, 4, 4): ((40, 50), Mosaic(1, 4, 4, 4, 4)),
            (3, 4, 4): ((50, 110), Mosaic(1, 4, 8, 4, 8)),
            (5, 4, 4): ((112, 70), Mosaic(2, 8, 6, 6, 4)),  # a narrow one, which is made smaller
        },
    ),
    "llava": Case(
        "LlavaForConditionalGeneration",
        {
            "text_config": {"model_type": "llama", **TEXT},
            "vision_config": {"model_type": "clip_vision_model", **VIT, "image_size": 56, "patch_size": 14},
            "image_token_id": PICTURE,
            "image_seq_length": 16,
        },
        [[(1, 4, 4)] * 2, [(1, 4, 4)], [], [(1, 4, 4)]],
        block=1,
    ),
}


VIDEOS = [[(3, 2, 4), (1, 4, 6)], [(2, 4, 4)], []]
VIDEO_CASES: Mapping[str, Case] = {
    f"{name}-video": replace(CASES[name], pictures=VIDEOS, video=True) for name in ("qwen2_5-vl", "qwen3-vl")
}


@dataclass(frozen=True)
class Prompt:
    """Token ids, what they show, and where it is; `axes` and `offset` as in `PromptMedia`, `spans` as in `SlotMedia`."""

    ids: Sequence[int]
    grids: Sequence[tuple[int, int, int]]
    axes: np.ndarray | None = None
    offset: int = 0
    spans: Sequence[tuple[int, int]] = field(default_factory=list)
    mosaics: Sequence[Mosaic | None] = field(default_factory=list)

    def items(self, values: int) -> list[MediaItem]:
        """Patches of so many numbers, which follow from their place among all."""
        places = np.flatnonzero(np.isin(self.ids, (PICTURE, VIDEO))).astype(np.int32)
        block = len(places) and sum(int(np.prod(grid)) for grid in self.grids) // len(places)
        items, first = [], 0
        for number, grid in enumerate(self.grids):
            mosaic = self.mosaics[number] if self.mosaics else None
            count = int(np.prod(grid)) // block if mosaic is None else grid[1] * grid[2] + mosaic.num_embeddings
            items.append(
                MediaItem(
                    digest=bytes([len(self.ids), number]) * 16,
                    modality=Modality.IMAGE,
                    patches=patches_of(grid, values, number),
                    grid=grid,
                    places=places[first : first + count],
                    mosaic=mosaic,
                )
            )
            first += count
        return items


def patches_of(grid: tuple[int, int, int], values: int, number: int) -> np.ndarray:
    """The same for the same grid and number in a prompt."""
    random = np.random.default_rng([*grid, number])
    return random.standard_normal((int(np.prod(grid)), values)).astype(np.float32)


def prompt_ids(case: Case, pictures: Sequence[tuple[int, int, int]], number: int) -> list[int]:
    """Some text, pictures with text between, and more text."""
    random = np.random.default_rng(number)
    ids = random.integers(3, 80, 3 + 2 * number).tolist()
    for grid in pictures:
        for count in case.runs(grid):
            ids += [92, *[case.token] * count, 93, *random.integers(3, 80, 2).tolist()]
    return [*ids, *random.integers(3, 80, 3).tolist()]


@dataclass(frozen=True)
class Fixture:
    """What transformers computed: logits `[tokens, V]` of each prompt, and the greedy tokens after it."""

    config: Mapping[str, Any]
    shapes: Mapping[str, Sequence[int]]
    prompts: Sequence[Prompt]
    logits: Sequence[np.ndarray]
    greedy: Sequence[Sequence[int]]

    @classmethod
    def load(cls, name: str) -> Fixture:
        stored = json.loads((FIXTURES / f"{name}.json").read_text())
        arrays = np.load(FIXTURES / f"{name}.npz")
        prompts = [
            Prompt(
                one["ids"],
                [tuple(grid) for grid in one["grids"]],
                arrays.get(f"axes{number}"),
                one["offset"],
                [tuple(span) for span in one["spans"]],
                [Mosaic(*of) for of in one.get("mosaics", [])],
            )
            for number, one in enumerate(stored["prompts"])
        ]
        logits = [arrays[f"logits{number}"] for number in range(len(prompts))]
        return cls(stored["config"], stored["shapes"], prompts, logits, stored["greedy"])

    @property
    def tensors(self) -> dict[str, np.ndarray]:
        return random_tensors(self.shapes)

    @property
    def ids(self) -> list[Sequence[int]]:
        return [prompt.ids for prompt in self.prompts]

    @property
    def logprobs(self) -> list[np.ndarray]:
        return [log_softmax(logits) for logits in self.logits]

    @property
    def spread(self) -> float:
        return float(np.concatenate(self.logits).std())
