from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

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


def test_the_one_model_of_a_directory(tmp_path: Path) -> None:
    assert only_gguf(tmp_path) is None
    _write(tmp_path / "a.gguf")
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
