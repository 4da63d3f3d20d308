"""How much text one token can stand for: what tells without tokenising that a text has too many."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import tokenizers
from tokenizers import models, pre_tokenizers

COMPOSED = 4
"""Characters that Unicode composes to one, at most: no full canonical decomposition has more."""

COMPOSING = frozenset({"NFC", "NFKC"})
KEEPING = frozenset({"NFD", "NFKD", "Prepend", "ByteLevel"})
DIVIDING = frozenset({"ByteLevel", "Metaspace", "Split", "Digits", "Punctuation"})


def longest_token(backend: tokenizers.Tokenizer) -> tuple[int, int] | None:
    """The most characters of an ASCII text, and of any text, that one token can stand for.

    None where there is no such number: something is dropped before text is divided, or one token stands for any length of
    what the vocabulary lacks.
    """
    vocabulary = backend.get_vocab(with_added_tokens=True)
    normalizers = list(_steps(backend.normalizer, "normalizers"))
    dividers = list(_steps(backend.pre_tokenizer, "pretokenizers"))
    added = backend.get_added_tokens_decoder().values()
    if any(token.lstrip or token.rstrip for token in added):
        return None
    if not all(map(_keeps, normalizers)) or not all(map(_divides, dividers)):
        return None
    bytes_first = any(step["type"] == "ByteLevel" for step in (*normalizers, *dividers))
    if not _knows_all(backend.model, vocabulary, bytes_first=bytes_first):
        return None
    longest = max(map(len, vocabulary))
    return longest, longest * (COMPOSED if any(step["type"] in COMPOSING for step in normalizers) else 1)


def _knows_all(model: Any, vocabulary: Mapping[str, int], *, bytes_first: bool) -> bool:
    """Whether a model has a token for every character, or one each for what it lacks."""
    if not isinstance(model, models.BPE):
        return False
    if bytes_first:
        return vocabulary.keys() >= set(pre_tokenizers.ByteLevel.alphabet())
    if model.byte_fallback:
        return vocabulary.keys() >= {f"<0x{byte:02X}>" for byte in range(256)}
    return model.unk_token is not None and not model.fuse_unk


def _keeps(step: Mapping[str, Any]) -> bool:
    """Whether a normalizer leaves a text as long as it is, but for composing."""
    if step["type"] == "Replace":
        pattern = step["pattern"].get("String")
        return pattern is not None and len(step["content"]) >= len(pattern)
    return step["type"] in COMPOSING | KEEPING


def _divides(step: Mapping[str, Any]) -> bool:
    """Whether a pre-tokenizer only cuts."""
    return step["type"] in DIVIDING and step.get("behavior") != "Removed"


def _steps(part: Any, several: str) -> Iterator[Mapping[str, Any]]:
    """What a normalizer or pre-tokenizer does one after the other, as tokenizer.json writes it."""
    pending = [] if part is None else [json.loads(part.__getstate__())]
    while pending:
        step = pending.pop()
        if step["type"] == "Sequence":
            pending += step[several]
        else:
            yield step
