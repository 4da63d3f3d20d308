"""The bound on the characters of a token: never too low, and none where there is no bound."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, models, normalizers, pre_tokenizers

from jaxengine.text.longest_token import longest_token
from jaxengine.text.tokenizer import Tokenizer
from tests.text import tiny

KINDS = {"byte_level": tiny.byte_level(), "byte_fallback": tiny.byte_fallback()}
COMPOSING = tiny.byte_level()
COMPOSING.backend.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Replace(" ", "__")])
KINDS["composing"] = COMPOSING


@pytest.mark.parametrize("kind", KINDS)
@given(text=st.text(st.sampled_from("the cat ▁<s>\u03b1\u0313\u0301\u0345\u1100\u1161\u11a8😀"), max_size=60))
@settings(max_examples=40, deadline=None)
def test_no_text_has_fewer_tokens_than_the_bound_says(kind: str, text: str) -> None:
    tokenizer = KINDS[kind]
    assert not tokenizer.certainly_exceeds(text, len(tokenizer.encode(text)))


def test_the_bound_is_the_longest_token() -> None:
    tokenizer = tiny.byte_level()
    longest = max(tokenizer.backend.get_vocab(), key=len)
    assert longest_token(tokenizer.backend) == (len(longest), len(longest))
    assert not tokenizer.certainly_exceeds("x" * 5 * len(longest), 5)
    assert tokenizer.certainly_exceeds("x" * (5 * len(longest) + 1), 5)


def test_characters_that_are_composed_count_for_what_they_were() -> None:
    of_ascii, of_any = longest_token(COMPOSING.backend) or (0, 0)
    assert of_any == 4 * of_ascii > 0
    assert not COMPOSING.certainly_exceeds("\u03b1\u0313\u0301\u0345" * of_ascii, 1)
    assert COMPOSING.certainly_exceeds("a" * (of_ascii + 1), 1)


def no_bound(**parts: Any) -> tokenizers.Tokenizer:
    """A byte-level tokenizer with something else about it."""
    backend = tiny.byte_level().backend
    for name, part in parts.items():
        setattr(backend, name, part)
    return backend


def with_added(token: AddedToken) -> tokenizers.Tokenizer:
    backend = tiny.byte_level().backend
    backend.add_tokens([token])
    return backend


@pytest.mark.parametrize(
    "backend",
    [
        no_bound(normalizer=normalizers.Strip()),
        no_bound(normalizer=normalizers.Replace("aa", "a")),
        no_bound(normalizer=normalizers.Replace(tokenizers.Regex(" +"), " ")),
        no_bound(pre_tokenizer=pre_tokenizers.Whitespace()),
        no_bound(pre_tokenizer=pre_tokenizers.Split(" ", "removed")),
        with_added(AddedToken("<mask>", lstrip=True)),
        tokenizers.Tokenizer(models.BPE({"a": 0}, [])),
        tokenizers.Tokenizer(models.BPE({"a": 0, "?": 1}, [], unk_token="?", fuse_unk=True)),
        tokenizers.Tokenizer(models.WordLevel({"a": 0}, unk_token="a")),
    ],
)
def test_there_is_no_bound_where_text_can_vanish(backend: tokenizers.Tokenizer) -> None:
    assert longest_token(backend) is None
    assert not Tokenizer(backend).certainly_exceeds("a" * 10_000, 1)


@pytest.mark.parametrize("name", ["gpt2", "qwen3"])
def test_real_tokenizers_have_a_bound(shared: Path, name: str) -> None:
    backend = tokenizers.Tokenizer.from_file(str(shared / "tokenizers" / name / "tokenizer.json"))
    assert (longest_token(backend) or (0, 0))[0] == 128
