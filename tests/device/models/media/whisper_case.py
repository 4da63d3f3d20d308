"""A small random Whisper: sounds, texts after them, and what transformers made of both.

`python -m tests.device.models.media.whisper_case` records it, and needs torch.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from jaxengine.contract.media import MediaItem, Modality
from jaxengine.media.mel import frames_of_places
from tests.device.models.cases import log_softmax, random_tensors
from tests.device.models.media.cases import FIXTURES, Fixture

NAME = "whisper"
MELS, PLACES, NUM_GREEDY = 8, 20, 40
CONFIG = {
    "vocab_size": 96,
    "num_mel_bins": MELS,
    "d_model": 64,
    "encoder_layers": 2,
    "encoder_attention_heads": 4,
    "encoder_ffn_dim": 96,
    "decoder_layers": 2,
    "decoder_attention_heads": 4,
    "decoder_ffn_dim": 96,
    "max_source_positions": PLACES,
    "max_target_positions": 64,
    "decoder_start_token_id": 1,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
}
PROMPTS = ((5, 6, 7, 8), (9, 10), (5, 6, 7, 8), (11, *range(20, 37)))
SOUNDS = (0, 1, 2, 1)
"""The third prompt is the first one's text of another sound, the last one another text of the second's."""


@dataclass(frozen=True)
class SoundPrompt:
    """Token ids, and which sound they are of."""

    ids: Sequence[int]
    sound: int

    def item(self) -> MediaItem:
        """The sound, of which no token takes anything."""
        return MediaItem(
            digest=bytes([self.sound]) * 32,
            modality=Modality.AUDIO,
            patches=frames_of_places(features(self.sound)),
            grid=(1, 1, PLACES),
            places=np.zeros(0, np.int32),
            unplaced=PLACES,
        )


def features(sound: int) -> np.ndarray:
    """Of one sound, `[MELS, 2 * PLACES]`."""
    return np.random.default_rng(sound).standard_normal((MELS, 2 * PLACES)).astype(np.float32)


def load() -> Fixture:
    """What was recorded; its prompts are those of `prompts`."""
    stored = json.loads((FIXTURES / f"{NAME}.json").read_text())
    arrays = np.load(FIXTURES / f"{NAME}.npz")
    logits = [arrays[f"logits{number}"] for number in range(len(PROMPTS))]
    return Fixture(stored["config"], stored["shapes"], (), logits, stored["greedy"])


def prompts() -> list[SoundPrompt]:
    return [SoundPrompt(ids, sound) for ids, sound in zip(PROMPTS, SOUNDS, strict=True)]


def record() -> None:
    """Write the files."""
    import torch
    import transformers
    from safetensors.numpy import load_file, save_file

    model_class = transformers.WhisperForConditionalGeneration
    config = transformers.WhisperConfig(**CONFIG)
    config.architectures = ["WhisperForConditionalGeneration"]
    with tempfile.TemporaryDirectory() as folder:
        model_class(config).to(torch.float32).save_pretrained(folder)
        file = Path(folder) / "model.safetensors"
        shapes = {name: list(tensor.shape) for name, tensor in load_file(file).items()}
        save_file(random_tensors(shapes), file, metadata={"format": "pt"})
        model = model_class.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
        saved = json.loads((Path(folder) / "config.json").read_text())
    del saved["dtype"]  # engines choose
    arrays, greedy, lead = {}, [], float("inf")
    with torch.no_grad():
        for number, prompt in enumerate(prompts()):
            sound = torch.tensor(features(prompt.sound)[None])
            after = list(prompt.ids)
            for step in range(NUM_GREEDY + 1):
                logits = model(input_features=sound, decoder_input_ids=torch.tensor([after])).logits[0].numpy()
                if step == 0:
                    arrays[f"logits{number}"] = logits
                first, second = np.sort(logits[-1])[::-1][:2]
                lead = min(lead, float(first - second))
                after.append(int(logits[-1].argmax()))
            greedy.append(after[len(prompt.ids) :][:NUM_GREEDY])
    stored = {"config": saved, "shapes": shapes, "greedy": greedy}
    (FIXTURES / f"{NAME}.json").write_text(json.dumps(stored, separators=(",", ":")) + "\n")
    np.savez(FIXTURES / f"{NAME}.npz", **arrays)
    print(f"spread {np.concatenate(list(arrays.values())).std():.2f}, smallest lead {lead:.4f}, {greedy}")
    print(np.abs(log_softmax(arrays["logits0"]) - log_softmax(arrays["logits2"])).max(), "between two sounds")


if __name__ == "__main__":
    record()
