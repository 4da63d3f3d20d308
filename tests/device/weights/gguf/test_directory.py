from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer as TokenizerFile

from jaxengine import embedded
from jaxengine.device.weights.checkpoint import open_checkpoint
from jaxengine.device.weights.gguf.directory import directory_of, only_gguf
from jaxengine.errors import CheckpointError
from jaxengine.text.tokenizer import Tokenizer
from tests.device.models.cases import Fixture

gguf_files = pytest.importorskip("tests.device.weights.gguf.gguf_files", reason="the gguf library is not installed")
tokens = pytest.importorskip("tests.device.weights.gguf.tokens")

TEXTS = [
    "Once upon a time,  there was\n\n a 12345 fox!",
    "é ü ß \N{GRINNING FACE} 日本語",
    "<|user|>hi<|end|>",
    "def f(x):\n\treturn x",
]


BEGINS = 2


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("JAXENGINE_CACHE_DIR", str(tmp_path / "kept"))
    return tmp_path / "kept"


def _write(path: Path, tokenizer: Path | None = None) -> Path:
    plain = Fixture.load("llama")
    say = {} if tokenizer is None else {"say": lambda writer: tokens.say_tokens(writer, tokenizer)}
    path.parent.mkdir(parents=True, exist_ok=True)
    return gguf_files.write(path, "llama", plain.config, plain.tensors, interleaved=True, **say)


def test_what_was_written_is_kept_until_the_file_changes(tmp_path: Path) -> None:
    path = _write(tmp_path / "model.gguf")
    directory = directory_of(path)
    before = (directory / "config.json").stat().st_mtime_ns
    assert directory_of(path) == directory
    assert (directory / "config.json").stat().st_mtime_ns == before
    path.write_bytes(path.read_bytes() + b"\0" * 32)
    assert directory_of(path) != directory


def test_an_incomplete_directory_is_written_again(tmp_path: Path) -> None:
    path = _write(tmp_path / "model.gguf")
    directory = directory_of(path)
    (directory / "model.gguf.json").unlink()
    assert (directory_of(path) / "model.gguf.json").is_file()


