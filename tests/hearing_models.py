"""Small random models that hear and answer, as checkpoints have them, and what transformers answers with them.

`python -m tests.hearing_models` records the answers, and needs torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from tests.device.models.cases import random_tensors
from tests.device.models.media import hearing_cases
from tests.media_models import CHATML, VOCABULARY, Family, write_text_files
from tests.speech_models import MELS, PLACES, RATE, as_16_bits, sound

RECORDED = Path(__file__).with_suffix(".json")
NUM_GREEDY = 16
EXTRACTOR = {
    "feature_extractor_type": "WhisperFeatureExtractor",
    "feature_size": MELS,
    "sampling_rate": RATE,
    "chunk_length": 2,
}


def _family(special: Sequence[str], token: str) -> Family:
    shown = "".join(special)
    chat = CHATML.replace("part.type == 'image'", "part.type == 'audio'").replace("IMAGE", shown).replace("VIDEO", "")
    files = {"preprocessor_config.json": EXTRACTOR}
    return Family(special=tuple(special), ids={"audio": token}, chat=chat, text={}, vision={}, files=files)


FAMILIES: Mapping[str, Family] = {
    "qwen2-audio": _family(("<|audio_bos|>", "<|AUDIO|>", "<|audio_eos|>"), "<|AUDIO|>"),
    "voxtral": _family(("[BEGIN_AUDIO]", "[AUDIO]"), "[AUDIO]"),
}
SOUNDS: Mapping[str, Sequence[Sequence[float]]] = {
    "qwen2-audio": ((1.5,), (0.4, 2.0), ()),
    "voxtral": ((1.5,), (3.0, 0.5), ()),
}
"""The seconds of what each conversation shows; one of three seconds is two spans of Voxtral's encoder."""


def hearing_directory(folder: Path, name: str) -> Path:
    """The checkpoint, in `folder`: the same at every call. It hears two seconds at a time."""
    recorded, family = hearing_cases.load(name), FAMILIES[name]
    config = json.loads(json.dumps(recorded.config))
    config["audio_config"] |= {"num_mel_bins": MELS, "max_source_positions": PLACES}
    config["text_config"] |= {"vocab_size": VOCABULARY, "bos_token_id": 256, "eos_token_id": 257}
    config |= {
        key: family.id_of(family.ids["audio"]) for key in ("audio_token_id", "audio_token_index") if key in config
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(
        random_tensors({name: _changed(name, shape) for name, shape in recorded.shapes.items()}),
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    write_text_files(folder, family)
    return folder


def _changed(name: str, shape: Sequence[int]) -> list[int]:
    """The shape of a tensor of a model with this vocabulary and these sounds."""
    if name.endswith(("embed_tokens.weight", "lm_head.weight")):
        return [VOCABULARY, *shape[1:]]
    if name.endswith("embed_positions.weight"):
        return [PLACES, *shape[1:]]
    return [shape[0], MELS, shape[2]] if name.endswith("conv1.weight") else list(shape)


def shown(name: str) -> list[list[np.ndarray]]:
    """The samples of each conversation's sounds."""
    return [
        [as_16_bits(sound(seconds, 10 * number + at)) for at, seconds in enumerate(several)]
        for number, several in enumerate(SOUNDS[name])
    ]


def conversations(name: str, part: Any) -> list[list[dict[str, Any]]]:
    """One of each list of sounds, of which `part` makes a part of a message."""
    return [
        [{"role": "user", "content": [*map(part, samples), {"type": "text", "text": "What is it?"}]}]
        for samples in shown(name)
    ]


def recorded(name: str) -> list[tuple[list[int], list[int]]]:
    """The ids of each conversation, and those that transformers continues it by."""
    return [(one["prompt"], one["answer"]) for one in json.loads(RECORDED.read_text())[name]]


def record(name: str, folder: Path) -> list[dict[str, list[int]]]:
    """Ask transformers."""
    import torch
    import transformers

    hearing_directory(folder, name)
    family = FAMILIES[name]
    extractor = transformers.WhisperFeatureExtractor.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    kind = hearing_cases.CASES[name][0]
    model = getattr(transformers, kind).from_pretrained(folder, dtype=torch.float32).eval()
    found = []
    asked = conversations(name, lambda _: {"type": "audio"})
    for conversation, samples in zip(asked, shown(name), strict=True):
        text = tokenizer.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True)
        if name == "qwen2-audio":
            processor = transformers.Qwen2AudioProcessor(extractor, tokenizer, audio_token=family.ids["audio"])
            told = processor(text=text, audio=samples or None, sampling_rate=RATE, return_tensors="pt")
            given = {key: value for key, value in told.items() if key != "mm_token_type_ids"}
        else:
            given = _voxtral(transformers, extractor, tokenizer, text, samples)
        ids = given["input_ids"][0].tolist()
        with torch.no_grad():
            made = model.generate(
                **given,
                do_sample=False,
                max_new_tokens=NUM_GREEDY,
                eos_token_id=VOCABULARY,
                output_logits=True,
                return_dict_in_generate=True,
            )
        answer = made.sequences[0, len(ids) :].tolist()
        leads = [torch.topk(step[0], 2).values for step in made.logits]
        print(name, len(ids), answer, f"smallest lead {min(float(of[0] - of[1]) for of in leads):.4f}")
        found.append({"prompt": ids, "answer": answer})
    return found


def _voxtral(
    transformers: Any, extractor: Any, tokenizer: Any, text: str, samples: Sequence[np.ndarray]
) -> dict[str, Any]:
    """As its processor does it, whose conversations need mistral_common: whole spans, and a token for each four places."""
    from types import SimpleNamespace

    span, frames = 2 * RATE, 2 * PLACES
    told: dict[str, Any] = {}
    for of in samples:
        text = text.replace("[AUDIO]", "<mark>" * (-(-len(of) // span) * PLACES // 4), 1)
    if samples:
        told["input_features"] = transformers.VoxtralProcessor._retrieve_input_features(
            SimpleNamespace(feature_extractor=extractor),
            samples,
            frames,
            sampling_rate=RATE,
            padding=True,
            truncation=False,
            pad_to_multiple_of=span,
            return_tensors="pt",
        )
    return {**told, **tokenizer(text.replace("<mark>", "[AUDIO]"), return_tensors="pt", return_token_type_ids=False)}


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as made:
        answers = {name: record(name, Path(made) / name) for name in FAMILIES}
    RECORDED.write_text(json.dumps(answers, separators=(",", ":")) + "\n")
