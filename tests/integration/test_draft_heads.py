"""What reads a model's states and drafts for it changes no token, and is right now and then: few tokens, random weights."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from jaxengine.contract.metrics import DraftStats, StatsListener, StepStats
from jaxengine.contract.sampling_params import SamplingParams
from jaxengine.host.scheduler.draft_length import DraftLength
from tests.integration.engines import LLAMA, run, start, token_ids, write_config

TOKENS = 12
SMALL: dict[str, Any] = {"vocab_size": TOKENS, "num_hidden_layers": 6, "tie_word_embeddings": False}
WITH_PREDICTOR = {
    "architectures": ["Glm4MoeForCausalLM"],
    "model_type": "glm4_moe",
    **{name: LLAMA[name] for name in ("hidden_size", "intermediate_size", "max_position_embeddings", "torch_dtype")},
    "vocab_size": TOKENS,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
}
HEAD = {**LLAMA, **SMALL, "num_hidden_layers": 1}
DFLASH = {name: value for name, value in HEAD.items() if name not in ("mlp_bias", "rope_scaling")}
HEADS = {
    "eagle": HEAD,
    "eagle3": {**HEAD, "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": TOKENS},
    "dflash": {
        **DFLASH,
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "dflash_config": {"target_layer_ids": [1, 4], "mask_token_id": 3},
    },
}


@pytest.mark.parametrize("method", ["mtp", *HEADS])
@pytest.mark.slow
def test_tokens_are_those_without_drafts(tmp_path, monkeypatch, method):
    monkeypatch.setattr(DraftLength, "choose", lambda self, *args, **kwargs: self.most)  # also where it does not pay
    target = write_config(tmp_path / "target", **SMALL)
    asked: dict[str, Any] = {"method": method, "num_speculative_tokens": 3}
    if method == "mtp":
        (target / "config.json").write_text(json.dumps(WITH_PREDICTOR))
    else:
        asked["model"] = str(written(tmp_path / "head", HEADS[method]))
    expected = token_ids(run(start(target), *requests()))
    engine = start(target, speculative_config=asked)
    steps: list[DraftStats] = []
    engine.core.recorder.listen(Drafts(steps))
    assert token_ids(run(engine, *requests())) == expected
    assert sum(step.num_accepted_tokens for step in steps) > 0


class Drafts(StatsListener):
    """Notes what drafts came to in each step."""

    def __init__(self, steps: list[DraftStats]) -> None:
        self._steps = steps

    def on_step(self, stats: StepStats) -> None:
        self._steps.append(stats.drafts)


def requests() -> tuple[list[list[int]], list[SamplingParams]]:
    """Prompts longer and shorter than a row, greedy and with noise."""
    numbers = random.Random(5)
    prompts = [[numbers.randrange(TOKENS) for _ in range(numbers.randrange(1, 40))] for _ in range(6)]
    params = [
        SamplingParams(temperature=temperature, seed=seed, max_tokens=24, ignore_eos=True, detokenize=False)
        for seed, temperature in enumerate((0.0, 1.0, 0.7, 0.0, 1.2, 0.5))
    ]
    return prompts, params


def written(directory: Path, config: dict[str, Any]) -> Path:
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(config))
    return directory
