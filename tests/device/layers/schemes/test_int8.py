"""int8 made of a plain checkpoint: near it, by whole rows on any sharding, read once, within the loader's bound; its products."""

from __future__ import annotations

from contextlib import nullcontext

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jaxengine.device.layers.context import ModelContext
from jaxengine.device.layers.linear import Linear
from jaxengine.device.layers.schemes.by_path import Schemes
from jaxengine.device.layers.schemes.int8 import INT8, Int8
from jaxengine.device.layers.schemes.rounding import CHUNK, Rounded, row_scales
from jaxengine.device.layers.sharding import share_layers
from jaxengine.device.weights.checkpoint import FileCheckpoint, open_checkpoint
from jaxengine.device.weights.formats import Numbers
from jaxengine.device.weights.loader import load
from jaxengine.device.weights.rules import Rule, part, transpose
from pallas_kernels import matmul
from pallas_kernels.matmul.tpu import FEW_ROWS
from tests.device.weights.files import numbers, write_single
from tests.pallas_kernels.simulation import checked_tpu
from tests.quick import slow_but

OUT, IN = 24, 16
SPECS = {"whole": (), "columns": ("tensor",), "rows": (None, "tensor")}


def rounded(matrix):
    return Rounded(matrix, Numbers(dtype="int8"), row_scales)


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
    loaded = load(checkpoint, Schemes(layers=Int8()).table((Rule("p.weight", "w"),)), wanted(spec), None)
    integers, scales = quantised(stored)
    np.testing.assert_array_equal(np.asarray(loaded["p.weight"]), integers)
    np.testing.assert_array_equal(np.asarray(loaded["p.scale"]), scales)
    assert loaded["p.weight"].dtype == jnp.int8
    assert np.abs(integers).max(1).tolist() == [0 if row == 3 else 127 for row in range(OUT)]


@pytest.mark.parametrize("transform", [transpose, part(1, 2)])
def test_it_is_made_of_what_the_plain_rule_makes(transform, tmp_path):
    stored = numbers(IN, OUT) if transform is transpose else numbers(2 * OUT, IN)
    checkpoint = open_checkpoint(write_single(tmp_path, {"w": stored}))
    rules = Schemes(layers=Int8()).table((Rule("p.weight", "w", transform),))
    loaded = load(checkpoint, rules, wanted(()), None)
    integers, scales = quantised(transform(stored, None, (OUT, IN)))
    np.testing.assert_array_equal(np.asarray(loaded["p.weight"]), integers)
    np.testing.assert_array_equal(np.asarray(loaded["p.scale"]), scales)


@pytest.mark.parametrize("spec", [("tensor",), (None, "tensor"), (None, None, "tensor")], ids=str)
def test_experts_have_scales_of_their_own(tmp_path, spec):
    """Stacked, the matrices are the transposes of the checkpoint's."""
    stored = {f"e.{number}": numbers(OUT, IN, seed=number) * (number + 1) for number in range(8)}
    checkpoint = open_checkpoint(write_single(tmp_path, stored))
    rules = Schemes(layers=Int8()).table((Rule("p.weight", "e.{expert}"),))
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
    load(checkpoint, Schemes(layers=Int8()).table((Rule("p.weight", "w"),)), wanted(("tensor",)), None)
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
    weights = rounded(matrix.view(Watched))
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
    rounded(matrix).fill(out, (slice(0, 5), slice(0, matrix.shape[1])))
    np.testing.assert_array_equal(out, integers)
    np.testing.assert_array_equal(row_scales(matrix)[0][:, 0], scales)
    wide = numbers(3, CHUNK + 1)  # a row that is no chunk
    np.testing.assert_array_equal(row_scales(wide)[0][:, 0], quantised(wide)[1])


def test_numbers_are_off_by_half_a_step_at_most():
    matrix = numbers(OUT, IN).astype(np.float64) ** 3  # with outliers
    out = np.zeros(matrix.shape, np.int8)
    rounded(matrix).fill(out, (slice(0, OUT), slice(0, IN)))
    scales, _ = row_scales(matrix)
    assert (np.abs(out * scales - matrix) <= scales * 0.5001).all()


@pytest.mark.slow
@pytest.mark.parametrize("devices", slow_but([2, 4], {4}))
@pytest.mark.parametrize(
    ("axes", "rows"),
    [(("mlp", "embed"), 96), (("mlp", "embed"), 512), (("embed", "mlp"), 512), (("embed", "mlp"), 8)],
    ids=["outputs cut", "rows and outputs cut", "inputs cut", "inputs cut, few rows"],
)
def test_the_kernels_of_a_tpu_on_several_devices_give_the_bits_of_one(
    axes: tuple[str, str], rows: int, devices: int
) -> None:
    """Simulated: whatever a device has of rows, inputs and outputs, rows are rounded whole and sums are those of all inputs."""
    inputs, outputs = 512, 512
    numbers = np.random.default_rng(rows)
    x = jnp.asarray(numbers.normal(size=(rows, inputs)) * numbers.uniform(0.1, 9, size=(rows, 1)), jnp.bfloat16)
    weight = jnp.asarray(numbers.integers(-127, 128, size=(outputs, inputs)), jnp.int8)
    scales = jnp.asarray(numbers.uniform(0.01, 0.1, size=outputs), jnp.float32)
    expected = matmul(x, weight, scales=scales, dtype=jnp.bfloat16, backend="xla")
    layout = share_layers(jax.devices()[:devices])
    linear = Linear(
        inputs,
        outputs,
        axes=axes,
        bias=False,
        context=ModelContext(dtype=jnp.dtype(jnp.bfloat16), platform="tpu", layout=layout, scheme=INT8),
    )
    for parameter, given in ((linear.weight, weight), (linear.scale, scales)):
        kept = layout.sharding(parameter.get_metadata()["axes"])
        parameter.set_value(jax.device_put(given, kept))
        assert kept.shard_shape(given.shape)[0] == outputs // devices
    with checked_tpu() if rows > FEW_ROWS else nullcontext(), jax.set_mesh(layout.mesh):
        call = jax.jit(lambda x: linear(x, None))
        assert ("int8_matmul" in str(call.trace(x).jaxpr)) == (rows > FEW_ROWS)
        found = np.asarray(call(x))
    np.testing.assert_array_equal(found, expected)


def test_outputs_that_devices_cannot_share_leave_inputs_cut() -> None:
    """Six outputs on four devices: the compiler adds sums of integers, which are those of one device."""
    layout = share_layers(jax.devices()[:4])
    context = ModelContext(dtype=jnp.dtype(jnp.float32), platform="cpu", layout=layout, scheme=INT8)
    linear = Linear(8, 6, axes=("embed", "mlp"), bias=False, context=context)
    numbers = np.random.default_rng(0)
    weight, x = numbers.integers(-127, 128, size=(6, 8)).astype(np.int8), numbers.normal(size=(3, 8)).astype(np.float32)
    scales = numbers.uniform(0.01, 0.1, size=6).astype(np.float32)
    expected = matmul(jnp.asarray(x), jnp.asarray(weight), scales=jnp.asarray(scales), backend="xla")
    for parameter, given in ((linear.weight, weight), (linear.scale, scales)):
        parameter.set_value(jax.device_put(given, layout.sharding(parameter.get_metadata()["axes"])))
    assert linear.weight[...].sharding.shard_shape((6, 8)) == (6, 2)
    np.testing.assert_array_equal(jax.jit(lambda x: linear(x, None))(x), expected)
