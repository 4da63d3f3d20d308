"""Text in pieces: the same however the ids are cut, equal to the tokenizer's own decoding, never half a character."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxengine.text.detokenizer import Detokenizer
from jaxengine.text.tokenizer import REPLACEMENT, Tokenizer
from tests.text import tiny

make = {"byte_level": cache(tiny.byte_level), "byte_fallback": cache(tiny.byte_fallback)}
KINDS = st.sampled_from(sorted(make))
TEXT = st.text(
    st.one_of(
        st.sampled_from("the quick Tom,\n"), st.sampled_from("é中한𝔘😀👩‍👧\u0301\ufffd"), st.characters(codec="utf-8")
    ),
    max_size=40,
)


def pieces(tokenizer: Tokenizer, ids: Sequence[int], cuts: Sequence[int] = (), prompt: Sequence[int] = ()) -> list[str]:
    detokenizer = Detokenizer(tokenizer, prompt)
    ends = [*sorted(min(cut, len(ids)) for cut in cuts), len(ids)]
    starts = [0, *ends[:-1]]
    parts = [detokenizer.push(ids[start:end]) for start, end in zip(starts, ends, strict=True)]
    return [*parts, detokenizer.finish()]


@settings(deadline=None)
@given(KINDS, TEXT)
def test_text_comes_back(kind: str, text: str) -> None:
    tokenizer = make[kind]()
    ids = tokenizer.encode(text, add_special_tokens=False)
    whole = tokenizer.decode(ids, skip_special_tokens=True)
    parts = pieces(tokenizer, ids, range(len(ids)))
    assert "".join(parts) == whole
    if REPLACEMENT not in text:
        assert not any(REPLACEMENT in part for part in parts)


@settings(deadline=None)
@given(st.lists(st.integers(0, 330), max_size=40), st.lists(st.integers(0, 40), max_size=6))
def test_any_ids_of_a_byte_level_vocabulary(ids: list[int], cuts: list[int]) -> None:
    tokenizer = make["byte_level"]()
    whole = tokenizer.decode(ids, skip_special_tokens=True)
    assert "".join(pieces(tokenizer, ids, cuts)) == "".join(pieces(tokenizer, ids)) == whole


@settings(deadline=None)
@given(st.lists(st.integers(0, 290), max_size=40), st.lists(st.integers(0, 40), max_size=6))
def test_any_ids_of_a_byte_fallback_vocabulary(ids: list[int], cuts: list[int]) -> None:
    """Where byte tokens are malformed the tokenizer may take back characters; text already given stands."""
    tokenizer = make["byte_fallback"]()
    joined = "".join(pieces(tokenizer, ids, cuts))
    assert joined == "".join(pieces(tokenizer, ids)) == "".join(pieces(tokenizer, ids, range(len(ids))))
    whole = tokenizer.decode(ids, skip_special_tokens=True)
    if REPLACEMENT not in whole:
        assert joined == whole
    remaining = iter(joined)
    assert all(character in remaining for character in whole.replace(REPLACEMENT, ""))


@settings(deadline=None)
@given(KINDS, TEXT, TEXT)
def test_a_prompt_is_gone_on_with(kind: str, prompt: str, text: str) -> None:
    tokenizer = make[kind]()
    before = tokenizer.encode(f"Tom{prompt}.", add_special_tokens=False)
    after = tokenizer.encode(text, add_special_tokens=False)
    joined = "".join(pieces(tokenizer, after, range(len(after)), prompt=before))
    assert tokenizer.decode(before) + joined == tokenizer.decode([*before, *after])


@settings(deadline=None)
@given(KINDS, st.sampled_from("é中😀"), st.integers(1, 3))
def test_a_prompt_cut_inside_a_character_does_not_leak(kind: str, character: str, missing: int) -> None:
    tokenizer = make[kind]()
    ids = tokenizer.encode(f"Tom {character}", add_special_tokens=False)
    size = len(character.encode())
    cut = len(ids) - min(missing, size - 1)
    joined = "".join(
        pieces(tokenizer, [*ids[cut:], *tokenizer.encode(", Tom", add_special_tokens=False)], prompt=ids[:cut])
    )
    assert joined.lstrip(REPLACEMENT).replace("  ", " ") == ", Tom".rjust(len(joined.lstrip(REPLACEMENT)))
    assert character not in joined


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_real_vocabularies(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(("tokenizers/qwen3", "tokenizers/gpt2", "models/stories260K-hf")))
    tokenizer = real(name)
    text = data.draw(TEXT)
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert "".join(pieces(tokenizer, ids, range(len(ids)))) == tokenizer.decode(ids, skip_special_tokens=True)
    noise = data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=20))
    cuts = data.draw(st.lists(st.integers(0, 20), max_size=4))
    assert "".join(pieces(tokenizer, noise, cuts)) == "".join(pieces(tokenizer, noise))


@cache
def real(name: str) -> Tokenizer:
    path = Path(__file__).resolve().parents[3] / "shared/data" / name
    if not path.is_dir():
        pytest.skip("needs the project's ../shared/data, which is not part of the repository")
    return Tokenizer.load(path)


def test_an_unfinished_character_waits_and_is_flushed_at_the_end() -> None:
    tokenizer = tiny.byte_level()
    first, *rest = tokenizer.encode("é", add_special_tokens=False)
    detokenizer = Detokenizer(tokenizer)
    assert detokenizer.push([first]) == ""
    assert detokenizer.push(rest) == "é"
    assert detokenizer.push([first]) == ""
    assert detokenizer.finish() == REPLACEMENT
    assert detokenizer.finish() == ""


def test_what_comes_after_ids_without_text_keeps_its_space() -> None:
    tokenizer = tiny.byte_fallback()
    beyond = tokenizer.vocab_size + 7
    ids = [*tokenizer.encode("Tom said hello"), beyond, *tokenizer.encode("the")]
    assert "".join(pieces(tokenizer, ids, range(len(ids)))) == "Tom said hello the"


def test_a_prompt_cut_inside_a_character_still_gives_context() -> None:
    tokenizer = tiny.byte_fallback()
    prompt = tokenizer.encode("Tom é", add_special_tokens=False)[:-1]
    assert "".join(pieces(tokenizer, tokenizer.encode("the"), prompt=prompt)) == " the"


@pytest.mark.parametrize("ending", [["<0x80>"] * 20, ["</s>"] * 20])
def test_a_prompt_whose_end_has_no_text_of_its_own_is_still_gone_on_with(ending: list[str]) -> None:
    tokenizer = tiny.byte_fallback()
    ids = tokenizer.encode("Tom", add_special_tokens=False)
    prompt = [*ids, *map(tokenizer.backend.token_to_id, ending)]
    assert "".join(pieces(tokenizer, tokenizer.encode("the"), prompt=prompt)) == " the"


def test_special_tokens_are_left_out_or_kept() -> None:
    tokenizer = tiny.byte_level()
    ids = [*tokenizer.encode("Tom"), 1, *tokenizer.encode(" said")]
    assert "".join(pieces(tokenizer, ids)) == "Tom said"
    kept = Detokenizer(tokenizer, skip_special_tokens=False)
    assert kept.push(ids) + kept.finish() == "Tom</s> said"


def test_no_spaces_between_special_tokens_where_asked() -> None:
    tokenizer = tiny.byte_fallback()
    tokenizer.backend.add_special_tokens(["▁x"])
    tokenizer = Tokenizer(tokenizer.backend, tokenizer.settings)
    extra = tokenizer.backend.token_to_id("▁x")
    ids = [*tokenizer.encode("Tom", add_special_tokens=False), extra, extra, *tokenizer.encode("the")]
    for spaces, expected in ((True, "Tom x x the"), (False, "Tom x▁x the")):
        detokenizer = Detokenizer(tokenizer, skip_special_tokens=False, spaces_between_special_tokens=spaces)
        assert detokenizer.push(ids) + detokenizer.finish() == expected


def test_the_window_stays_short() -> None:
    tokenizer = tiny.byte_level()
    detokenizer = Detokenizer(tokenizer)
    for token_id in tokenizer.encode("Tom said hello to Mary. " * 200):
        detokenizer.push([token_id])
        assert len(detokenizer._ids) <= 16
