"""int4 and float8 made of a plain checkpoint: near it, by whole groups on any sharding, and read back as they were made."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jaxengine.device.layers.context import ModelContext
from jaxengine.device.layers.embedding import Embedding
from jaxengine.device.layers.expert_matrices import ExpertMatrices
from jaxengine.device.layers.linear import Linear, Matrix
from jaxengine.device.layers.schemes import KeptMatrix
from jaxengine.device.layers.schemes.by_path import Schemes
from jaxengine.device.layers.schemes.rounding import Rounded, TensorsFound, group_scales
from jaxengine.device.layers.schemes.scaled import FP8, INT4, INT4_G32, Scaled
from jaxengine.device.layers.sharding import ONE_DEVICE, share_layers
from jaxengine.device.weights.checkpoint import open_checkpoint
from jaxengine.device.weights.formats import Numbers
from jaxengine.device.weights.loader import load
from jaxengine.device.weights.named_arrays import NamedArrays
from jaxengine.device.weights.placement import place
from jaxengine.device.weights.rules import Rule, part, transpose
from jaxengine.errors import ConfigError
from pallas_kernels.scaled_matmul.packed import packed
from tests.device.weights.files import numbers, write_single
from tests.pallas_kernels.simulation import checked_tpu

OUT, IN = 32, 48
SCHEMES = {
    "int4": Scaled(dtype="int4", group=16),
    "int4 zeros": Scaled(dtype="int4", group=16, zeros=True),
    "int4 bytes": Scaled(dtype="int4", group=16, zeros=True, byte_scales=True),
    "int8 zeros": Scaled(dtype="int8", group=16, zeros=True),
    "int4 a rest": Scaled(dtype="int4", group=20),
    "fp8": FP8,
}
STEPS = {
    "int4": 1 / 8,
    "int4 zeros": 1 / 7,
    "int4 bytes": 1 / 7,
    "int8 zeros": 1 / 120,
    "int4 a rest": 1 / 8,
    "fp8": 1 / 28,
}
"""Of the largest magnitude of a group: half a step between two numbers for float8. Integers lose up to a whole step of the
outermost numbers, so that the others lose less, and without zeros of the largest number of the other sign."""


def context(**options):
    return ModelContext(dtype=jnp.dtype(jnp.float32), platform="cpu", **options)


def made(scheme, matrix, tmp_path, *, rule=None, spec=()):
    """What is loaded of a matrix, by the parameter's name."""
    linear = Linear(IN, OUT, axes=("mlp", "embed"), bias=False, context=context(scheme=scheme))
    mesh = jax.sharding.Mesh(np.asarray(jax.devices()), ("tensor",))
    sharding = NamedSharding(mesh, PartitionSpec(*spec))
    wanted = {}
    for name in linear.names:
        value = getattr(linear, name)[...]
        own = sharding if name == "weight" else NamedSharding(mesh, PartitionSpec())
        wanted[f"p.{name}"] = jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=own)
    checkpoint = open_checkpoint(write_single(tmp_path, {"w": matrix}))
    loaded = load(checkpoint, Schemes(layers=scheme).table((rule or Rule("p.weight", "w"),)), wanted, None)
    return {name.removeprefix("p."): np.asarray(array) for name, array in loaded.items()}


