"""What a model directory may hold, and what is said when it does not."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from jaxengine.device.weights.checkpoint import FileCheckpoint, open_checkpoint, shard_names
from jaxengine.errors import CheckpointError

from .files import INDEX, numbers, shard_name, write_pickled, write_shards, write_single

PARTS = [{"a": numbers(3), "b": numbers(2, 2)}, {"c": numbers(4)}]


def opened(path: Path, load_format: str = "auto") -> FileCheckpoint:
    checkpoint = open_checkpoint(path, load_format=load_format)
    assert isinstance(checkpoint, FileCheckpoint)
    return checkpoint


@pytest.mark.parametrize("load_format", ["auto", "safetensors"])
def test_one_file_and_several_give_the_same_tensors(load_format: str, tmp_path: Path) -> None:
    whole = opened(write_single(tmp_path / "whole", PARTS[0] | PARTS[1]), load_format)
    sharded = opened(write_shards(tmp_path / "sharded", PARTS), load_format)
    assert set(whole.tensors) == set(sharded.tensors) == {"a", "b", "c"}
    for name in whole.tensors:
        np.testing.assert_array_equal(whole.view(name), sharded.view(name))
        sharded.release(name)


def test_torchs_files_are_read_where_there_are_no_others(tmp_path: Path) -> None:
    write_pickled(tmp_path / "one" / "pytorch_model.bin", PARTS[0])
    write_pickled(tmp_path / "two" / "pytorch_model-1.bin", PARTS[0])
    write_pickled(tmp_path / "two" / "pytorch_model-2.bin", PARTS[1])
    where = {"a": "pytorch_model-1.bin", "b": "pytorch_model-1.bin", "c": "pytorch_model-2.bin"}
    (tmp_path / "two" / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": where}))
    for load_format in ("auto", "pt"):
        assert set(opened(tmp_path / "one", load_format).tensors) == {"a", "b"}
        sharded = opened(tmp_path / "two", load_format)
        np.testing.assert_array_equal(sharded.view("c"), PARTS[1]["c"])
    write_single(tmp_path / "one", {"d": numbers(1)})
    assert set(opened(tmp_path / "one").tensors) == {"d"}
    assert set(opened(tmp_path / "one", "pt").tensors) == {"a", "b"}
    with pytest.raises(CheckpointError, match="pickled weights"):
        open_checkpoint(tmp_path / "two", load_format="safetensors")


def test_missing_shards_are_named_all_at_once(tmp_path: Path) -> None:
    write_shards(tmp_path, [*PARTS, {"d": numbers(1)}])
    (tmp_path / shard_name(0, 3)).unlink()
    (tmp_path / shard_name(2, 3)).unlink()
    with pytest.raises(CheckpointError, match=rf"lacks 2 of 3 .*{shard_name(0, 3)}, {shard_name(2, 3)}"):
        open_checkpoint(tmp_path)


def test_a_truncated_shard_is_named(tmp_path: Path) -> None:
    write_shards(tmp_path, PARTS)
    shard = tmp_path / shard_name(1, 2)
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=rf"{shard_name(1, 2)} is truncated"):
        open_checkpoint(tmp_path)


def test_a_tensor_that_only_the_index_has_is_named(tmp_path: Path) -> None:
    write_shards(tmp_path, PARTS)
    index = json.loads((tmp_path / INDEX).read_text())
    index["weight_map"] |= {"ghost": shard_name(0, 2), "c": shard_name(0, 2)}
    (tmp_path / INDEX).write_text(json.dumps(index))
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(tmp_path)
    assert f"ghost ({shard_name(0, 2)})" in str(caught.value)
    assert f"c ({shard_name(0, 2)})" in str(caught.value)


def test_a_tensor_that_the_index_forgot_still_counts(tmp_path: Path) -> None:
    write_shards(tmp_path, PARTS)
    save_file(PARTS[1] | {"forgotten": numbers(1)}, tmp_path / shard_name(1, 2))
    assert "forgotten" in opened(tmp_path).tensors


@pytest.mark.parametrize(
    "name", ["../x.safetensors", "/etc/x.safetensors", "sub/x.safetensors", "..", "a\\b", "", "evil.py"]
)
def test_an_index_cannot_leave_its_directory(name: str, tmp_path: Path) -> None:
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(CheckpointError, match="beside their index"):
        shard_names(tmp_path / INDEX)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"weight_map": 3}', '{"weight_map": []}', "[" * 100_000])
def test_a_bad_index(content: str, tmp_path: Path) -> None:
    (tmp_path / INDEX).write_text(content)
    with pytest.raises(CheckpointError, match="is not an index of weight files"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("name", ["model.bin", "pytorch_model-00001-of-00002.bin", "consolidated.00.pth"])
def test_pickled_weights_of_another_name_say_how_to_convert(name: str, tmp_path: Path) -> None:
    (tmp_path / name).touch()
    with pytest.raises(CheckpointError, match=rf"(?s){name}.*from_pretrained\('{tmp_path}'.*save_pretrained"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("files", "load_format", "message"),
    [
        ([], "auto", "holds no weights: expected model.safetensors.* found an empty directory"),
        (["config.json", "other.safetensors"], "auto", "found config.json, other.safetensors"),
        (["adapter_model.safetensors"], "auto", "LoRA adapter"),
        (["model.safetensors"], "orbax", "jaxengine convert"),
        (["pytorch_model.bin"], "orbax", "jaxengine convert"),
    ],
)
def test_directories_without_weights(files: list[str], load_format: str, message: str, tmp_path: Path) -> None:
    for name in files:
        (tmp_path / name).touch()
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(tmp_path, load_format=load_format)


def test_not_a_directory(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is not a directory"):
        open_checkpoint(tmp_path / "none")


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        ("{", "cannot be read"),
        ('{"format": 99, "parameters": {}}', "format 99, this version reads 1"),
        ('{"format": 1}', "cannot be read"),
        ('{"format": 1, "parameters": {"a": {"shape": [1], "dtype": "float32"}}}', "no orbax/ beside it"),
    ],
)
def test_damaged_converted_checkpoints(manifest: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "jaxengine_weights.json").write_text(manifest)
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(tmp_path)
