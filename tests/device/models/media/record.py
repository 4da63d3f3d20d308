"""Record what transformers computes: `python -m tests.device.models.media.record CASE ...`, or `all`. Needs torch."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.numpy import load_file, save_file

from tests.device.models.cases import random_tensors
from tests.device.models.media.cases import (
    CASES,
    FIXTURES,
    NUM_GREEDY,
    PICTURE,
    VIDEO,
    VIDEO_CASES,
    VOCAB,
    Case,
    patches_of,
    prompt_ids,
)

ALL = {**CASES, **VIDEO_CASES}


def build(case: Case) -> tuple[Any, dict[str, Any], dict[str, list[int]]]:
    """The transformers model with the case's weights, its config.json, and the shapes of what it saves."""
    model_class = getattr(transformers, case.architecture)
    if case.architecture.startswith(
        "Llama4"
    ):  # transformers 5.23 reads it of its language model's outputs, which lack it
        transformers.modeling_outputs.MoeCausalLMOutputWithPast.image_outputs = None
    config = model_class.config_class(**case.config)
    config.architectures = [case.architecture]
    with tempfile.TemporaryDirectory() as folder:
        model_class(config).to(torch.float32).save_pretrained(folder)
        file = Path(folder) / "model.safetensors"
        shapes = {name: list(tensor.shape) for name, tensor in load_file(file).items()}
        if case.architecture == "Qwen3VLMoeForConditionalGeneration":  # as published; transformers 5 saves them turned
            shapes |= {name: [of[0], of[2], of[1]] for name, of in shapes.items() if ".experts." in name}
        save_file(random_tensors(shapes), file, metadata={"format": "pt"})
        model = model_class.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
        saved = json.loads((Path(folder) / "config.json").read_text())
    for section in (saved, saved["text_config"], saved["vision_config"]):
        section.pop("dtype", None)  # engines choose
    return model, saved, shapes


def given(case: Case, pictures: Sequence[tuple[int, int, int]]) -> dict[str, Any]:
    """What the model is given beside ids."""
    if not pictures:
        return {}
    channels = 3 * (2 if case.architecture.startswith("Qwen") else 1)
    patches = [patches_of(grid, channels * case.patch**2, number) for number, grid in enumerate(pictures)]
    if case.architecture.startswith("Qwen"):
        values, grids = torch.tensor(np.concatenate(patches)), torch.tensor(pictures)
        if not case.video:
            return {"pixel_values": values, "image_grid_thw": grids}
        times = {
            "second_per_grid_ts": torch.full((len(pictures),), 0.5)
        }  # Qwen2.5-VL's, in whose positions time counts
        return {
            "pixel_values_videos": values,
            "video_grid_thw": grids,
            **(times if case.architecture.startswith("Qwen2_5") else {}),
        }
    if case.architecture.startswith("Gemma4"):
        return in_rows(patches, pictures, case)
    frames = [
        pixels(frame, grid, case.patch)
        for of, grid in zip(patches, pictures, strict=True)
        for frame in np.split(of, grid[0])
    ]
    if case.config["vision_config"].get("model_type") == "pixtral":  # smaller ones are padded
        sizes = [(grid[1] * case.patch, grid[2] * case.patch) for grid in pictures]
        whole = np.zeros((len(frames), 3, *np.max(sizes, axis=0)), np.float32)
        for place, frame in zip(whole, frames, strict=True):
            place[:, : frame.shape[1], : frame.shape[2]] = frame
        return {"pixel_values": torch.tensor(whole), "image_sizes": torch.tensor(sizes)}
    if case.mosaics:
        most = max(grid[0] for grid in pictures)
        tiles = np.zeros((len(pictures), most, *frames[0].shape), np.float32)
        for number, grid in enumerate(pictures):
            tiles[number, : grid[0]] = [frames.pop(0) for _ in range(grid[0])]
        sizes = torch.tensor([case.mosaics[grid][0] for grid in pictures])
        return {"pixel_values": torch.tensor(tiles), "image_sizes": sizes}
    values = torch.tensor(np.stack(frames))
    return {"pixel_values": values[None] if case.architecture.startswith(("SmolVLM", "Idefics3")) else values}


def in_rows(
    patches: Sequence[np.ndarray], pictures: Sequence[tuple[int, int, int]], case: Case
) -> dict[str, torch.Tensor]:
    """Patches of Gemma 4, `[pictures, most, size * size * 3]`, and column and row of each; those of nothing are -1."""
    most = max(len(of) for of in patches)
    values = np.zeros((len(patches), most, patches[0].shape[1]), np.float32)
    positions = np.full((len(patches), most, 2), -1)
    for number, (of, (_, height, width)) in enumerate(zip(patches, pictures, strict=True)):
        values[number, : len(of)] = of.reshape(len(of), 3, case.patch**2).swapaxes(1, 2).reshape(len(of), -1)
        positions[number, : len(of)] = np.indices((height, width)).reshape(2, -1).T[:, ::-1]
    return {"pixel_values": torch.tensor(values), "image_position_ids": torch.tensor(positions)}


