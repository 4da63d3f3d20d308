"""int8 made of a plain checkpoint: near it, by whole rows on any sharding, read once, within the loader's bound."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jaxengine.layers.schemes import scheme_rules
from jaxengine.layers.schemes.int8 import CHUNK, Int8, Int8Weights, row_scales
from jaxengine.weights.checkpoint import FileCheckpoint, open_checkpoint
from jaxengine.weights.loader import load
from jaxengine.weights.rules import Rule, part, transpose
from tests.weights.files import numbers, write_single

OUT, IN = 24, 16
SPECS = {"whole": (), "columns": ("tensor",), "rows": (None, "tensor")}


def quantised(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The definition, all at once."""
    wide = matrix.astype(np.float32)
    scales = np.abs(wide).max(1) / np.float32(127)
    return np.rint(wide / np.where(scales == 0, 1, scales)[:, None]).astype(np.int8), scales


def wanted(spec: tuple[str | None, ...]) -> dict[str, jax.ShapeDtypeStruct]:
    mesh = jax.sharding.Mesh(np.asarray(jax.devices()), ("tensor",))

    def struct(shape: tuple[int, ...], dtype: object, axes: tuple[str | None, ...]) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, PartitionSpec(*axes)))

    return {"p.weight": struct((OUT, IN), jnp.int8, spec), "p.scale": struct((OUT,), jnp.float32, spec[:1])}


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.float64])
def test_what_is_loaded_is_the_definition_on_any_sharding(dtype, spec, tmp_path):
    stored = numbers(OUT, IN, dtype=dtype)
    stored[3] = 0
    checkpoint = open_checkpoint(write_single(tmp_path, {"w": stored}))
    loaded = load(checkpoint, scheme_rules((Rule("p.weight", "w"),), Int8()), wanted(spec), None)
    integers, scales = quantised(stored)
    np.testing.assert_array_equal(np.asarray(loaded["p.weight"]), integers)
    np.testing.assert_array_equal(np.asarray(loaded["p.scale"]), scales)
    assert loaded["p.weight"].dtype == jnp.int8
    assert np.abs(integers).max(1).tolist() == [0 if row == 3 else 127 for row in range(OUT)]


@pytest.mark.parametrize("transform", [transpose, part(1, 2)])
def test_it_is_made_of_what_the_plain_rule_makes(transform, tmp_path):
    stored = numbers(IN, OUT) if transform is transpose else numbers(2 * OUT, IN)
    checkpoint = open_checkpoint(write_single(tmp_path, {"w": stored}))
    rules = scheme_rules((Rule("p.weight", "w", transform),), Int8())
    loaded = load(checkpoint, rules, wanted(()), None)
    integers, scales = quantised(transform(stored, None, (OUT, IN)))
    np.testing.assert_array_equal(np.asarray(loaded["p.weight"]), integers)
    np.testing.assert_array_equal(np.asarray(loaded["p.scale"]), scales)


@pytest.mark.parametrize("spec", [("tensor",), (None, "tensor"), (None, None, "tensor")], ids=str)
def test_experts_have_scales_of_their_own(tmp_path, spec):
    """Stacked, the matrices are the transposes of the checkpoint's."""
    stored = {f"e.{number}": numbers(OUT, IN, seed=number) * (number + 1) for number in range(8)}
    checkpoint = open_checkpoint(write_single(tmp_path, stored))
    rules = scheme_rules((Rule("p.weight", "e.{expert}"),), Int8())
    mesh = jax.sharding.Mesh(np.asarray(jax.devices()), ("tensor",))
    spec = (*spec, None, None, None)[:3]
    axes = {"p.weight": ((8, IN, OUT), jnp.int8, spec), "p.scale": ((8, OUT), jnp.float32, spec[::2])}
    stacked = {
        path: jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, PartitionSpec(*of)))
        for path, (shape, dtype, of) in axes.items()
    }
    loaded = load(checkpoint, rules, stacked, None)
    for number, matrix in enumerate(stored.values()):
        integers, scales = quantised(matrix)
        np.testing.assert_array_equal(np.asarray(loaded["p.weight"][number]), integers.T)
        np.testing.assert_array_equal(np.asarray(loaded["p.scale"][number]), scales)


def test_the_tensor_is_read_once_for_both(tmp_path, monkeypatch):
    checkpoint = open_checkpoint(write_single(tmp_path, {"w": numbers(OUT, IN)}))
    assert isinstance(checkpoint, FileCheckpoint)
    viewed: list[str] = []
    view = checkpoint.view
    monkeypatch.setattr(checkpoint, "view", lambda name: (viewed.append(name), view(name))[1])
    load(checkpoint, scheme_rules((Rule("p.weight", "w"),), Int8()), wanted(("tensor",)), None)
    assert viewed == ["w"]


def test_a_part_takes_the_scales_of_whole_rows_and_reads_no_others():
    class Watched(np.ndarray):
        rows: list[object] = []  # noqa: RUF012

        def __getitem__(self, index: object) -> np.ndarray:
            Watched.rows.append(index)
            return np.asarray(self)[index]

    matrix = numbers(OUT, IN)
    integers, _ = quantised(matrix)
    out = np.zeros((6, 4), np.int8)
    weights = Int8Weights(matrix.view(Watched))
    for first in (0, 4):
        weights.fill(out, (slice(6, 12), slice(first, first + 4)))
        np.testing.assert_array_equal(out, integers[6:12, first : first + 4])
    asked = [index[0] if isinstance(index, tuple) else index for index in Watched.rows]
    assert set(map(str, asked)) == {str(slice(6, 12))}
    assert (
        sum(not isinstance(index, tuple) for index in Watched.rows) == 1
    )  # one look at whole rows for two parts of them


def test_chunks_are_no_part_of_the_result():
    matrix = numbers(5, CHUNK // 2 - 7)
    integers, scales = quantised(matrix)
    out = np.zeros(matrix.shape, np.int8)
    Int8Weights(matrix).fill(out, (slice(0, 5), slice(0, matrix.shape[1])))
    np.testing.assert_array_equal(out, integers)
    np.testing.assert_array_equal(row_scales(matrix), scales)
    wide = numbers(3, CHUNK + 1)  # a row that is no chunk
    np.testing.assert_array_equal(row_scales(wide), quantised(wide)[1])


def test_numbers_are_off_by_half_a_step_at_most():
    matrix = numbers(OUT, IN).astype(np.float64) ** 3  # with outliers
    out = np.zeros(matrix.shape, np.int8)
    Int8Weights(matrix).fill(out, (slice(0, OUT), slice(0, IN)))
    scales = row_scales(matrix)[:, None]
    assert (np.abs(out * scales - matrix) <= scales * 0.5001).all()