def stood_for(scheme, parameters):
    """The matrix `[out, in]` of what is kept of it."""
    numbers = parameters["weight"].astype(np.float32)
    if scheme.dtype == "int4":
        numbers = np.stack([parameters["weight"] % 16, parameters["weight"] // 16], axis=1).reshape(OUT, IN) - 8.0
    group = scheme.group or IN

    def of_inputs(name):
        return np.repeat(parameters[name].astype(np.float32).T, group, axis=1)[:, :IN]

    zeros = of_inputs("zero") / (16 if scheme.byte_scales else 1) if "zero" in parameters else 0
    return (numbers - zeros) * of_inputs("scale") * parameters.get("tensor_scale", np.ones(1))[:, None]


@pytest.mark.parametrize("name", SCHEMES)
def test_numbers_are_off_by_a_step_of_their_group_at_most(name, tmp_path):
    scheme, matrix = SCHEMES[name], numbers(OUT, IN)
    matrix[3, :16] = 0
    matrix[4, :16] *= 1e-3
    matrix[5] = 0
    found = stood_for(scheme, made(scheme, matrix, tmp_path))
    group = scheme.group or IN
    # no scale that is a byte is below a 255th of its output's largest
    least = np.abs(matrix).max(1, keepdims=True) * STEPS[name] / 255 if scheme.byte_scales else 1e-6
    for first in range(0, IN, group):
        own = slice(first, first + group)
        largest = np.abs(matrix[:, own]).max(1, keepdims=True)
        spread = (matrix[:, own].max(1) - matrix[:, own].min(1))[:, None]
        step = np.maximum(largest, spread / 2) * STEPS[name]
        assert (np.abs(found[:, own] - matrix[:, own]) <= step * 1.2 + least).all()
    assert np.abs(found - matrix).max() > 1e-4
    assert (found[3, :16] == 0).all()
    assert (found[5] == 0).all()


@pytest.mark.parametrize(
    ("name", "devices"), [("int4 bytes", 1), ("fp8", 1), pytest.param("int4 bytes", 2, marks=pytest.mark.slow)]
)
def test_tokens_are_looked_up_in_the_numbers_that_are_multiplied(name, devices, tmp_path):
    layout = ONE_DEVICE if devices == 1 else share_layers(jax.devices()[:devices])
    table = Embedding(OUT, IN, context=context(scheme=SCHEMES[name], layout=layout))
    kept = made(SCHEMES[name], numbers(OUT, IN), tmp_path)
    for part_name, array in kept.items():
        getattr(table, "table" if part_name == "weight" else part_name)[...] = jnp.asarray(array)
    tokens = jnp.asarray([3, 0, OUT - 1, OUT // 2, 3])
    np.testing.assert_allclose(
        jax.jit(lambda tokens: table(tokens))(tokens), stood_for(SCHEMES[name], kept)[tokens], rtol=1e-6
    )


@pytest.mark.parametrize(("size", "zeros", "least"), [(128, True, 0.868), (32, True, 0.79), (128, False, 0.875)])
def test_four_bits_lose_less_than_by_the_outermost_numbers_of_a_group(size, zeros, least):
    """And less than from any one of the widths alone."""
    matrix = np.random.default_rng(0).standard_t(5, (16, 500)).astype(np.float32)
    kept = Numbers(dtype="int4", group=size, zeros=zeros)
    integers, group = np.empty(matrix.shape, np.int8), np.arange(500) // size
    Rounded(matrix, kept, group_scales).fill(integers, (slice(0, 16), slice(0, 500)))
    scales, offsets = (part[:, group] for part in group_scales(matrix, kept))
    found = np.square((integers - offsets) * scales - matrix).sum()
    outermost = 0.0
    for first in range(0, 500, size):
        own = matrix[:, first : first + size]
        lowest, most = own.min(1, keepdims=True), own.max(1, keepdims=True)
        scale = (most - lowest) / 15 if zeros else np.where(-lowest > most, lowest, most) / -8
        zero = np.rint(-8 - lowest / scale) if zeros else 0
        outermost += np.square((np.clip(np.rint(own / scale + zero), -8, 7) - zero) * scale - own).sum()
    assert found < least * outermost


def test_what_was_found_of_a_tensor_goes_with_it():
    tensors, tensor = TensorsFound(), np.zeros((2, 2), np.float32)
    tensors.of(tensor)[0, 2] = (tensor, tensor)
    assert tensors.of(tensor).keys() == {(0, 2)}
    assert not tensors.of(tensor[...])
    checkpoint = NamedArrays({"w": tensor})
    assert checkpoint.view("w") is not checkpoint.view("w")


@pytest.mark.parametrize("spec", [("tensor",), (None, "tensor")], ids=str)
@pytest.mark.parametrize("name", ["int4 bytes", "fp8"])
def test_what_is_loaded_is_the_same_on_any_sharding(name, spec, tmp_path):
    matrix = numbers(OUT, IN)
    whole = made(SCHEMES[name], matrix, tmp_path / "whole")
    parts = made(SCHEMES[name], matrix, tmp_path / "parts", spec=spec)
    for part_of in whole:
        np.testing.assert_array_equal(whole[part_of], parts[part_of])


@pytest.mark.parametrize("transform", [transpose, part(1, 2)])
def test_it_is_made_of_what_the_plain_rule_makes(transform, tmp_path):
    matrix = numbers(IN, OUT) if transform is transpose else numbers(2 * OUT, IN)
    found = made(SCHEMES["int4"], matrix, tmp_path / "a", rule=Rule("p.weight", "w", transform))
    expected = made(SCHEMES["int4"], np.ascontiguousarray(transform(matrix, None, (OUT, IN))), tmp_path / "b")
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name])


@pytest.mark.parametrize(("devices", "whole", "group"), [(1, False, 16), (2, False, 8), (2, True, 16)])
def test_experts_are_kept_as_one_matrix_each(devices, whole, group, tmp_path):
    """Where a group of inputs would lie on two devices it is cut."""
    scheme = SCHEMES["int4 bytes"]
    matrices = {f"e.{number}": numbers(OUT, IN, seed=number) for number in range(2)}
    layout = ONE_DEVICE if devices == 1 else share_layers(jax.devices()[:devices], expert_parallel=whole)
    kept = context(layout=layout, scheme=scheme)
    experts = ExpertMatrices(2, IN, OUT, axes=("expert_mlp", "embed"), bias=False, context=kept)
    wanted = {
        f"p.{name}": jax.ShapeDtypeStruct(array.shape, array.dtype)
        for name, array in zip(experts.names, experts.arrays(), strict=True)
    }
    assert wanted["p.scale"].shape == (2, IN // group, OUT)
    checkpoint = open_checkpoint(write_single(tmp_path, matrices))
    loaded = load(checkpoint, Schemes(layers=scheme).table((Rule("p.weight", "e.{expert}"),)), wanted, None)
    for number, matrix in enumerate(matrices.values()):
        alone = made(scheme, matrix, tmp_path / str(number))
        own = {name.removeprefix("p."): np.asarray(array)[number] for name, array in loaded.items()}
        found = np.stack((own["weight"] & 15, own["weight"] >> 4), axis=1).reshape(IN, OUT)
        expected = np.stack((alone["weight"] & 15, alone["weight"] >> 4), axis=1).reshape(OUT, IN)
        np.testing.assert_array_equal(found.T, expected)
        for name in ("scale", "zero"):
            np.testing.assert_array_equal(own[name], np.repeat(alone[name], 16 // group, axis=0))
        np.testing.assert_array_equal(own["tensor_scale"], alone["tensor_scale"])


@pytest.mark.parametrize("scheme", [INT4, INT4_G32, Scaled(dtype="float4_e2m1fn", group=32)], ids=str)
@pytest.mark.parametrize("stored", [False, True], ids=["made", "stored"])
def test_a_packed_matrix_has_the_bytes_of_one_that_is_not(scheme, stored):
    rng = np.random.default_rng(0)
    tensor = rng.integers(0, 16, (64, 96), np.uint8) if stored else rng.normal(size=(64, 96)).astype(np.float32)
    rule = Rule("up.weight", "w_up.weight")
    (of_numbers,) = (
        each for each in (scheme.stored_rules if stored else scheme.rules)(rule) if each.target == rule.target
    )
    plain = jax.ShapeDtypeStruct((32, 96), jnp.uint8)
    wanted = scheme.packed(plain)
    assert wanted.shape == (4, 24, 8, 4)
    own, found = (np.asarray(place(of_numbers.transform(tensor, None, each.shape), each)) for each in (plain, wanted))
    np.testing.assert_array_equal(found, packed(own))
    odd = jax.ShapeDtypeStruct((33, 96), jnp.uint8)
    assert scheme.packed(odd) is odd


def test_half_a_byte_is_no_part_of_a_device():
    layout = share_layers(jax.devices()[:4])
    with pytest.raises(
        ConfigError, match="two outputs to a byte, and of 12 of them 4 devices cannot have the same number of pairs"
    ):
        Linear(16, 12, axes=("mlp", "embed"), bias=False, context=context(layout=layout, scheme=INT4))


def test_experts_in_an_order_of_their_own_are_refused():
    scheme = Scaled(dtype="int4", group=16, ordered=True)
    context = ModelContext(dtype=jnp.dtype(jnp.float32), platform="cpu", scheme=scheme)
    with pytest.raises(ConfigError, match=r"experts in int4 with activation order .* are not built; .* without it"):
        ExpertMatrices(2, 64, 32, axes=("embed", "expert_mlp"), bias=False, context=context)


@pytest.mark.parametrize("axes", [("mlp", "embed"), ("embed", "mlp")], ids=["outputs", "inputs"])
@pytest.mark.parametrize("group", [128, 512], ids=["whole groups", "a group that lies on both"])
def test_the_kernels_of_a_tpu_multiply_each_devices_own_part(group: int, axes: tuple[str, str]) -> None:
    """Simulated, on two devices: outputs are cut, or inputs, of which each device's products are added."""
    inputs, outputs, rows = 768, 256, 16
    scheme = Scaled(dtype="int4", group=group, zeros=True)
    layout = share_layers(jax.devices()[:2])
    matrix = Matrix(
        inputs,
        outputs,
        axes=axes,
        context=ModelContext(dtype=jnp.bfloat16, platform="tpu", layout=layout, scheme=scheme),
    )
    generator = np.random.default_rng(0)
    count = -(-inputs // group)
    weight = generator.integers(0, 256, (outputs // 2, inputs), np.uint8)
    scales, zeros = generator.uniform(0.01, 0.1, (count, outputs)), generator.integers(-8, 8, (count, outputs))
    kept = {"weight": weight, "scale": scales, "zero": zeros}
    given = {name: jnp.asarray(kept[name], getattr(matrix, name)[...].dtype) for name in matrix.names}
    x = jnp.asarray(generator.normal(size=(rows, inputs)), jnp.bfloat16)
    with checked_tpu(), jax.set_mesh(layout.mesh):
        call = jax.jit(lambda x, given: scheme.multiply(x, KeptMatrix(given, axes, matrix.context), dtype=jnp.float32))
        assert "scaled_matmul" in str(call.trace(x, given).jaxpr)
        found = np.asarray(call(x, given))
    numbers = np.stack([weight % 16, weight // 16], axis=1).reshape(outputs, inputs) - 8.0
    wide = {
        name: np.repeat(np.asarray(given[name], np.float64), group, axis=0)[:inputs].T for name in ("scale", "zero")
    }
    expected = np.asarray(x, np.float64) @ ((numbers - wide["zero"]) * wide["scale"]).T
    np.testing.assert_allclose(found, expected, rtol=0.01, atol=0.01 * np.abs(expected).max())