def pixels(patches: np.ndarray, grid: tuple[int, int, int], size: int) -> np.ndarray:
    """Patches row by row, `[n, 3 * size * size]` -> `[3, height, width]`."""
    _, height, width = grid
    cut = patches.reshape(height, width, 3, size, size).transpose(2, 0, 3, 1, 4)
    return np.ascontiguousarray(cut.reshape(3, height * size, width * size))


@torch.no_grad()
def logits(model: Any, ids: list[int], beside: dict[str, Any]) -> np.ndarray:
    """`[tokens, V]` of one prompt, without a cache."""
    tokens = torch.tensor([ids])
    if beside:
        beside = {**beside, **kinds(model, tokens)}
    return model(input_ids=tokens, use_cache=False, **beside).logits[0].numpy()


@torch.no_grad()
def greedy(model: Any, ids: list[int], beside: dict[str, Any]) -> tuple[list[int], float]:
    """Greedy tokens, and the smallest lead of a winner over its runner-up."""
    tokens = torch.tensor([ids])
    if beside:
        beside = {**beside, **kinds(model, tokens)}
    made = model.generate(
        input_ids=tokens,
        attention_mask=torch.ones_like(tokens),
        do_sample=False,
        max_new_tokens=NUM_GREEDY,
        eos_token_id=VOCAB,  # which no model makes
        output_logits=True,
        return_dict_in_generate=True,
        **beside,
    )
    leads = [np.sort(step[0].numpy())[::-1] for step in made.logits]
    return made.sequences[0, len(ids) :].tolist(), min(float(step[0] - step[1]) for step in leads)


def kinds(model: Any, tokens: torch.Tensor) -> dict[str, Any]:
    """What newer models are told of each token."""
    if hasattr(getattr(model, "model", None), "get_rope_index"):
        return {"mm_token_type_ids": (tokens == PICTURE).int() + 2 * (tokens == VIDEO).int()}
    if "Gemma4" in type(model).__name__:
        return {"mm_token_type_ids": (tokens == PICTURE).int()}
    return {"token_type_ids": (tokens == PICTURE).int()} if "Gemma3" in type(model).__name__ else {}


def axes(model: Any, ids: list[int], beside: dict[str, Any]) -> tuple[np.ndarray | None, int]:
    """Positions on three axes, and what a later position has beyond its number."""
    if not hasattr(getattr(model, "model", None), "get_rope_index") or not beside:
        return None, 0
    tokens = torch.tensor([ids])
    told = {**kinds(model, tokens), **{name: of for name, of in beside.items() if not name.startswith("pixel")}}
    found, delta = model.model.get_rope_index(tokens, attention_mask=torch.ones_like(tokens), **told)
    return found[:, 0].numpy().astype(np.int32), int(delta)


def record(name: str) -> None:
    """Write one case's files."""
    case = ALL[name]
    model, config, shapes = build(case)
    arrays: dict[str, np.ndarray] = {}
    prompts, outputs, lead = [], [], float("inf")
    for number, pictures in enumerate(case.pictures):
        ids, beside = prompt_ids(case, pictures, number), given(case, pictures)
        arrays[f"logits{number}"] = logits(model, ids, beside)
        positions, offset = axes(model, ids, beside)
        if positions is not None:
            arrays[f"axes{number}"] = positions
        prompts.append({"ids": ids, "grids": pictures, "offset": offset, "spans": case.spans(ids)})
        if case.mosaics:
            prompts[-1]["mosaics"] = [case.mosaics[grid][1] for grid in pictures]
        tokens, smallest = greedy(model, ids, beside)
        outputs.append(tokens)
        lead = min(lead, smallest)
    stored = {"config": config, "shapes": shapes, "prompts": prompts, "greedy": outputs}
    (FIXTURES / f"{name}.json").write_text(json.dumps(stored, separators=(",", ":")) + "\n")
    np.savez(FIXTURES / f"{name}.npz", **arrays)
    distinct = len({token for tokens in outputs for token in tokens})
    spread = np.concatenate([arrays[f"logits{number}"] for number in range(len(prompts))]).std()
    print(f"{name}: spread {spread:.2f}, smallest lead {lead:.4f}, {distinct} tokens")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="+", choices=[*ALL, "all"], metavar="CASE")
    asked = parser.parse_args().cases
    FIXTURES.mkdir(exist_ok=True)
    for one in ALL if "all" in asked else asked:
        torch.manual_seed(0)
        record(one)