def test_a_damaged_file_is_told(tmp_path: Path) -> None:
    path = _write(tmp_path / "model.gguf")
    whole = path.read_bytes()
    directory = directory_of(path)
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointError, match=r"model\.gguf is truncated: expected"):
        open_checkpoint(directory)
    for damaged in (b"GGUF", b"", b"nothing", whole[: len(whole) // 2]):
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match=r"model\.gguf is truncated or not a GGUF file"):
            directory_of(path)
    path.unlink()
    with pytest.raises(CheckpointError, match="is gone"):
        open_checkpoint(directory)


def test_several_files_are_one_model(tmp_path: Path) -> None:
    plain = Fixture.load("llama")
    whole = _write(tmp_path / "whole" / "model.gguf")
    whole_tensors = open_checkpoint(directory_of(whole)).tensors
    some = {name: tensor for name, tensor in plain.tensors.items() if "layers.1" not in name}
    others = {name: tensor for name, tensor in plain.tensors.items() if "layers.1" in name}
    for number, part in enumerate((some, others), 1):
        path = tmp_path / f"model-{number:05}-of-00002.gguf"
        gguf_files.write(path, "llama", plain.config, part, interleaved=True)
    directory = directory_of(tmp_path / "model-00001-of-00002.gguf")
    checkpoint = open_checkpoint(directory)
    assert checkpoint.tensors.keys() == whole_tensors.keys()
    for name, expected in plain.tensors.items():
        np.testing.assert_array_equal(checkpoint.view(name), expected)
    with pytest.raises(CheckpointError, match="is not the first"):
        directory_of(tmp_path / "model-00002-of-00002.gguf")
    (tmp_path / "model-00002-of-00002.gguf").unlink()
    with pytest.raises(CheckpointError, match=r"lacks model-00002-of-00002\.gguf"):
        directory_of(tmp_path / "model-00001-of-00002.gguf")


def test_a_file_without_a_model_says_what_it_is(tmp_path: Path) -> None:
    plain = Fixture.load("llama")
    path = gguf_files.write(
        tmp_path / "lora.gguf", "llama", plain.config, plain.tensors, say=lambda writer: writer.add_type("adapter")
    )
    with pytest.raises(CheckpointError, match="of the type 'adapter' and has no model"):
        directory_of(path)


def test_types_that_nothing_reads_are_named(tmp_path: Path) -> None:
    plain, integers = Fixture.load("llama"), np.zeros((8, 64), np.int8)
    say = {"say": lambda writer: writer.add_tensor("blk.0.attn_q_norm.weight", integers)}
    path = gguf_files.write(tmp_path / "a.gguf", "qwen3", plain.config, plain.tensors, **say)
    with pytest.raises(CheckpointError, match=r"tensor blk\.0\.attn_q_norm\.weight .* is in I8, which is not read"):
        directory_of(path)
    stored = path.read_bytes()
    at = stored.index(b"blk.0.attn_q_norm.weight") + len("blk.0.attn_q_norm.weight") + 4 + 2 * 8
    path.write_bytes(stored[:at] + (31).to_bytes(4, "little") + stored[at + 4 :])  # Q4_0_4_4, which there is no more
    with pytest.raises(CheckpointError, match="a type of ggml's that the installed gguf library does not know"):
        directory_of(path)


def test_the_one_model_of_a_directory(tmp_path: Path) -> None:
    assert only_gguf(tmp_path) is None
    _write(tmp_path / "a.gguf")
    (tmp_path / "mmproj-a.gguf").touch()  # what shows it pictures
    (tmp_path / "imatrix.gguf").touch()
    assert only_gguf(tmp_path) == tmp_path / "a.gguf"
    _write(tmp_path / "b.gguf")
    with pytest.raises(CheckpointError, match=r"several models in GGUF: a\.gguf, b\.gguf"):
        only_gguf(tmp_path)
    (tmp_path / "model.safetensors").touch()
    assert only_gguf(tmp_path) is None


def _same_tokenizer(directory: Path, source: Path) -> None:
    made, own = Tokenizer.load(directory), Tokenizer.load(source)
    for text in TEXTS:
        assert made.encode(text) == own.encode(text)
        assert made.decode(made.encode(text)) == own.decode(own.encode(text))
    assert made.eos_token == own.eos_token


def test_tokens_are_those_of_the_tokenizer_in_the_file(tmp_path: Path) -> None:
    source = embedded.checkpoint_path()
    directory = directory_of(_write(tmp_path / "model.gguf", source))
    _same_tokenizer(directory, source)
    assert (directory / "chat_template.jinja").read_text() == (source / "chat_template.jinja").read_text()
    config = json.loads((directory / "config.json").read_text())
    assert config["eos_token_id"] == json.loads((source / "config.json").read_text())["eos_token_id"]


def _tokenizer(tmp_path: Path, pre: str) -> Path:
    def say(writer: Any) -> None:
        tokens.say_tokens(writer, embedded.checkpoint_path(), pre=pre)
        writer.add_bos_token_id(BEGINS)

    plain = Fixture.load("llama")
    return directory_of(gguf_files.write(tmp_path / f"{pre}.gguf", "llama", plain.config, plain.tensors, say=say))


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("smollm", ["don", "'t", " ", "1", "2", "3", "4", "5", "!", "\n", "\n", "x"]),
        ("glm4", ["don", "'t", " ", "123", "45", "!\n\n", "x"]),
        ("deepseek-v3", ["don", "'t", " ", "123", "45", "!\n\n", "x"]),
        ("seed-coder", ["don", "'t", " ", "1", "2", "3", "4", "5", "!", "\n\n", "x"]),
    ],
)
def test_texts_are_split_as_the_file_says(pre: str, pieces: list[str], tmp_path: Path) -> None:
    stored = json.loads((_tokenizer(tmp_path, pre) / "tokenizer.json").read_text())
    backend = TokenizerFile.from_str(json.dumps(stored))
    found = backend.pre_tokenizer.pre_tokenize_str("don't 12345!\n\nx")
    assert ["don't 12345!\n\nx"[begin:end] for _, (begin, end) in found] == pieces


def test_words_that_are_tokens_stay_whole_and_texts_begin_as_llama_3s_do(tmp_path: Path) -> None:
    for pre, expected in (("llama-bpe", True), ("gpt-2", False)):
        directory = _tokenizer(tmp_path, pre)
        assert json.loads((directory / "tokenizer.json").read_text())["model"]["ignore_merges"] is expected
        assert (Tokenizer.load(directory).encode("x")[0] == BEGINS) is expected


def test_an_unknown_way_to_split_texts_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"splits texts by 'kimi-k2', which is not known.*tokenizer="):
        _tokenizer(tmp_path, "kimi-k2")


@pytest.mark.slow
def test_tokens_of_qwen3(tmp_path: Path, shared: Path) -> None:
    source = shared / "tokenizers" / "qwen3"
    path = gguf_files.write(
        tmp_path / "model.gguf",
        "llama",
        Fixture.load("llama").config,
        Fixture.load("llama").tensors,
        interleaved=True,
        say=lambda writer: tokens.say_tokens(writer, source, pre="qwen2"),
    )
    _same_tokenizer(directory_of(path), source)
