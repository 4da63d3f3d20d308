"""Small tokenizers of the two kinds that models have, built in memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from jaxengine.text.settings import TokenizerSettings
from jaxengine.text.tokenizer import Tokenizer

SENTENCES = [
    "Once upon a time there was a small cat who liked to sit in the sun.",
    "The quick brown fox jumps over the lazy dog, and the dog sleeps on.",
    "Tom said hello to Mary. Mary said hello to Tom!",
]


def byte_level() -> Tokenizer:
    """GPT-2's kind: text is bytes, special tokens `<s>` (BOS), `</s>` (EOS) and `<tool>` (added, not special)."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=320, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=["<s>", "</s>"]
    )
    backend.train_from_iterator(SENTENCES, trainer)
    backend.add_tokens(["<tool>"])
    return Tokenizer(backend, TokenizerSettings(special_tokens={"bos_token": "<s>", "eos_token": "</s>"}))


def byte_fallback() -> Tokenizer:
    """Llama 2's kind: words with a leading bar for the space, single bytes for what the vocabulary lacks."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    letters = sorted({letter for sentence in SENTENCES for letter in sentence.replace(" ", "▁")})
    vocabulary = {piece: index for index, piece in enumerate([*pieces, *letters, "▁t", "▁th", "▁the", "he"])}
    merges = [("▁", "t"), ("▁t", "h"), ("▁th", "e"), ("h", "e")]
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="first", split=False)
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(content=" ", left=1)]
    )
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    return Tokenizer(backend, TokenizerSettings(special_tokens={"bos_token": "<s>", "eos_token": "</s>"}))


def write(directory: Path, tokenizer: Tokenizer, **config: Any) -> Path:
    """A tokenizer directory as a checkpoint has it."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.backend.save(str(directory / "tokenizer.json"))
    named = dict(tokenizer.settings.special_tokens)
    (directory / "tokenizer_config.json").write_text(json.dumps({**named, **config}), encoding="utf-8")
    return directory
