"""A small random Whisper: sounds, texts after them, and what transformers made of both.

`python -m tests.device.models.media.whisper_case` records it, and with `times` when its words are said; both need torch.
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
HEADS = ((0, 1), (1, 0), (1, 3))
"""Those that tell when words are said, as (layer, head)."""
TEXTS = ((0, 24, 40), (1, 9, 27), (2, 1, 40), (3, 12, 6))
"""Behind which prompt how many tokens are timed, in so many mel frames: also of fewer places than the median is of."""


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
    config = {**stored["config"], "alignment_heads": HEADS}
    return Fixture(config, stored["shapes"], (), logits, stored["greedy"])


@dataclass(frozen=True)
class Timed:
    """The tokens of a text after a prompt, of which sound, of how many mel frames, and when transformers says that the model
    turns from each of them to the next, in seconds."""

    prompt: Sequence[int]
    text: Sequence[int]
    sound: int
    frames: int
    times: Sequence[float]


def timed() -> list[Timed]:
    """What was recorded of texts that are anything: those that such a model writes repeat themselves."""
    return [Timed(**each) for each in json.loads((FIXTURES / "whisper_times.json").read_text())]


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


def record_times() -> None:
    """Write the file of times."""
    import torch
    import transformers

    fixture = load()
    model = transformers.WhisperForConditionalGeneration(
        transformers.WhisperConfig(**{**fixture.config, "attn_implementation": "eager"})
    )
    model.load_state_dict({name: torch.tensor(of) for name, of in fixture.tensors.items()}, strict=False)
    model.tie_weights()
    model.eval()
    found = []
    for number, count, frames in TEXTS:
        prompt, text = prompts()[number], np.random.default_rng(count).integers(3, 96, count).tolist()
        ids = torch.tensor([[*prompt.ids, *text]])
        with torch.no_grad():
            sound = torch.tensor(features(prompt.sound)[None])
            output = model(input_features=sound, decoder_input_ids=ids, output_attentions=True)
        known = np.abs(output.logits[0, : len(prompt.ids)].numpy() - fixture.logits[number]).max()
        assert known < 1e-4, f"the model is not the fixture's: {known}"
        given = transformers.utils.ModelOutput(cross_attentions=(output.cross_attentions,), sequences=ids)
        times = model._extract_token_timestamps(given, HEADS, num_frames=frames, num_input_ids=len(prompt.ids))
        told = [round(time, 2) for time in times[0, len(prompt.ids) : -1].tolist()]  # the last one is there twice
        found.append({"prompt": prompt.ids, "text": text, "sound": prompt.sound, "frames": frames, "times": told})
        print(told)
    (FIXTURES / "whisper_times.json").write_text(json.dumps(found, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    import sys

    record_times() if sys.argv[1:] == ["times"] else record()
