"""Checkpoints into parameters: right values, dtypes and shardings, each tensor read once, every disagreement before reading."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jaxengine.device.weights.checkpoint import FileCheckpoint, open_checkpoint
from jaxengine.device.weights.loader import READERS, load
from jaxengine.device.weights.report import LoadReport
from jaxengine.device.weights.rules import Array, Ignore, Rule, part, repeat_kv_heads, transpose
from jaxengine.errors import CheckpointError

from .files import numbers, write_shards, write_single

CONFIG = SimpleNamespace(tied=False, num_kv_heads=2, head_dim=4)
RULES = (
    Rule("embed.table", "embed.weight"),
    Rule("layers.*.q", "h.*.qkv.weight", part(0, 3)),
    Rule("layers.*.k", "h.*.qkv.weight", part(1, 3)),
    Rule("layers.*.v", "h.*.qkv.weight", part(2, 3)),
    Rule("layers.*.kv", "h.*.kv.weight", repeat_kv_heads),
    Rule("layers.*.out", "h.*.out.weight", transpose),
    Rule("head.table", "head.weight", absent_if="tied"),
    Ignore("h.*.bias", "a buffer"),
)
LAYERS = 3


def tensors(dtype: np.typing.DTypeLike = np.float32) -> dict[str, Array]:
    made = {"embed.weight": numbers(32, 8, dtype=dtype), "head.weight": numbers(32, 8, dtype=dtype, seed=1)}
    for layer in range(LAYERS):
        made[f"h.{layer}.qkv.weight"] = numbers(24, 8, dtype=dtype, seed=10 + layer)
        made[f"h.{layer}.kv.weight"] = numbers(8, 8, dtype=dtype, seed=20 + layer)
        made[f"h.{layer}.out.weight"] = numbers(8, 16, dtype=dtype, seed=30 + layer)
        made[f"h.{layer}.bias"] = np.ones((1, 4), np.uint8)
    return made


def expected(stored: dict[str, Array]) -> dict[str, Array]:
    made = {"embed.table": stored["embed.weight"], "head.table": stored["head.weight"]}
    for layer in range(LAYERS):
        qkv, kv = stored[f"h.{layer}.qkv.weight"], stored[f"h.{layer}.kv.weight"]
        made |= {f"layers.{layer}.{name}": qkv[8 * i : 8 * i + 8] for i, name in enumerate("qkv")}
        made[f"layers.{layer}.kv"] = np.concatenate([kv[:4], kv[:4], kv[4:], kv[4:]])
        made[f"layers.{layer}.out"] = stored[f"h.{layer}.out.weight"].T
    return made


def parameters(
    values: dict[str, Array], dtype: np.typing.DTypeLike, *, sharded: bool
) -> dict[str, jax.ShapeDtypeStruct]:
    mesh = jax.sharding.Mesh(np.asarray(jax.devices()), ("tensor",))
    specs = {"q": ("tensor",), "k": (None, "tensor"), "table": ("tensor",), "out": (None, "tensor")}
    return {
        path: jax.ShapeDtypeStruct(
            value.shape,
            jnp.dtype(dtype),
            sharding=NamedSharding(mesh, PartitionSpec(*specs.get(path.split(".")[-1], ()))) if sharded else None,
        )
        for path, value in values.items()
    }


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("shards", [False, True])
@pytest.mark.parametrize("stored_dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.float64])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_values_dtypes_and_shardings(
    stored_dtype: type, dtype: type, shards: bool, sharded: bool, tmp_path: Path
) -> None:
    stored = tensors(stored_dtype)
    names = list(stored)
    if shards:
        write_shards(tmp_path, [{name: stored[name] for name in names[start::3]} for start in range(3)])
    else:
        write_single(tmp_path, stored)
    values = expected(stored)
    wanted = parameters(values, dtype, sharded=sharded)
    loaded = load(open_checkpoint(tmp_path), RULES, wanted, CONFIG)
    assert list(loaded) == list(wanted)
    for path, array in loaded.items():
        assert (array.shape, array.dtype) == (wanted[path].shape, wanted[path].dtype)
        assert wanted[path].sharding is None or array.sharding == wanted[path].sharding
        np.testing.assert_array_equal(np.asarray(array), values[path].astype(dtype), err_msg=path)


def test_each_tensor_is_read_once_and_ignored_ones_never(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = expected(tensors())
    checkpoint = open_checkpoint(write_single(tmp_path, tensors()))
    assert isinstance(checkpoint, FileCheckpoint)
    viewed: list[str] = []
    released: list[str] = []
    view, release = checkpoint.view, checkpoint.release
    monkeypatch.setattr(checkpoint, "view", lambda name: (viewed.append(name), view(name))[1])
    monkeypatch.setattr(checkpoint, "release", lambda name: (released.append(name), release(name))[1])
    load(checkpoint, RULES, parameters(values, np.float32, sharded=False), CONFIG)
    assert sorted(viewed) == sorted(released) == sorted(name for name in tensors() if "bias" not in name)


def test_never_more_tensors_under_way_than_the_bound_allows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = expected(tensors())
    checkpoint = open_checkpoint(write_single(tmp_path, tensors()))
    assert isinstance(checkpoint, FileCheckpoint)
    held: set[str] = set()
    most = 0
    view, release = checkpoint.view, checkpoint.release

    def take(name: str) -> Array:
        nonlocal most
        held.add(name)
        most = max(most, len(held))
        return view(name)

    def give_up(name: str) -> None:
        release(name)
        held.discard(name)

    monkeypatch.setattr(checkpoint, "view", take)
    monkeypatch.setattr(checkpoint, "release", give_up)
    load(checkpoint, RULES, parameters(values, np.float32, sharded=False), CONFIG)
    assert 1 <= most <= READERS == 2
    assert not held


def test_progress_counts_to_the_end(tmp_path: Path) -> None:
    stored = tensors()
    reports: list[LoadReport] = []
    checkpoint = open_checkpoint(write_single(tmp_path, stored))
    load(checkpoint, RULES, parameters(expected(stored), np.float32, sharded=False), CONFIG, progress=reports.append)
    total = sum(tensor.nbytes for name, tensor in stored.items() if "bias" not in name)
    assert [report.num_read for report in reports] == list(range(1, len(reports) + 1))
    assert all(report.num_tensors == len(reports) and report.total_bytes == total for report in reports)
    assert reports[-1].bytes_read == total


def test_every_wrong_shape_and_type_is_listed_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = tensors()
    wanted = parameters(expected(stored), np.float32, sharded=False)
    stored["embed.weight"] = numbers(33, 8)
    stored["h.1.qkv.weight"] = numbers(25, 8)
    stored["h.0.out.weight"] = np.ones((8, 16), np.int8)
    stored["h.2.kv.weight"] = numbers(12, 8)
    checkpoint = open_checkpoint(write_single(tmp_path, stored))
    monkeypatch.setattr(checkpoint, "view", lambda name: pytest.fail(f"{name} was read"))
    with pytest.raises(CheckpointError) as caught:
        load(checkpoint, RULES, wanted, CONFIG)
    message = str(caught.value)
    assert "embed.weight: [33, 8] gives [33, 8], but embed.table is [32, 8]" in message
    assert "h.1.qkv.weight: [25, 8] for layers.1.q: array split does not result in an equal division" in message
    assert "h.0.out.weight: I8 for float32" in message
    assert "h.2.kv.weight: [12, 8] gives [12, 8], but layers.2.kv is [16, 8]" in message


def experts(count: int) -> dict[str, Array]:
    return {
        f"h.{layer}.e.{number}.up": numbers(6, 4, seed=10 * layer + number)
        for layer in range(2)
        for number in range(count)
    }


STACKED = (Rule("layers.*.up", "h.*.e.{expert}.up", transpose),)


@pytest.mark.parametrize("spec", [(), ("tensor",), (None, None, "tensor")], ids=str)
def test_numbered_tensors_become_one_parameter(spec: tuple[str | None, ...], tmp_path: Path) -> None:
    stored = experts(8)
    mesh = jax.sharding.Mesh(np.asarray(jax.devices())[:2], ("tensor",))
    sharding = NamedSharding(mesh, PartitionSpec(*spec))
    wanted = {
        f"layers.{layer}.up": jax.ShapeDtypeStruct((8, 4, 6), jnp.bfloat16, sharding=sharding) for layer in range(2)
    }
    loaded = load(open_checkpoint(write_single(tmp_path, stored)), STACKED, wanted, CONFIG)
    for layer in range(2):
        expected = np.stack([stored[f"h.{layer}.e.{number}.up"].T for number in range(8)]).astype(jnp.bfloat16)
        np.testing.assert_array_equal(np.asarray(loaded[f"layers.{layer}.up"]), expected)


def test_a_shard_of_experts_reads_its_experts_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of eight devices with one expert each: eight looks at a tensor, and never two at once in a thread."""
    checkpoint = open_checkpoint(write_single(tmp_path, experts(8)))
    assert isinstance(checkpoint, FileCheckpoint)
    log: list[tuple[str, str]] = []
    view, release = checkpoint.view, checkpoint.release
    monkeypatch.setattr(checkpoint, "view", lambda name: (log.append(("view", name)), view(name))[1])
    monkeypatch.setattr(checkpoint, "release", lambda name: (log.append(("release", name)), release(name))[1])
    mesh = jax.sharding.Mesh(np.asarray(jax.devices()), ("tensor",))
    sharding = NamedSharding(mesh, PartitionSpec("tensor"))
    wanted = {
        f"layers.{layer}.up": jax.ShapeDtypeStruct((8, 4, 6), jnp.float32, sharding=sharding) for layer in range(2)
    }
    load(checkpoint, STACKED, wanted, CONFIG)
    assert sorted(name for act, name in log if act == "view") == sorted(experts(8))
    for layer in range(2):
        acts = [act for act, name in log if name.startswith(f"h.{layer}")]
        assert acts == ["view", "release"] * 8


