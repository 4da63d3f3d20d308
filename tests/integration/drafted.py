"""Targets with the embedded model's tokenizer and what drafts for them, by method."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jaxengine import embedded

PACKAGED = {"draft_model": embedded.checkpoint_path(), "eagle3": embedded.draft_path()}
"""What drafts for the embedded model, from which the others take sizes alone."""
MODEL = json.loads((embedded.checkpoint_path() / "config.json").read_text())
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1}
OF_ANY = {name: value for name, value in MODEL.items() if name not in ("mlp_bias", "pretraining_tp", "rope_scaling")}
CONFIGS: dict[str, dict[str, Any]] = {
    "eagle": {**MODEL, **HEADS, "num_hidden_layers": 1},
    "dflash": {
        **OF_ANY,
        **HEADS,
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "num_hidden_layers": 1,
        "dflash_config": {"target_layer_ids": [0, 3], "mask_token_id": 3},
    },
    "mtp": {
        **OF_ANY,
        "architectures": ["Glm4MoeForCausalLM"],
        "model_type": "glm4_moe",
        "num_hidden_layers": 2,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
    },
}
PAGES = 28
"""Of both: a draft whose heads are not the target's has as many pages of its own, out of the same number."""


def drafted_by(method: str, directory: Path, *, num_drafts: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options of an engine, and those with which it drafts too. What has to be written goes to `directory`.

    `draft_model` is the embedded model itself and `eagle3` its head. All others have random weights, the target too.
    """
    speculation: dict[str, Any] = {"method": method, "num_speculative_tokens": num_drafts}
    target: dict[str, Any] = {}
    if method in PACKAGED:
        speculation["model"] = str(PACKAGED[method])
    else:
        (directory / "config.json").write_text(json.dumps(CONFIGS[method]))
        target["load_format"] = "dummy"
        if method == "mtp":
            target |= {"model": str(directory), "tokenizer": str(embedded.checkpoint_path())}
        else:
            speculation["model"] = str(directory)
    shares_pages = method in ("draft_model", "mtp")
    return target, {"speculative_config": speculation} | ({} if shares_pages else {"num_pages": PAGES})
