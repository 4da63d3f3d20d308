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

from tests.device.models.cases import (
    CASES,
    CLASSIFYING_MODELS,
    EMBEDDING_MODEL,
    FIXTURES,
    NUM_GREEDY,
    PROMPTS,
    random_tensors,
)
from tests.device.models.encoder_cases import ENCODERS, INPUTS, SECOND_FROM
from tests.device.models.rwkv7_reference import Reference, config_of, shapes_of

NOT_EAGER = ("FalconForCausalLM",)
"""Whose eager attention adds ALiBi's distances twice, in the mask and beside it (transformers 5.23)."""
MISNAMED = ("language_model.model.blocks.", "language_model.model.layers.")
"""How transformers 5.23 saves Kimi K2.5's layers, as if they were those that see pictures, and how checkpoints have them."""
OF_PICTURES = ("vision_tower.", "mm_projector.", "model.mm_projector.")
"""Tensors of Kimi K2.5 that no text meets."""


LANGUAGE_PARTS = {"Step3p5ForCausalLM": "Step3p7ForConditionalGeneration"}
"""What transformers has with eyes only, and the name of the whole; their tensors are the language model's, but for `EYES`."""
EYES = ("vision_", "vit_")
SMALL_EYES = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "mlp_ratio": 2.0,
}


def build(architecture: str, options: Mapping[str, Any]) -> tuple[Any, dict[str, Any], dict[str, list[int]]]:
    """The transformers model with the case's weights, its config.json, and the shapes of what it saves.

    Of RWKV-7, which transformers has not, a `Reference`.
    """
    if architecture == "RWKV7ForCausalLM":
        config = config_of(options)
        shapes = shapes_of(config)
        return Reference(config, random_tensors(shapes)), config, shapes
    model_class = getattr(transformers, LANGUAGE_PARTS.get(architecture, architecture))
    if architecture in LANGUAGE_PARTS:
        options = {"text_config": options, "vision_config": SMALL_EYES}
    config = model_class.config_class(**options)
    config.architectures = [architecture]
    with tempfile.TemporaryDirectory() as folder:
        model_class(config).to(torch.float32).save_pretrained(folder)
        file = Path(folder) / "model.safetensors"
        shapes = {
            name.replace(*MISNAMED): list(tensor.shape)
            for name, tensor in load_file(file).items()
            if not name.startswith(OF_PICTURES)
        }
        save_file(random_tensors(shapes), file, metadata={"format": "pt"})
        attention = "sdpa" if architecture in NOT_EAGER else "eager"
        model = model_class.from_pretrained(folder, dtype=torch.float32, attn_implementation=attention).eval()
        saved = json.loads((Path(folder) / "config.json").read_text())
    del saved["dtype"]  # engines choose
    if architecture in LANGUAGE_PARTS:
        saved = {**saved["text_config"], "architectures": [architecture]}
        shapes = {name: shape for name, shape in shapes.items() if not name.startswith(EYES)}
    return model, saved, shapes


@torch.no_grad()
def logits(model: Any, ids: list[int]) -> np.ndarray:
    """`[tokens, V]` of one prompt, without a cache."""
    if isinstance(model, Reference):
        return model.logits(ids)
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


@torch.no_grad()
def record_classifying(name: str) -> None:
    """Write the files of one of the models with classes."""
    model, config, shapes = build(*CLASSIFYING_MODELS[name])
    stored = {"config": config, "shapes": shapes}
    (FIXTURES / f"classifying_{name}.json").write_text(json.dumps(stored, separators=(",", ":")) + "\n")
    arrays = {}
    for number, prompt in enumerate(PROMPTS):
        ids = torch.tensor([prompt])
        arrays[f"hidden{number}"] = model.model(ids, use_cache=False).last_hidden_state[0].numpy()
        arrays[f"logits{number}"] = model(ids, use_cache=False).logits[0].numpy()
    np.savez(FIXTURES / f"classifying_{name}.npz", **arrays)


@torch.no_grad()
def record_encoder(name: str) -> None:
    """Write the files of one of the encoders."""
    model, config, shapes = build(*ENCODERS[name])
    stored = {"config": config, "shapes": shapes}
    (FIXTURES / f"encoder_{name}.json").write_text(json.dumps(stored, separators=(",", ":")) + "\n")

    def computed(ids: list[int], **options: Any) -> np.ndarray:
        if not config.get("is_causal", True):  # which transformers has no switch for: a mask that hides nothing
            options["attention_mask"] = torch.zeros(1, 1, len(ids), len(ids))
        output = model(torch.tensor([ids]), **options)
        return (output.logits if hasattr(output, "logits") else output.last_hidden_state)[0].numpy()

    arrays = {str(number): computed(ids) for number, ids in enumerate(INPUTS)}
    if getattr(model.config, "type_vocab_size", 1) > 1:
        kinds = [int(place >= SECOND_FROM) for place in range(len(INPUTS[0]))]
        arrays["paired"] = computed(INPUTS[0], token_type_ids=torch.tensor([kinds]))
    np.savez(FIXTURES / f"encoder_{name}.npz", **arrays)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "cases", nargs="+", choices=[*CASES, *CLASSIFYING_MODELS, *ENCODERS, "embeddings", "all"], metavar="CASE"
    )
    asked = parser.parse_args().cases
    FIXTURES.mkdir(exist_ok=True)
    for case in (*CASES, *CLASSIFYING_MODELS, *ENCODERS) if "all" in asked else asked:
        torch.manual_seed(0)
        if case in CLASSIFYING_MODELS:
            record_classifying(case)
        elif case in ENCODERS:
            record_encoder(case)
        elif case != "embeddings":
            record(case)
    if {"all", "embeddings"} & set(asked):
        record_embeddings()