def test_too_few_experts_and_experts_of_another_shape_are_listed(tmp_path: Path) -> None:
    stored = experts(3) | {"h.1.e.2.up": numbers(6, 5)}
    checkpoint = open_checkpoint(write_single(tmp_path, stored))
    wanted = {f"layers.{layer}.up": jax.ShapeDtypeStruct((4, 4, 6), jnp.float32) for layer in range(2)}
    with pytest.raises(CheckpointError) as caught:
        load(checkpoint, STACKED, wanted, CONFIG)
    assert "layers.{0-1}.up: 3 for [4, 4, 6]" in str(caught.value)
    assert "h.1.e.2.up: [6, 5] gives [5, 6], but layers.1.up is [4, 6]" in str(caught.value)


def test_integers_are_taken_as_they_are(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_single(tmp_path, {"t": np.arange(5, dtype=np.int32)}))
    loaded = load(checkpoint, (Rule("t", "t"),), {"t": jax.ShapeDtypeStruct((5,), jnp.int32)}, CONFIG)
    assert loaded["t"].tolist() == [0, 1, 2, 3, 4]


def test_an_error_while_reading_ends_the_load(tmp_path: Path) -> None:
    def broken(tensor: Array, config: object, shape: tuple[int, ...]) -> Array:
        if tensor.dtype == np.float32:  # not the stand-in of the shape check
            raise RuntimeError("disk on fire")
        return tensor

    checkpoint = open_checkpoint(write_single(tmp_path, {f"t.{i}": numbers(3) for i in range(5)}))
    wanted = {f"p.{i}": jax.ShapeDtypeStruct((3,), jnp.float32) for i in range(5)}
    with pytest.raises(RuntimeError, match="disk on fire"):
        load(checkpoint, (Rule("p.*", "t.*", broken),), wanted, CONFIG)


