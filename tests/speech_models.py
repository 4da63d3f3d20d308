"""A directory of a small Whisper with random weights, as checkpoints have it: it hears two seconds at a time."""

from __future__ import annotations

import io
import json
import wave
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from safetensors.numpy import save_file
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from tests.device.models.cases import random_tensors
from tests.device.models.media import whisper_case

MELS, PLACES = 16, 100
RATE, SECONDS = 16_000, PLACES * 0.02
LANGUAGES = ("en", "de", "fr")
SPECIAL = (
    "<|endoftext|>",
    "<|startoftranscript|>",
    *(f"<|{code}|>" for code in LANGUAGES),
    *("<|translate|>", "<|transcribe|>", "<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"),
)
TIMES = tuple(f"<|{place * 0.02:.2f}|>" for place in range(PLACES + 1))
VOCABULARY = 256 + len(SPECIAL) + len(TIMES)


def id_of(token: str) -> int:
    """The id of a token that is no byte."""
    return 256 + (*SPECIAL, *TIMES).index(token)


def config() -> dict[str, Any]:
    """config.json."""
    recorded: dict[str, Any] = whisper_case.load().config  # type: ignore[assignment]
    return {
        **{key: value for key, value in recorded.items() if key != "alignment_heads"},
        "vocab_size": VOCABULARY,
        "num_mel_bins": MELS,
        "max_source_positions": PLACES,
        "max_target_positions": 128,
        "bos_token_id": id_of("<|endoftext|>"),
        "eos_token_id": id_of("<|endoftext|>"),
        "pad_token_id": id_of("<|endoftext|>"),
        "decoder_start_token_id": id_of("<|startoftranscript|>"),
    }


def tensors() -> dict[str, np.ndarray]:
    """The weights."""
    changed = {
        "model.decoder.embed_tokens.weight": [VOCABULARY, 64],
        "model.decoder.embed_positions.weight": [128, 64],
        "model.encoder.embed_positions.weight": [PLACES, 64],
        "model.encoder.conv1.weight": [64, MELS, 3],
    }
    shapes = whisper_case.load().shapes
    return random_tensors(
        {name: changed.get(name, shape) for name, shape in shapes.items() if name != "proj_out.weight"}
    )


def whisper_directory(folder: Path) -> Path:
    """The checkpoint, in `folder`: the same at every call."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config()))
    said = {
        "is_multilingual": True,
        "suppress_tokens": [id_of("<|startoflm|>"), id_of("<|startofprev|>"), id_of("<|nospeech|>")],
        "begin_suppress_tokens": [32, id_of("<|endoftext|>")],
        "max_initial_timestamp_index": 50,
        "alignment_heads": whisper_case.HEADS,
    }
    (folder / "generation_config.json").write_text(json.dumps(said))
    extractor = {
        "feature_extractor_type": "WhisperFeatureExtractor",
        "feature_size": MELS,
        "sampling_rate": RATE,
        "chunk_length": 2,
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(extractor))
    named = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>", "bos_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(named))
    tokenizer().save(str(folder / "tokenizer.json"))
    save_file(tensors(), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def tokenizer() -> tokenizers.Tokenizer:
    """A token for each byte, the special ones, and times, which are not special to a tokenizer."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(models.BPE({letter: at for at, letter in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    backend.add_tokens([AddedToken(token, special=False, normalized=False) for token in TIMES])
    return backend


def sound(seconds: float, seed: int = 0) -> np.ndarray:
    """Samples of some tones, quiet now and then."""
    random = np.random.default_rng(seed)
    at = np.arange(int(seconds * RATE)) / RATE
    tones = sum(np.sin(2 * np.pi * frequency * at) for frequency in random.uniform(100, 4000, 5))
    return np.asarray(0.1 * tones * (np.sin(2 * np.pi * at / 0.7) ** 2), np.float32)


def wav(samples: np.ndarray, rate: int = RATE) -> bytes:
    """A file of 16 bits."""
    written = io.BytesIO()
    with wave.open(written, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((samples * 32768).astype("<i2").tobytes())
    return written.getvalue()


def as_16_bits(samples: np.ndarray) -> np.ndarray:
    """As they are read from such a file."""
    return (samples * 32768).astype("<i2").astype(np.float32) / 32768
