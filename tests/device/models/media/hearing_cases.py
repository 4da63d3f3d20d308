"""Small random models that hear, their prompts, and what transformers made of both.

`python -m tests.device.models.media.hearing_cases` records it, and needs torch.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from jaxengine.contract.media import MediaItem, Modality
from jaxengine.media.mel import frames_of_places
from tests.device.models.cases import random_tensors
from tests.device.models.media.cases import FIXTURES, NUM_GREEDY, TEXT, Fixture

MELS, PLACES, SOUND = 8, 20, 94
ENCODER = {"num_mel_bins": MELS, "max_source_positions": PLACES}
CASES: Mapping[str, tuple[str, int, Mapping[str, Any]]] = {
    "qwen2-audio": (
        "Qwen2AudioForConditionalGeneration",
        2,
        {
            "text_config": {"model_type": "qwen2", **TEXT},
            "audio_config": {
                **ENCODER,
                "model_type": "qwen2_audio_encoder",
                "d_model": 48,
                "encoder_layers": 2,
                "encoder_attention_heads": 4,
                "encoder_ffn_dim": 64,
            },
            "audio_token_index": SOUND,
        },
    ),
    "voxtral": (
        "VoxtralForConditionalGeneration",
        4,
        {
            "text_config": {"model_type": "llama", **TEXT, "head_dim": 16},
            "audio_config": {
                **ENCODER,
                "model_type": "voxtral_encoder",
                "hidden_size": 32,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "intermediate_size": 128,
            },
            "audio_token_id": SOUND,
        },
    ),
}
"""The architecture, places of an embedding, and the configuration."""
SOUNDS: Mapping[str, Sequence[Sequence[tuple[int, int]]]] = {
    "qwen2-audio": [[(1, 20), (1, 13)], [(1, 8)], []],
    "voxtral": [[(2, 20), (1, 20)], [(1, 20)], []],
}
"""Of each prompt spans and places of its sounds."""


@dataclass(frozen=True)
class SoundsPrompt:
    """Token ids, and the sounds in them."""

    ids: Sequence[int]
    sounds: Sequence[tuple[int, int]]
    merged: int
    axes: None = None
    offset: int = 0
    spans: Sequence[tuple[int, int]] = field(default_factory=list)

    def items(self, values: int) -> list[MediaItem]:
        """As a front makes them."""
        at = np.flatnonzero(np.array(self.ids) == SOUND).astype(np.int32)
        items, first = [], 0
        for number, (spans, places) in enumerate(self.sounds):
            count = spans * places // self.merged
            features = features_of(number, spans)
            patches = np.concatenate([frames_of_places(part)[:places] for part in np.split(features, spans, axis=1)])
            items.append(
                MediaItem(
                    digest=bytes([len(self.ids), number]) * 16,
                    modality=Modality.AUDIO,
                    patches=patches,
                    grid=(spans, 1, places),
                    places=at[first : first + count],
                )
            )
            first += count
        return items


def features_of(number: int, spans: int) -> np.ndarray:
    """Of one sound, `[MELS, spans * 2 * PLACES]`."""
    return np.random.default_rng(number).standard_normal((MELS, spans * 2 * PLACES)).astype(np.float32)


def prompts(name: str) -> list[SoundsPrompt]:
    """Those of a case."""
    merged = CASES[name][1]
    made = []
    for number, sounds in enumerate(SOUNDS[name]):
        random = np.random.default_rng(number)
        ids = random.integers(3, 80, 4).tolist()
        for spans, places in sounds:
            ids += [91, *[SOUND] * (spans * places // merged), 92, *random.integers(3, 80, 2).tolist()]
        made.append(SoundsPrompt(ids, sounds, merged))
    return made


def load(name: str) -> Fixture:
    """What was recorded."""
    stored, arrays = json.loads((FIXTURES / f"{name}.json").read_text()), np.load(FIXTURES / f"{name}.npz")
    logits = [arrays[f"logits{number}"] for number in range(len(SOUNDS[name]))]
    return Fixture(stored["config"], stored["shapes"], prompts(name), logits, stored["greedy"])  # type: ignore[arg-type]


def record(name: str) -> None:
    """Write one case's files."""
    import torch
    import transformers
    from safetensors.numpy import load_file, save_file

    architecture, _, options = CASES[name]
    model_class = getattr(transformers, architecture)
    config = model_class.config_class(**options)
    config.architectures = [architecture]
    with tempfile.TemporaryDirectory() as folder:
        model_class(config).to(torch.float32).save_pretrained(folder)
        file = Path(folder) / "model.safetensors"
        shapes = {key: list(tensor.shape) for key, tensor in load_file(file).items()}
        save_file(random_tensors(shapes), file, metadata={"format": "pt"})
        model = model_class.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
        saved = json.loads((Path(folder) / "config.json").read_text())
    for section in (saved, saved["text_config"], saved["audio_config"]):
        section.pop("dtype", None)
    arrays: dict[str, np.ndarray] = {}
    greedy, lead = [], float("inf")
    with torch.no_grad():
        for number, prompt in enumerate(prompts(name)):
            beside: dict[str, Any] = {}
            if prompt.sounds:
                parts = [
                    part
                    for at, (spans, _) in enumerate(prompt.sounds)
                    for part in np.split(features_of(at, spans), spans, axis=1)
                ]
                beside["input_features"] = torch.tensor(np.stack(parts))
                if name == "qwen2-audio":
                    frames = torch.arange(2 * PLACES)[None]
                    heard = torch.tensor([[2 * places] for _, places in prompt.sounds])
                    beside["feature_attention_mask"] = (frames < heard).long()
            after = list(prompt.ids)
            for step in range(NUM_GREEDY):
                tokens = torch.tensor([after])
                given = {**beside, "attention_mask": torch.ones_like(tokens)}
                logits = model(input_ids=tokens, use_cache=False, **given).logits[0].numpy()
                if step == 0:
                    arrays[f"logits{number}"] = logits
                first, second = np.sort(logits[-1])[::-1][:2]
                lead = min(lead, float(first - second))
                if int(logits[-1].argmax()) == SOUND:
                    break  # which transformers would take for a sound
                after.append(int(logits[-1].argmax()))
            greedy.append(after[len(prompt.ids) :])
    stored = {"config": saved, "shapes": shapes, "greedy": greedy}
    (FIXTURES / f"{name}.json").write_text(json.dumps(stored, separators=(",", ":")) + "\n")
    np.savez(FIXTURES / f"{name}.npz", **arrays)
    print(f"{name}: smallest lead {lead:.4f}, {len({token for tokens in greedy for token in tokens})} tokens")


if __name__ == "__main__":
    for one in CASES:
        record(one)
