"""Layers that predict several tokens, of each family: small random ones, and what transformers' layers guess with them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.device.models.cases import CASES, FIXTURES, VOCAB, random_tensors

TOKENS = [17, 60, 8, 41, 2, 90, 33, 5, 71, 12, 64]
"""What follows each place of a sequence, the last of them sampled."""
COUNT = 4
"""Guesses."""
WIDTH = 64
MTP = {"token_norm": "enorm", "state_norm": "hnorm", "join": "eh_proj"}
QWEN = {"token_norm": "pre_fc_norm_embedding", "state_norm": "pre_fc_norm_hidden", "join": "fc", "norm": "norm"}
MIMO = {
    "token_norm": "token_layernorm",
    "state_norm": "hidden_layernorm",
    "join": "input_proj",
    "norm": "final_layernorm",
}
ERNIE = {"token_norm": "mtp_emb_norm.0", "state_norm": "mtp_hidden_norm.0", "join": "mtp_linear_proj.0"}
MINIMAX = {"token_norm": "e_norm", "state_norm": "h_norm", "join": "linear_projection"}


@dataclass(frozen=True, kw_only=True)
class Case:
    """The target is that of `target` in `CASES` with `changes`, under another name where `architecture` says so.

    The block is computed by that model with the options `block`, whose layers' names become those that begin with `source`, and
    parts of them as in `renamed`. `names` are the checkpoint's for what is around it, behind `prefix`; without a `norm` among
    them it is the target's.
    """

    target: str
    block: Mapping[str, Any]
    source: Sequence[str]
    prefix: str
    names: Mapping[str, str]
    changes: Mapping[str, Any] | None = None
    architecture: str | None = None
    renamed: Mapping[str, str] | None = None
    state_first: bool = False
    hands_normed: bool = False
    extras: Mapping[str, Any] | None = None

    @property
    def options(self) -> dict[str, Any]:
        """The target's, for transformers."""
        return {**CASES[self.target][1], **(self.changes or {})}

    def name(self, stored: str) -> str:
        """What the checkpoint calls a tensor of the block's model."""
        for number, source in enumerate(self.source):
            for prefix in (f"model.layers.{number}.", f"backbone.layers.{number}."):
                if stored.startswith(prefix):
                    rest = stored.removeprefix(prefix)
                    for usual, own in (self.renamed or {}).items():
                        rest = rest.replace(usual, own)
                    return source + rest
        if "norm" in self.names and stored in ("model.norm.weight", "backbone.norm_f.weight"):
            return f"{self._norm_prefix}{self.names['norm']}.weight"
        return stored

    @property
    def _norm_prefix(self) -> str:
        return self.source[-1] if len(self.source) > 1 else self.prefix

    @property
    def around(self) -> dict[str, np.ndarray]:
        """What joins tokens and states, by the checkpoint's names."""
        shapes = {"token_norm": (WIDTH,), "state_norm": (WIDTH,), "join": (WIDTH, 2 * WIDTH)}
        return random_tensors({f"{self.prefix}{self.names[part]}.weight": shape for part, shape in shapes.items()})


def behind(number: int) -> dict[str, Any]:
    """Names of a layer behind the last."""
    prefix = f"model.layers.{number}."
    return {"source": [prefix], "prefix": prefix, "names": {**MTP, "norm": "shared_head.norm"}}


DRAFTS: Mapping[str, Case] = {
    "deepseek-v3": Case(target="deepseek-v3", block={"first_k_dense_replace": 0}, **behind(3)),
    "deepseek-v3.2": Case(
        target="deepseek-v3.2", block={"first_k_dense_replace": 0, "mlp_layer_types": None}, **behind(3)
    ),
    "glm4-moe": Case(target="glm4-moe", block={"first_k_dense_replace": 0}, **behind(2)),
    "ernie4_5-moe": Case(
        target="ernie4_5-moe",
        block={"moe_layer_start_index": 1},
        source=["model.mtp_block.0."],
        prefix="model.",
        names=ERNIE,
    ),
    "mimo": Case(
        target="qwen2",
        architecture="MiMoForCausalLM",
        block={},
        source=["model.mtp_layers.0."],
        prefix="model.mtp_layers.0.",
        names=MIMO,
        state_first=True,
        hands_normed=True,
    ),
    "mimo-v2": Case(
        target="mimo-v2",
        block={"layer_types": ["sliding_attention"], "mlp_layer_types": ["dense"]},
        source=["model.mtp.layers.0."],
        prefix="model.mtp.layers.0.",
        names={**MTP, "norm": "final_layernorm"},
        renamed={"post_attention_layernorm": "pre_mlp_layernorm"},
        hands_normed=True,
    ),
    "minimax-m2": Case(
        target="minimax-m2",
        block={},
        source=["model.mtp_layers.0."],
        prefix="model.mtp_layers.0.",
        names=MINIMAX,
        state_first=True,
    ),
    "qwen3-next": Case(
        target="qwen3-next",
        block={"layer_types": ["full_attention"], "mlp_only_layers": []},
        source=["mtp.layers.0."],
        prefix="mtp.",
        names=QWEN,
        hands_normed=True,
    ),
    "qwen3_5": Case(
        target="qwen3_5",
        block={"layer_types": ["full_attention"]},
        source=["mtp.layers.0."],
        prefix="mtp.",
        names=QWEN,
        hands_normed=True,
    ),
    "qwen3_5-moe": Case(
        target="qwen3_5-moe",
        block={"layer_types": ["full_attention"]},
        source=["mtp.layers.0."],
        prefix="mtp.",
        names=QWEN,
        hands_normed=True,
    ),
    "nemotron-h": Case(
        target="nemotron-h",
        block={"layers_block_type": ["attention", "moe"]},
        source=["mtp.layers.0.", "mtp.layers.1."],
        prefix="mtp.layers.0.",
        names={**MTP, "norm": "final_layernorm"},
        hands_normed=True,
        extras={"mtp_hybrid_override_pattern": "*E"},
    ),
}


@dataclass(frozen=True)
class DraftFixture:
    """What transformers computed: logits `[COUNT, V]` of guesses after `TOKENS` with `states`, and the guesses."""

    config: Mapping[str, Any]
    shapes: Mapping[str, Sequence[int]]
    guesses: Sequence[int]
    logits: np.ndarray

    @classmethod
    def load(cls, name: str) -> DraftFixture:
        stored = json.loads((FIXTURES / "drafts" / f"{name}.json").read_text())
        return cls(stored["config"], stored["shapes"], stored["guesses"], np.array(stored["logits"], np.float32))

    def tensors(self, case: Case) -> dict[str, np.ndarray]:
        """Of the draft, and the target's embedding, head and norm, by the checkpoint's names."""
        own = {case.name(name): tensor for name, tensor in random_tensors(self.shapes).items()}
        return {**own, **case.around}


def states(width: int = WIDTH, count: int = 1) -> np.ndarray:
    """A state of each place, `[tokens, count * width]`."""
    return np.random.default_rng(3).normal(size=(len(TOKENS), count * width)).astype(np.float32)


assert max(TOKENS) < VOCAB