def test_a_real_checkpoint(shared: Path) -> None:
    """Llama-2's own layout, as trained by others: every tensor has its place, and the values are safetensors' own."""
    from safetensors.numpy import load_file

    directory = shared / "models" / "stories260K-hf"
    stored = load_file(directory / "model.safetensors")
    rules = (
        *(Rule(f"layers.*.{name}", f"model.layers.*.{name}_layernorm.weight") for name in ("input", "post_attention")),
        *(Rule(f"layers.*.{name}", f"model.layers.*.self_attn.{name}_proj.weight") for name in "qkvo"),
        *(Rule(f"layers.*.{name}", f"model.layers.*.mlp.{name}_proj.weight") for name in ("gate", "up", "down")),
        Rule("embed", "model.embed_tokens.weight"),
        Rule("norm", "model.norm.weight"),
        Rule("head", "lm_head.weight", absent_if="tied"),
    )
    renamed = {
        name.removeprefix("model.").replace("self_attn.", "").replace("mlp.", ""): value
        for name, value in stored.items()
    }
    for suffix in ("_proj.weight", "_layernorm.weight", ".weight"):
        renamed = {name.removesuffix(suffix): value for name, value in renamed.items()}
    renamed = {{"embed_tokens": "embed", "lm_head": "head"}.get(name, name): value for name, value in renamed.items()}
    wanted = {name: jax.ShapeDtypeStruct(value.shape, jnp.float32) for name, value in renamed.items()}
    config = SimpleNamespace(tied="head" not in renamed)
    loaded = load(open_checkpoint(directory), rules, wanted, config)
    for name, value in renamed.items():
        np.testing.assert_array_equal(np.asarray(loaded[name]), value)


