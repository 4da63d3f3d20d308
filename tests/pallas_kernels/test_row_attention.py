"""Every backend of attention within rows against its definition; a row's numbers do not depend on the others of its step."""

from __future__ import annotations

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxengine.startup.native import register_native
from jaxengine.startup.native_libraries import native_directory
from pallas_kernels import KernelUnsupported, Relative, row_attention
from pallas_kernels.check import devices
from pallas_kernels.native import ROW_ATTENTION, calling
from pallas_kernels.row_attention import tpu
from tests.pallas_kernels.simulation import checked_tpu
from tests.quick import rare_but, slow_but
from tests.targets.tpu import available
from xla_cache.library import NoCompilerError

SHAPES = {
    "mixed": (96, (5, 1, 40, 0, 17), 6, 3, 16),
    "one long": (200, (190,), 4, 4, 64),
    "only padding": (16, (0, 0), 2, 1, 32),
    "full": (130, (64, 66), 12, 12, 32),
}
"""Places, tokens of each row, heads, KV heads and their size."""


@pytest.fixture(scope="module")
def native() -> str:
    try:
        name, _ = register_native(native_directory(), symbols=[ROW_ATTENTION])
    except NoCompilerError as error:
        pytest.skip(str(error))
    return name


def inputs(name: str, dtype: str = "float32") -> tuple[jax.Array, ...]:
    places, counts, heads, kv_heads, size = SHAPES[name]
    numbers = np.random.default_rng(len(name))
    q, keys, values = (
        numbers.normal(size=(places, count, size)).astype(np.float32) for count in (heads, kv_heads, kv_heads)
    )
    for array in (q, keys, values):
        array[sum(counts) :] = np.nan  # padding may be anything
    return *(jnp.asarray(array, dtype) for array in (q, keys, values)), jnp.cumsum(jnp.array([0, *counts])).astype(
        jnp.int32
    )


def run(backend: str, arguments: tuple[jax.Array, ...], window: int | None, library: str | None = None) -> np.ndarray:
    with calling(library):
        attend = jax.jit(functools.partial(row_attention, scale=0.3, window=window, backend=backend))
        return np.asarray(attend(*arguments).astype(jnp.float32))


