"""The real TPU compiler takes the kernels, on one chip and inside `shard_map` over four, and leaves the pool where it is."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pallas_kernels import write_kv
from pallas_kernels.check import MODELS, TOPOLOGIES, Heads, checks, devices, main, pool_moves
from tests.quick import rare_but
from tests.targets.tpu import available

pytestmark = pytest.mark.tpu_compile


@pytest.fixture(autouse=True)
def libtpu() -> None:
    available("v6e-1")


def compile_all(target: str, chips: int, models: dict[str, Heads]) -> None:
    for check in checks(target, chips, models):
        hlo = check.compile().as_text()
        assert "tpu_custom_call" in hlo, check.name
        assert "all-" not in hlo, f"{check.name}: every chip has what its heads need"


@pytest.mark.parametrize("target", rare_but(["v5e", "v4", "v6e"], {"v5e"}))
def test_heads_of_128_on_one_chip(target: str) -> None:
    compile_all(target, 1, {"Llama-3.1-8B": MODELS["Llama-3.1-8B"]})


@pytest.mark.parametrize("target", rare_but(TOPOLOGIES, {"v5e", "tpu7x"}))
def test_kv_heads_shared_by_four_chips(target: str) -> None:
    compile_all(target, 4, {"Llama-3.1-8B": MODELS["Llama-3.1-8B"]})


def test_fewer_kv_heads_than_chips_are_repeated() -> None:
    compile_all("v6e", 4, {"two KV heads": Heads(16, 2, 128)})


@pytest.mark.parametrize(
    "heads",
    [
        Heads(3, 3, 64),
        Heads(14, 2, 80),
        Heads(4, 1, 128, kv_dtype="int8"),
        MODELS["Gemma-2-9B"],
        *(
            pytest.param(heads, marks=pytest.mark.rare)
            for heads in (
                Heads(8, 2, 64),
                Heads(16, 1, 112),
                Heads(32, 32, 96),
                Heads(10, 10, 128),
                Heads(8, 4, 64, kv_dtype="float8_e5m2"),
                Heads(6, 3, 80, kv_dtype="float8_e4m3fn"),
            )
        ),
    ],
    ids=str,
)
def test_head_sizes_and_ratios(heads: Heads) -> None:
    compile_all("v6e", 1, {"model": heads})


@pytest.mark.parametrize("target", rare_but(["v5e", "v6e"], {"v6e"}))
@pytest.mark.parametrize("model", ["Gemma-3-27B", pytest.param("Whisper-large-v3", marks=pytest.mark.rare)])
def test_tokens_that_see_others_than_those_before(model: str, target: str) -> None:
    compile_all(target, 1, {model: MODELS[model]})


def test_a_page_table_as_large_as_the_scalar_memory_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """256 rows of 32 thousand tokens; twice as long ones are worked off in two calls."""
    for pages_per_row in (512, 1024):
        monkeypatch.setattr("pallas_kernels.check.PAGES_PER_ROW", pages_per_row)
        monkeypatch.setattr("pallas_kernels.check.STEPS", {"decode": (256, 256)})
        (decode,) = checks("v6e", 1, {"Qwen3-0.6B": MODELS["Qwen3-0.6B"]})
        calls = decode.compile().as_text().count("tpu_custom_call")
        assert calls == 1 + pages_per_row // 512  # writing, and attending once or twice


def test_without_pages_of_its_shape_a_tpu_copies_the_pool() -> None:
    """Why `kv_page_shape` exists; and that what the other tests look for is found."""
    pool = (4096, 64, 16, 64)
    mesh = Mesh(np.asarray(devices("v6e", 1)), ("tensor",))
    whole = NamedSharding(mesh, PartitionSpec())
    tokens = jax.ShapeDtypeStruct((64, 8, 64), jnp.bfloat16, sharding=whole)
    slots = jax.ShapeDtypeStruct((64,), jnp.int32, sharding=whole)
    with jax.set_mesh(mesh):
        traced = jax.jit(lambda *arrays: write_kv(*arrays, backend="xla"), donate_argnums=0).trace(
            jax.ShapeDtypeStruct(pool, jnp.bfloat16, sharding=whole), tokens, tokens, slots
        )
        compiled = traced.lower(lowering_platforms=("tpu",)).compile()
    assert any("copy" in move for move in pool_moves(compiled, pool, itemsize=2))


def test_the_command_says_what_failed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pallas_kernels.check.MODELS", {"impossible": Heads(4, 3, 128)})
    assert main(["--target", "v6e", "--model", "impossible"]) == 1
    printed = capsys.readouterr().out
    assert "impossible decode" in printed
    assert "FAILED ValueError: axis heads: q has 4 query heads, which 3 KV heads do not divide" in printed
    assert "2 failed" in printed
