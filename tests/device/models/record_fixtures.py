"""Record what transformers computes: `python -m tests.device.models.record_fixtures CASE ...`, or `all`. Needs torch."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.numpy import load_file, save_file

from tests.device.models.cases import CASES, EMBEDDING_MODEL, FIXTURES, NUM_GREEDY, PROMPTS, random_tensors

NOT_EAGER = ("FalconForCausalLM",)
"""Whose eager attention adds ALiBi's distances twice, in the mask and beside it (transformers 5.23)."""


def build(architecture: str, options: Mapping[str, Any]) -> tuple[Any, dict[str, Any], dict[str, list[int]]]:
    """The transformers model with the case's weights, its config.json, and the shapes of what it saves."""
    model_class = getattr(transformers, architecture)
    config = model_class.config_class(**options)
    config.architectures = [architecture]
    with tempfile.TemporaryDirectory() as folder:
        model_class(config).to(torch.float32).save_pretrained(folder)
        file = Path(folder) / "model.safetensors"
        shapes = {name: list(tensor.shape) for name, tensor in load_file(file).items()}
        save_file(random_tensors(shapes), file, metadata={"format": "pt"})
        attention = "sdpa" if architecture in NOT_EAGER else "eager"
        model = model_class.from_pretrained(folder, dtype=torch.float32, attn_implementation=attention).eval()
        saved = json.loads((Path(folder) / "config.json").read_text())
    del saved["dtype"]  # engines choose
    return model, saved, shapes


@torch.no_grad()
def logits(model: Any, ids: list[int]) -> np.ndarray:
    """`[tokens, V]` of one prompt, without a cache."""
    return model(torch.tensor([ids]), use_cache=False).logits[0].numpy()


@torch.no_grad()
def embedding(model: Any, ids: list[int]) -> np.ndarray:
    """`[E]` of one prompt: the last hidden state, of length one."""
    hidden = model(torch.tensor([ids]), use_cache=False).last_hidden_state[0, -1]
    return torch.nn.functional.normalize(hidden, dim=-1).numpy()


def greedy(model: Any, prompt: list[int]) -> tuple[list[int], float]:
    """Greedy tokens, each from a pass over the whole sequence, and the smallest lead of a winner over its runner-up."""
    ids, lead = list(prompt), float("inf")
    for _ in range(NUM_GREEDY):
        last = logits(model, ids)[-1]
        first, second = np.sort(last)[::-1][:2]
        lead = min(lead, float(first - second))
        ids.append(int(last.argmax()))
    return ids[len(prompt) :], lead


def record(name: str) -> None:
    """Write one case's files."""
    model, config, shapes = build(*CASES[name])
    outputs = [greedy(model, prompt) for prompt in PROMPTS]
    stored = {"config": config, "shapes": shapes, "greedy": [tokens for tokens, _ in outputs]}
    (FIXTURES / f"{name}.json").write_text(json.dumps(stored, separators=(",", ":")) + "\n")
    all_logits = [logits(model, prompt) for prompt in PROMPTS]
    np.savez(FIXTURES / f"{name}.npz", **{str(i): array for i, array in enumerate(all_logits)})
    distinct = len({token for tokens, _ in outputs for token in tokens})
    spread = np.concatenate(all_logits).std()
    print(f"{name}: spread {spread:.2f}, smallest lead {min(lead for _, lead in outputs):.4f}, {distinct} tokens")


def record_embeddings() -> None:
    """Write the embedding model's files."""
    model, config, shapes = build(*EMBEDDING_MODEL)
    stored = {"config": config, "shapes": shapes}
    (FIXTURES / "embedding.json").write_text(json.dumps(stored, separators=(",", ":")) + "\n")
    np.savez(FIXTURES / "embedding.npz", **{str(i): embedding(model, prompt) for i, prompt in enumerate(PROMPTS)})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="+", choices=[*CASES, "embeddings", "all"], metavar="CASE")
    asked = parser.parse_args().cases
    FIXTURES.mkdir(exist_ok=True)
    for case in CASES if "all" in asked else asked:
        torch.manual_seed(0)
        if case != "embeddings":
            record(case)
    if {"all", "embeddings"} & set(asked):
        record_embeddings()