def test_the_definition_is_softmax_within_rows() -> None:
    q, keys, values, offsets = inputs("mixed")
    found = run("reference", (q, keys, values, offsets), 3)
    begin, end = 6, 46
    for place, head in ((begin, 0), (begin + 9, 5), (end - 1, 3)):
        seen = slice(max(begin, place - 3), min(end, place + 4))
        scores = 0.3 * np.asarray(keys[seen, head // 2]) @ np.asarray(q[place, head])
        weights = np.exp(scores - scores.max())
        expected = weights @ np.asarray(values[seen, head // 2]) / weights.sum()
        np.testing.assert_allclose(found[place, head], expected, atol=1e-5)
    assert not found[63:].any()


@pytest.mark.parametrize("window", slow_but([None, 0, 9], {9}))
@pytest.mark.parametrize("name", slow_but(SHAPES, {"mixed"}))
def test_xla_and_native_are_the_definition(native: str, name: str, window: int | None) -> None:
    arguments = inputs(name)
    expected = run("reference", arguments, window)
    for backend, library in (("xla", None), ("native", native)):
        np.testing.assert_allclose(run(backend, arguments, window, library), expected, atol=1e-5, err_msg=backend)


def relative(places: int, heads: int, *, of_keys: bool = True) -> Relative:
    """Five classes of distances: far before, near before, the same place, near behind, far behind."""
    numbers = np.random.default_rng(places)
    of_queries, of_each_key = (jnp.asarray(numbers.normal(size=(places, heads, 5)), jnp.float32) for _ in range(2))
    classes = np.repeat(np.arange(5, dtype=np.int32), (4, 3, 1, 3, 4))
    return Relative(classes, of_queries, of_each_key) if of_keys else Relative(classes, of_queries[:1])


def run_relative(backend: str, arguments: tuple[jax.Array, ...], added: Relative) -> np.ndarray:
    attend = jax.jit(functools.partial(row_attention, scale=0.3, relative=added, backend=backend))
    return np.asarray(attend(*arguments))


@pytest.mark.parametrize("of_keys", slow_but([True, False], {False}))
def test_numbers_of_distances_are_added_to_products(of_keys: bool) -> None:
    q, keys, values, offsets = inputs("full")
    added = relative(len(q), 12, of_keys=of_keys)
    found = run_relative("reference", (q, keys, values, offsets), added)
    for place, head in ((64, 0), (70, 5), (129, 11)):
        row = np.arange(64, 130)
        kind = np.select([place - row < -3, place - row < 0, place == row, place - row < 4], [0, 1, 2, 3], 4)
        scores = np.asarray(keys[row, head]) @ np.asarray(q[place, head])
        scores += np.asarray(added.of_queries)[place if of_keys else 0, head, kind]
        if added.of_keys is not None:
            scores += np.asarray(added.of_keys)[row, head, kind]
        weights = np.exp(0.3 * (scores - scores.max()))
        np.testing.assert_allclose(
            found[place, head], weights @ np.asarray(values[row, head]) / weights.sum(), atol=1e-5
        )
    np.testing.assert_allclose(run_relative("xla", (q, keys, values, offsets), added), found, atol=1e-5)


def test_distances_are_for_as_many_kv_heads_as_heads() -> None:
    arguments = inputs("mixed")
    with pytest.raises(ValueError, match="heads"):
        row_attention(*arguments, scale=1.0, relative=relative(96, 6))
    with pytest.raises(KernelUnsupported, match="by distance"):
        row_attention(*inputs("full"), scale=1.0, relative=relative(130, 12), backend="native")


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["xla", "native"])
def test_bfloat16(native: str, backend: str) -> None:
    arguments = inputs("mixed", "bfloat16")
    expected = run("reference", arguments, None)
    np.testing.assert_allclose(run(backend, arguments, None, native), expected, atol=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["xla", "native"])
@pytest.mark.parametrize("dtype", slow_but(["float32", "bfloat16"], {"float32"}))
@pytest.mark.parametrize("window", slow_but([None, 5], {None}))
def test_company_changes_no_bit(native: str, backend: str, dtype: str, window: int | None) -> None:
    q, keys, values, offsets = inputs("mixed", dtype)
    together = run(backend, (q, keys, values, offsets), window, native)
    for begin, end in itertools.pairwise(offsets.tolist()):
        if end > begin:
            own = (
                *(jnp.pad(array[begin:end], ((0, 30), (0, 0), (0, 0))) for array in (q, keys, values)),
                jnp.array([0, 0, end - begin], jnp.int32),
            )
            alone = run(backend, own, window, native)
            np.testing.assert_array_equal(alone[: end - begin], together[begin:end])


@pytest.mark.slow
@pytest.mark.parametrize(("name", "window"), [("mixed", None), ("one long", 40), ("one long", None)])
def test_the_simulated_tpu(name: str, window: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "one long":  # of which the memory has room for one block at a time
        monkeypatch.setattr(tpu, "CHUNK_BYTES", 0)
    arguments = inputs(name)
    expected = run("reference", arguments, window)
    with checked_tpu():
        found = np.asarray(row_attention(*arguments, scale=0.3, window=window, backend="tpu"))
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_what_does_not_fit() -> None:
    q, keys, values, offsets = inputs("mixed")
    with pytest.raises(ValueError, match="which 5 KV heads do not divide"):
        row_attention(q, jnp.zeros((96, 5, 16)), jnp.zeros((96, 5, 16)), offsets, scale=1.0)
    with pytest.raises(ValueError, match="window is -1"):
        row_attention(q, keys, values, offsets, scale=1.0, window=-1)
    with pytest.raises(KernelUnsupported, match="no library is registered"):
        row_attention(q, keys, values, offsets, scale=1.0, backend="native")


@pytest.mark.tpu_compile
@pytest.mark.parametrize("target", rare_but(["v5e", "v6e"], {"v6e"}))
@pytest.mark.parametrize(
    ("heads", "kv_heads", "size", "window"), [(12, 12, 64, None), (16, 2, 72, None), (16, 4, 128, 64)]
)
def test_the_tpu_compiler_takes_it(target: str, heads: int, kv_heads: int, size: int, window: int | None) -> None:
    available("v6e-1")
    mesh = jax.sharding.Mesh(np.asarray(devices(target, 1)), ("tensor",))
    whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())

    def struct(*shape: int, dtype: str = "bfloat16") -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=whole)

    attend = functools.partial(row_attention, scale=0.125, window=window, platform="tpu")
    of_keys = struct(1024, kv_heads, size)
    with jax.set_mesh(mesh):
        compiled = (
            jax.jit(attend).lower(struct(1024, heads, size), of_keys, of_keys, struct(65, dtype="int32")).compile()
        )
    assert "tpu_custom_call" in compiled.as_text()
