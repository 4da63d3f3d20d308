"""Small adapters, one per switch of PEFT's: their configurations, what PEFT wrote of them, and logits of the merged models.

Their numbers, as those of the models that they belong to, are made of the tensors' names: of what PEFT wrote the configuration is
kept as it is, and of the weights names and shapes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from tests.device.models.cases import PROMPTS, Fixture, random_tensors

FIXTURES = Path(__file__).parent / "fixtures"

_LINEARS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
ADAPTERS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"r": 8, "lora_alpha": 16, "target_modules": _LINEARS}),
    "llama-rslora-one-layer": (
        "llama",
        {"r": 4, "lora_alpha": 6, "use_rslora": True, "target_modules": ["q_proj", "down_proj"]}
        | {"layers_to_transform": [1]},
    ),
    "llama-patterns": (
        "llama",
        {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "k_proj", "up_proj"]}
        | {"rank_pattern": {"k_proj": 3, r"layers\.1\.mlp\.up_proj": 7}, "alpha_pattern": {"q_proj": 2}},
    ),
    "llama-vocabulary": (
        "llama",
        {"r": 4, "lora_alpha": 4, "target_modules": ["embed_tokens", "lm_head", "v_proj"]},
    ),
    "llama-saved-head": (
        "llama",
        {"r": 4, "lora_alpha": 4, "target_modules": ["q_proj"], "modules_to_save": ["lm_head"]},
    ),
    "qwen3": ("qwen3", {"r": 8, "lora_alpha": 16, "target_modules": "all-linear"}),
    "qwen3-tied": (
        "qwen3",
        {"r": 8, "lora_alpha": 4, "target_modules": ["embed_tokens", "q_proj"], "ensure_weight_tying": True},
    ),
    "phi3-fused": ("phi3", {"r": 8, "lora_alpha": 8, "target_modules": ["qkv_proj", "o_proj", "gate_up_proj"]}),
    "gpt2-convolutions": ("gpt2", {"r": 4, "lora_alpha": 8, "target_modules": ["c_attn", "c_proj", "c_fc"]}),
    "deepseek-v2-lite-latent": (
        "deepseek-v2-lite",
        {"r": 4, "lora_alpha": 1, "target_modules": ["q_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"]},
    ),
}
"""By name: the case of the model, and the options of `peft.LoraConfig`."""


@dataclass(frozen=True, slots=True)
class AdapterFixture:
    """An adapter `config` and the `shapes` of its file, and for each of `PROMPTS` the logits `[tokens, V]` of `base` with it."""

    base: Fixture
    config: Mapping[str, Any]
    shapes: Mapping[str, Sequence[int]]
    logits: Sequence[np.ndarray]

    @classmethod
    def load(cls, name: str) -> AdapterFixture:
        stored = json.loads((FIXTURES / f"{name}.json").read_text())
        arrays = np.load(FIXTURES / f"{name}.npz")
        return cls(
            Fixture.load(ADAPTERS[name][0]),
            stored["config"],
            stored["shapes"],
            [arrays[str(i)] for i in range(len(PROMPTS))],
        )

    def write(self, directory: Path) -> Path:
        """The adapter's directory, as PEFT writes it."""
        directory.mkdir(parents=True)
        (directory / "adapter_config.json").write_text(json.dumps(self.config))
        tensors = adapter_tensors(self.shapes, tied=self.config["ensure_weight_tying"])
        save_file(tensors, directory / "adapter_model.safetensors", metadata={"format": "pt"})
        return directory


def adapter_tensors(shapes: Mapping[str, Sequence[int]], *, tied: bool) -> dict[str, np.ndarray]:
    """The numbers of an adapter; whole tensors of its base model are the base model's where they were not trained.

    Where the head is tied to the embedding its matrices are those of the embedding, the other way round.
    """
    before = "base_model.model."
    names = {
        name: name.removeprefix(before).replace(".base_layer", "") if "base_layer" in name else name for name in shapes
    }
    made = random_tensors({names[name]: shape for name, shape in shapes.items()})
    tensors = {name: made[names[name]] for name in shapes}
    if tied:
        embedding, head = f"{before}model.embed_tokens", f"{before}lm_head"
        tensors[f"{head}.base_layer.weight"] = tensors[f"{embedding}.base_layer.weight"]
        for side, other in ("AB", "BA"):
            tensors[f"{head}.lora_{side}.weight"] = tensors[f"{embedding}.lora_embedding_{other}"].T.copy()
    return tensors