@pytest.mark.parametrize("spec", [(), ("tensor",), (None, None, "tensor")], ids=str)
def test_items_of_one_tensor_are_made_each_by_itself(spec: tuple[str | None, ...], tmp_path: Path) -> None:
    fused = numbers(8, 6, 16)  # experts, in, gates and what they let through
    rules = [
        Rule(name, "fused", lambda item, config, shape, i=i: item[:, i::2].T, each=True) for i, name in enumerate("ab")
    ]
    mesh = jax.sharding.Mesh(np.asarray(jax.devices()), ("tensor",))
    sharding = NamedSharding(mesh, PartitionSpec(*spec)) if spec else None
    values = {"a": fused[..., ::2].transpose(0, 2, 1), "b": fused[..., 1::2].transpose(0, 2, 1)}
    if spec[2:]:
        rules = [
            Rule(rule.target, "fused", lambda item, config, shape, i=i: item[:, i::2], each=True)
            for i, rule in enumerate(rules)
        ]
        values = {name: value.transpose(0, 2, 1) for name, value in values.items()}
    wanted = {name: jax.ShapeDtypeStruct(value.shape, jnp.float32, sharding=sharding) for name, value in values.items()}
    loaded = load(open_checkpoint(write_single(tmp_path, {"fused": fused})), rules, wanted, CONFIG)
    for name, value in values.items():
        np.testing.assert_array_equal(np.asarray(loaded[name]), value)
    shapes = {name: jax.ShapeDtypeStruct((8, 5, 5), jnp.float32) for name in wanted}
    with pytest.raises(CheckpointError, match=r"\[8, 6, 16\] gives \[8, "):
        load(open_checkpoint(tmp_path), rules, shapes, CONFIG)


def weighted(parts: Any, config: Any, shape: tuple[int, ...]) -> np.ndarray:
    """A direction and a length for each row, as weight norm stores them."""
    directions, lengths = parts
    return directions * lengths[:, None]


def test_several_tensors_are_one_parameter(tmp_path: Path) -> None:
    directions, lengths = np.arange(12, dtype=np.float32).reshape(3, 4), np.asarray([1.0, 0.5, 2.0], np.float32)
    checkpoint = open_checkpoint(write_single(tmp_path, {"up_g": lengths, "up_v": directions}))
    rules = (Rule("up", "up_v", weighted, also=("up_g",)),)
    wanted = {"up": jax.ShapeDtypeStruct((3, 4), jnp.float32)}
    np.testing.assert_array_equal(load(checkpoint, rules, wanted, CONFIG)["up"], directions * lengths[:, None])
    wrong = {"up": jax.ShapeDtypeStruct((3, 5), jnp.float32)}
    with pytest.raises(CheckpointError, match=r"up_v, up_g: \[3, 4\], \[3\] gives \[3, 4\], but up is \[3, 5\]"):
        load(checkpoint, rules, wrong, CONFIG)
