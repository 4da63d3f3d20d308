"""Mistral's tekken.json is read as its own library reads it: of each piece the pair of the lowest rank is made first."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from jaxengine.errors import CheckpointError, RequestError
from jaxengine.text.placeholders import Placeholders
from jaxengine.text.tokenizer import Tokenizer

CONTROL = [
    "<unk>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[BEGIN_AUDIO]",
    "[AUDIO]",
]
FILLED = 12
MERGED = [b"he", b"ll", b"lo", b"hell", b" he", b"hello", b" hello", "é".encode(), "né".encode(), b"lll", b"unused"]
PIECES = [bytes([byte]) for byte in range(256)] + MERGED
SIZE = FILLED + len(PIECES) - 1
"""The last piece is left out."""
PATTERN = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+"


def written(folder: Path, control: Sequence[str] = CONTROL, **more: Any) -> Path:
    config = {"pattern": PATTERN, "default_vocab_size": SIZE, "default_num_special_tokens": FILLED, "version": "v7"}
    said = {
        "config": config,
        "special_tokens": [{"rank": rank, "token_str": text, "is_control": True} for rank, text in enumerate(control)],
        "vocab": [
            {"rank": rank, "token_bytes": base64.b64encode(piece).decode(), "token_str": None}
            for rank, piece in enumerate(PIECES)
        ],
        **more,
    }
    (folder / "tekken.json").write_text(json.dumps(said))
    return folder


def merged(piece: bytes) -> list[int]:
    """tiktoken's way: as long as two neighbours make a token, those that make the one of the lowest rank."""
    ranks = {text: rank for rank, text in enumerate(PIECES[:-1])}
    if piece in ranks:
        return [ranks[piece] + FILLED]
    parts = [bytes([byte]) for byte in piece]
    while True:
        made = [(ranks[a + b], at) for at, (a, b) in enumerate(pairwise(parts)) if a + b in ranks]
        if not made:
            return [ranks[part] + FILLED for part in parts]
        _, at = min(made)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]


@pytest.mark.parametrize(
    "pieces", [["hello", " hello", "!"], ["hhelllo"], ["né", " né"], ["lllll"], ["\n", "unused"], ["🙂", "1", "2"]]
)
def test_texts_become_the_ids_of_the_lowest_ranks(tmp_path: Path, pieces: list[str]) -> None:
    tokenizer = Tokenizer.load(written(tmp_path), config_json={})
    text = "".join(pieces)
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert ids == [number for piece in pieces for number in merged(piece.encode())]
    assert tokenizer.decode(ids) == text
    assert tokenizer.encode(text) == [1, *ids]


def test_conversations_are_written_as_mistrals_library_does(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(written(tmp_path), config_json={})
    assert (tokenizer.vocab_size, tokenizer.bos_token, tokenizer.eos_token) == (SIZE, "<s>", "</s>")
    said = [{"type": "audio"}, {"type": "text", "text": "hello"}]
    text = tokenizer.backend.decode([3, 7, 8, *merged(b"hello"), 4], skip_special_tokens=False)
    messages = [{"role": "system", "content": "he"}, {"role": "user", "content": said}]
    assert text == "[INST][BEGIN_AUDIO][AUDIO]hello[/INST]"
    assert tokenizer.backend.encode("<SPECIAL_11>[INST]", add_special_tokens=False).ids == [11, 3]
    placeholders = Placeholders({"audio": "[BEGIN_AUDIO][AUDIO]"}, interleaved=True)
    assert (
        tokenizer.apply_chat_template(messages, placeholders=placeholders)
        == "<s>[SYSTEM_PROMPT]he[/SYSTEM_PROMPT]" + text
    )
    assert tokenizer.apply_chat_template([{"role": "assistant", "content": "lo"}]) == "<s>lo</s>"
    with pytest.raises(RequestError, match="brings no template for tools"):
        tokenizer.apply_chat_template([{"role": "tool", "content": "lo"}])


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"special_tokens": None}, "names no special tokens"),
        ({"vocab": [{"rank": 0, "token_bytes": "?"}]}, "cannot be read as a tokenizer"),
        ({"vocab": [{"rank": rank, "token_bytes": "YQ=="} for rank in range(SIZE)]}, "two tokens are alike"),
        ({"config": {}}, "cannot be read as a tokenizer"),
    ],
)
def test_damaged_files_are_told(tmp_path: Path, more: dict[str, Any], told: str) -> None:
    with pytest.raises(CheckpointError, match=told):
        Tokenizer.load(written(tmp_path, **more), config_json={})
