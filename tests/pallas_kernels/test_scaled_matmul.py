"""Every backend of `scaled_matmul` and `grouped_scaled_matmul` on every case, and rows that do not depend on others."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
from collections.abc import Collection
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pallas_kernels import grouped_scaled_matmul, scaled_matmul
from pallas_kernels.check import devices
from pallas_kernels.dispatch import KernelUnsupported
from pallas_kernels.gpu.dense import make_dense
from pallas_kernels.gpu.device import interpreted_gpu
from pallas_kernels.grouped_scaled_matmul import OP as GROUPED
from pallas_kernels.grouped_scaled_matmul import tpu_float4, tpu_order
from pallas_kernels.scaled_matmul import OP, tpu_float8, tpu_numbers
from pallas_kernels.scaled_matmul.dense import dense
from pallas_kernels.testing import SCALED_CASES, ScaledCase
from pallas_kernels.tpu.chip import Chip
from tests.pallas_kernels.simulation import checked_tpu
from tests.quick import QUICK, at_once, rare_but, slow_but
from tests.targets.tpu import available

HIGHEST = jax.lax.Precision.HIGHEST


def backends(op):
    """Those that run here as they are; `native` has a file of its own."""
    return [name for name in op.backends if name.partition("_")[0] not in ("reference", "gpu", "tpu", "native")]


def tolerance(case: ScaledCase) -> dict[str, float]:
    """In bfloat16 a matrix is off by 2^-9 of each number, of which products of some 60 add up."""
    return {"atol": 0.2, "rtol": 0.01} if case.compute == "bfloat16" else {"atol": 2e-4, "rtol": 1e-5}


@functools.cache
def defined(case: ScaledCase) -> np.ndarray:
    """What the reference gives, compiled once for all backends; `test_the_definition_is_the_matrix_written_out` tries it."""
    options = {**case.options(), "precision": HIGHEST}
    return np.asarray(at_once(scaled_matmul, *case.arguments(), **options, backend="reference"))


@functools.cache
def defined_of_groups(case: ScaledCase) -> np.ndarray:
    options = {**case.options(), "precision": HIGHEST}
    return np.asarray(at_once(grouped_scaled_matmul, *case.grouped_arguments(), **options, backend="reference"))


@pytest.mark.parametrize("backend", backends(OP))
@pytest.mark.parametrize("case", SCALED_CASES, ids=str)
def test_every_backend_multiplies_alike(case: ScaledCase, backend: str) -> None:
    given = case.arguments()
    found = jax.jit(functools.partial(scaled_matmul, **case.options(), precision=HIGHEST, backend=backend))(*given)
    assert (found.shape, found.dtype) == ((*case.rows, case.outputs), jnp.float32)
    np.testing.assert_allclose(found, defined(case), **tolerance(case))


OF_GROUPS = [
    case for case in SCALED_CASES if case.name in ("int4, zeros", "float4", "bytes", "many rows", "three axes")
]
"""Numbers are decoded as in products of one matrix: what groups are of them, a few cases show."""


@pytest.mark.parametrize("backend", backends(GROUPED))
@pytest.mark.parametrize("case", slow_but(SCALED_CASES, OF_GROUPS), ids=str)
def test_every_backend_multiplies_groups_alike(case: ScaledCase, backend: str) -> None:
    given = case.grouped_arguments()
    multiply = functools.partial(grouped_scaled_matmul, **case.options(), precision=HIGHEST)
    found = jax.jit(functools.partial(multiply, backend=backend))(*given)
    assert (found.shape, found.dtype) == ((sum(case.sizes) + case.behind, case.outputs), jnp.float32)
    real = slice(sum(case.sizes))
    np.testing.assert_allclose(np.asarray(found)[real], defined_of_groups(case)[real], **tolerance(case))


KERNEL_CASES = tuple(
    dataclasses.replace(case, compute="bfloat16")
    for case in (
        *SCALED_CASES,
        dataclasses.replace(SCALED_CASES[1], name="lanes", inputs=384, group=128, rows=(9,)),
        dataclasses.replace(
            SCALED_CASES[8], name="scales laid out by matrix", sizes=(3, 0, 18, 1, 0, 0, 0, 40), behind=0
        ),
        dataclasses.replace(
            SCALED_CASES[8], name="float4 of a prompt", inputs=320, outputs=256, sizes=(70, 0, 50), behind=0
        ),
    )
)
QUICK_KERNEL_CASES = {"int4, zeros", "float4"}
OFTEN = {*QUICK_KERNEL_CASES, "bytes", "lanes", "scales laid out by matrix", "float4 of a prompt", "many rows"}


def named(names: Collection[str]) -> list[ScaledCase]:
    return [case for case in KERNEL_CASES if case.name in names]


@pytest.mark.parametrize("op", [scaled_matmul, grouped_scaled_matmul], ids=lambda op: op.__name__)
@pytest.mark.parametrize("case", slow_but(KERNEL_CASES, named(QUICK_KERNEL_CASES), often=named(OFTEN)), ids=str)
def test_the_tpu_kernels_multiply_alike(case: ScaledCase, op: Any) -> None:
    grouped = op is grouped_scaled_matmul
    given = case.grouped_arguments() if grouped else case.arguments()
    multiply = functools.partial(op, **case.options())
    if case.name == ("int4, a rest" if grouped else "float8, one group"):
        with pytest.raises(KernelUnsupported, match="98 inputs" if grouped else "XLA converts them"), checked_tpu():
            multiply(*given, backend="tpu")
        return
    with checked_tpu():
        found = np.asarray(jax.jit(functools.partial(multiply, backend="tpu"))(*given))
    real = slice(sum(case.sizes) if grouped else None)
    expected = np.asarray(at_once(multiply, *given, backend="reference"))[real]
    np.testing.assert_allclose(found[real], expected, rtol=0.01, atol=0.01 * np.abs(expected).max())


ROUNDED = slow_but(named(("int4, zeros", "float4", "many rows")), named(("int4, zeros",)))


@pytest.mark.parametrize("backend", ["tpu", "xla"])
@pytest.mark.parametrize("case", ROUNDED, ids=str)
def test_results_are_rounded_once(case: ScaledCase, backend: str) -> None:
    multiply = functools.partial(scaled_matmul, **case.options(), backend=backend)
    with checked_tpu() if backend == "tpu" else contextlib.nullcontext():
        whole, rounded = (
            jax.jit(functools.partial(multiply, result=result))(*case.arguments())
            for result in (jnp.float32, jnp.bfloat16)
        )
    assert rounded.dtype == jnp.bfloat16
    np.testing.assert_array_equal(np.asarray(rounded), np.asarray(whole.astype(jnp.bfloat16)))


def gpu_refuses(case: ScaledCase, grouped: bool) -> str | None:
    """What of a case is said to be refused by the GPU's kernels."""
    if grouped:
        few = case.weight in ("int4", "float4_e2m1fn") and case.group == 16 and case.inputs > 16
        return "multiplies 32 of a group at once" if few else None
    if case.group >= case.inputs and case.weight not in ("int4", "float4_e2m1fn"):
        return "a scale for each output alone"
    return "a dense matrix is faster" if case.name == "many rows" else None


def compare_on_a_gpu(case: ScaledCase, op: Any) -> None:
    """Compiled for the GPU that there is, or interpreted. Nothing but sums is rounded."""
    grouped = op is grouped_scaled_matmul
    given = case.grouped_arguments() if grouped else case.arguments()
    multiply = functools.partial(op, **case.options())
    refused = gpu_refuses(case, grouped)
    if refused is not None:
        with pytest.raises(KernelUnsupported, match=refused):
            multiply(*given, backend="gpu")
        return
    options = QUICK if jax.default_backend() == "cpu" else None
    found = np.asarray(jax.jit(functools.partial(multiply, backend="gpu"), compiler_options=options)(*given))
    real = slice(sum(case.sizes) if grouped else None)
    expected = np.asarray(at_once(multiply, *given, backend="reference"))[real]
    np.testing.assert_allclose(found[real], expected, rtol=0, atol=1e-5 * np.abs(expected).max())


GPU_CASES = (
    *KERNEL_CASES,
    *(
        dataclasses.replace(case, compute="bfloat16", name=f"{case.name}, groups of 32", group=32)
        for case in SCALED_CASES[1:3]
    ),
    dataclasses.replace(KERNEL_CASES[0], name="shares of the inputs", inputs=1300, group=128, outputs=40),
)
OFTEN_ON_GPUS = {
    scaled_matmul: {"int4, one group, zeros", "float4"},
    grouped_scaled_matmul: {"float8, one group", "float4"},
}


@pytest.mark.parametrize(
    "product",
    rare_but(
        [(op, case) for op in OFTEN_ON_GPUS for case in GPU_CASES],
        [(op, case) for op, names in OFTEN_ON_GPUS.items() for case in GPU_CASES if case.name in names],
    ),
    ids=lambda product: f"{product[0].__name__}-{product[1]}",
)
def test_the_gpu_kernels_multiply_alike(product: tuple[Any, ScaledCase]) -> None:
    op, case = product
    with interpreted_gpu():
        compare_on_a_gpu(case, op)


MADE_DENSE = [case for case in GPU_CASES if case.group < case.inputs]
PROMPT = dataclasses.replace(
    next(case for case in KERNEL_CASES if case.name == "float4 of a prompt"), sizes=(300, 0, 121), behind=3
)


def compare_dense(case: ScaledCase) -> None:
    """A matrix made dense on a GPU is that of `dense.py` to the last bit, whichever axis its inputs are."""
    options = case.options()
    group, pairs = options["group"], options.get("pairs", "int4")
    for given, inputs in ((case.arguments(), 1), (case.grouped_arguments(), 0)):
        _, kept, *of_groups = given if inputs else (given[0], given[1], *given[3:])
        kept, scales, *zeros = (array if array.ndim == 3 else array[None] for array in (kept, *of_groups))
        zero = zeros[0] if zeros else None
        found = make_dense(kept, scales, zero, group=group, pairs=pairs, inputs=inputs)
        for which in range(len(kept)):
            expected = dense(
                kept[which],
                scales[which],
                None if zero is None else zero[which],
                group=group,
                compute=jnp.bfloat16,
                pairs=pairs,
                inputs=inputs,
            )
            np.testing.assert_array_equal(np.asarray(found[which]), np.asarray(expected))


def compare_made_dense(case: ScaledCase, op: Any) -> None:
    given = case.grouped_arguments() if op is grouped_scaled_matmul else case.arguments()
    multiply = functools.partial(op, **case.options())
    found = np.asarray(jax.jit(functools.partial(multiply, backend="gpu_dense"))(*given))
    real = slice(sum(case.sizes) if op is grouped_scaled_matmul else None)
    expected = np.asarray(at_once(multiply, *given, backend="reference"))[real]
    np.testing.assert_allclose(found[real], expected, rtol=0.01, atol=0.01 * np.abs(expected).max())


@pytest.mark.parametrize(
    "case",
    slow_but(
        MADE_DENSE,
        [case for case in MADE_DENSE if case.name == "bytes"],
        often=[case for case in MADE_DENSE if case.name in ("int4, zeros", "float4")],
    ),
    ids=str,
)
def test_matrices_are_made_dense_for_a_gpu_to_the_last_bit(case: ScaledCase) -> None:
    with interpreted_gpu():
        compare_dense(case)


@pytest.mark.parametrize("op", [scaled_matmul, grouped_scaled_matmul], ids=lambda op: op.__name__)
def test_products_of_matrices_made_dense_for_a_gpu(op: Any) -> None:
    with interpreted_gpu():
        compare_made_dense(PROMPT, op)


def test_what_is_not_made_dense_on_a_gpu() -> None:
    few, whole = dataclasses.replace(PROMPT, sizes=(300, 0, 80)), KERNEL_CASES[0]
    whole = dataclasses.replace(whole, group=whole.inputs)
    with interpreted_gpu():
        for case, op, reason in (
            (few, grouped_scaled_matmul, "127 rows to a matrix"),
            (dataclasses.replace(PROMPT, weight="int8"), grouped_scaled_matmul, "takes little to multiply"),
            (whole, scaled_matmul, "a scale for each output alone"),
            (dataclasses.replace(PROMPT, compute="float32"), scaled_matmul, "makes matrices of bfloat16"),
        ):
            given = case.grouped_arguments() if op is grouped_scaled_matmul else case.arguments()
            with pytest.raises(KernelUnsupported, match=reason):
                op(*given, **case.options(), backend="gpu_dense")


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated")  # since jax 0.11
@pytest.mark.parametrize("op", list(OFTEN_ON_GPUS), ids=lambda op: op.__name__)
@pytest.mark.parametrize("case", GPU_CASES, ids=str)
def test_a_gpu_multiplies_alike(case: ScaledCase, op: Any) -> None:
    """`JAX_PLATFORMS=cuda,cpu python -m pytest -m gpu` on a machine that has one."""
    if jax.default_backend() != "gpu":
        pytest.skip("needs a GPU, and JAX_PLATFORMS=cuda,cpu")
    compare_on_a_gpu(case, op)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated")  # since jax 0.11
@pytest.mark.parametrize("case", MADE_DENSE, ids=str)
def test_a_gpu_makes_matrices_dense(case: ScaledCase) -> None:
    if jax.default_backend() != "gpu":
        pytest.skip("needs a GPU, and JAX_PLATFORMS=cuda,cpu")
    compare_dense(case)
    for op in (scaled_matmul, grouped_scaled_matmul):
        compare_made_dense(PROMPT, op)


@pytest.mark.parametrize(
    "weight", rare_but(["int4", "float8_e4m3fn", "float4_e2m1fn"], {"float8_e4m3fn", "float4_e2m1fn"})
)
def test_few_rows_are_taken_within_the_tpu_kernel(weight: str) -> None:
    """Rows that several groups take, in any order; one that none takes, and what is behind the last group, are of no account."""
    sizes = (3, 0, 6, 2, *(0,) * 4) if weight == "float4_e2m1fn" else (3, 0, 6, 2)  # of eight scales lie together
    case = dataclasses.replace(SCALED_CASES[1], weight=weight, zeros=weight == "int4", compute="bfloat16", sizes=sizes)
    x, *given = case.grouped_arguments()
    x = np.array(x)[:8]
    x[5] = np.nan
    rows = jnp.asarray([7, 0, 2, 0, 1, 2, 3, 4, 7, 6, 0, 5, 5, 5], jnp.int32)
    multiply = functools.partial(grouped_scaled_matmul, **case.options(), rows=rows)
    with checked_tpu():
        multiplied = jax.jit(functools.partial(multiply, backend="tpu")).trace(x, *given)
        found = np.asarray(multiplied.lower().compile()(x, *given))
    assert ("float8_grouped_matmul" in str(multiplied.jaxpr)) == (weight == "float4_e2m1fn")
    expected = np.asarray(at_once(multiply, x, *given, backend="reference"))[:11]
    np.testing.assert_allclose(found[:11], expected, rtol=0.01, atol=0.01 * np.abs(expected).max())


@pytest.mark.parametrize("chip", ["v6e", "v5e"])
def test_inputs_are_ordered_by_a_product_as_by_moves(chip: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole blocks of columns and a rest; what is no number stays in its row."""
    monkeypatch.setattr(tpu_order, "LEAST_ROWS", 1)
    monkeypatch.setattr(tpu_order, "MOST_ROWS", 16)
    of = Chip(chip, 1, vmem_bytes=0, smem_bytes=0, matrix_columns=256)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(20, 320)), jnp.bfloat16).at[7, 3].set(jnp.nan)
    with checked_tpu():
        found = np.asarray(tpu_order.ordered(x, of), np.float32)
    expected = np.asarray(tpu_float4.ordered(x, of), np.float32)
    rows = np.arange(20) != 7
    np.testing.assert_array_equal(found[rows], expected[rows])


@pytest.mark.parametrize("chip", ["v6e", "v5e"])
def test_float4_becomes_the_same_bfloat16_on_every_chip(chip: str) -> None:
    """All sixteen numbers, in both halves of a byte."""
    of = Chip(chip, 1, vmem_bytes=0, smem_bytes=0, matrix_columns=256)
    kept = np.arange(32 * 128, dtype=np.uint32).astype(np.uint8).reshape(128, 32).T
    scales = np.random.default_rng(0).uniform(0.01, 0.1, (2, 128)).astype(np.float32)

    def kernel(kept: Any, scales: Any, found: Any) -> None:
        words = tpu_float4.words(scales[...] * tpu_float4.less(of))
        tiles = tpu_float4.matrix(kept[...], lambda group: jnp.broadcast_to(words[group], (8, words.shape[1])), 32, of)
        found[...] = jnp.concatenate(tiles, axis=0)

    with checked_tpu():
        found = pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct((64, 128), jnp.bfloat16))(kept, scales)
    numbers = np.stack([kept % 16, kept // 16], axis=1).reshape(64, 128).view(ml_dtypes.float4_e2m1fn)
    expected = jnp.asarray(numbers, jnp.bfloat16) * jnp.repeat(jnp.asarray(scales, jnp.bfloat16), 32, axis=0)
    np.testing.assert_array_equal(found.astype(jnp.float32), tpu_float4.ordered(expected.T, of).T.astype(jnp.float32))


@pytest.mark.parametrize(("chip", "smaller"), [("v6e", 16), ("v5e", 1)])
def test_float8_becomes_bfloat16_by_what_the_chip_has(chip: str, smaller: int) -> None:
    """All numbers but NaN; zeros without a sign where they pass through a type that has none."""
    of = Chip(chip, 1, vmem_bytes=0, smem_bytes=0, matrix_columns=256)
    bits = np.arange(256, dtype=np.uint8).reshape(2, 128).repeat(16, axis=0)
    kept = np.where(bits % 128 == 127, 0, bits).astype(np.uint8).view(ml_dtypes.float8_e4m3fn)

    def kernel(kept: Any, found: Any) -> None:
        found[...] = tpu_numbers.numbers(kept[...], pairs="int4", chip=of)

    with checked_tpu():
        found = pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(kept.shape, jnp.bfloat16))(kept)
    assert tpu_numbers.less(kept, of) == smaller
    np.testing.assert_array_equal(np.asarray(found, np.float32) * smaller, kept.astype(np.float32))


@pytest.mark.tpu_compile
@pytest.mark.parametrize("target", rare_but(["v4", "v5e", "v5p", "v6e", "tpu7x"], {"v6e", "tpu7x"}))
@pytest.mark.parametrize("pairs", rare_but(["int4", "float4_e2m1fn"], {"int4"}))
def test_a_tpu_reads_matrices_of_4_bits_as_they_are_kept(target: str, pairs: str) -> None:
    """No copy of a matrix or of its scales, next to no memory beside them: gpt-oss-20b's experts, Llama-3.1-8B's `up`, `down`."""
    available("v6e-1")
    mesh = Mesh(np.asarray(devices(target, 1)), ("tensor",))
    whole = NamedSharding(mesh, PartitionSpec())

    def struct(*shape: int, dtype: Any = jnp.bfloat16) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=whole)

    options = {"compute": jnp.bfloat16, "pairs": pairs, "platform": "tpu"}
    experts = functools.partial(grouped_scaled_matmul, group=32, **options)
    dense = functools.partial(scaled_matmul, group=128, **options)
    byte, count = jnp.uint8, jnp.int32
    of_experts = (struct(128, 2880), struct(32, 1440, 2880, dtype=byte), struct(32, dtype=count))
    cases = [
        (experts, (*of_experts, struct(32, 90, 2880))),
        (dense, (struct(64, 4096), struct(7168, 4096, dtype=byte), struct(32, 14336), struct(32, 14336))),
    ]
    if target != "v4":  # whose VMEM has no place for these: XLA multiplies them
        cases.append((dense, (struct(256, 14336), struct(2048, 14336, dtype=byte), struct(112, 4096))))
        if pairs == "int4":  # scales and zeros in bytes
            in_bytes = struct(32, 90, 2880, dtype=byte), struct(32, 90, 2880, dtype=jnp.int8)
            cases.append((experts, (*of_experts, *in_bytes)))
    for function, given in cases:
        with jax.set_mesh(mesh):
            compiled = jax.jit(function).trace(*given).lower(lowering_platforms=("tpu",)).compile()
        hlo = compiled.as_text()
        assert "tpu_custom_call" in hlo
        assert not re.search(r"= u8\S+ copy\(|= (bf16|u8|s8)\[(32,90|90,32),2880\]\S+ copy\(", hlo)


@pytest.mark.parametrize("case", SCALED_CASES, ids=str)
def test_the_definition_is_the_matrix_written_out(case: ScaledCase) -> None:
    """One number after the other, in float64."""
    x, weight, scales, *zeros = (np.asarray(array).astype(np.float32).astype(np.float64) for array in case.arguments())
    if case.scale == "uint8":
        zeros[0] /= 16
    if len(weight) < case.outputs:
        bits = np.array([row % 16 if odd == 0 else row // 16 for row in weight for odd in (0, 1)], np.uint8)
        own = bits.view(ml_dtypes.float4_e2m1fn).astype(np.float64)
        weight = bits - 8.0 if case.weight == "int4" else own
    matrix = np.empty(weight.shape)
    for number in range(case.inputs):
        of = number // case.group
        matrix[:, number] = (weight[:, number] - (zeros[0][of] if zeros else 0)) * scales[of]
    np.testing.assert_allclose(defined(case), x @ matrix.T, **tolerance(case))


@pytest.mark.parametrize("case", [SCALED_CASES[0], SCALED_CASES[4], SCALED_CASES[2]], ids=str)
def test_a_row_is_the_same_to_the_last_bit_beside_any_others_on_the_cpu(case: ScaledCase) -> None:
    x, *rest = map(np.asarray, case.arguments())
    multiply = jax.jit(functools.partial(scaled_matmul, **case.options(), platform="cpu"))
    whole = np.asarray(multiply(x, *rest))
    for rows in (slice(0, 1), slice(3, 5), slice(1, 4)):
        np.testing.assert_array_equal(np.asarray(multiply(x[rows], *rest)), whole[rows])


def test_rows_may_be_taken() -> None:
    x, *rest = map(np.asarray, SCALED_CASES[1].grouped_arguments())
    rows = np.random.default_rng(0).permutation(len(x)).astype(np.int32)
    multiply = functools.partial(at_once, grouped_scaled_matmul, **SCALED_CASES[1].options(), platform="cpu")
    found = multiply(x[np.argsort(rows)], *rest, rows=rows)
    real = slice(sum(SCALED_CASES[1].sizes))
    np.testing.assert_array_equal(np.asarray(found)[real], np.asarray(multiply(x, *rest))[real])


def test_what_does_not_fit_together_is_named() -> None:
    x, weight, scales, zeros = SCALED_CASES[1].arguments()
    options = SCALED_CASES[1].options()
    with pytest.raises(ValueError, match=r"axis I \(inputs\) differs: 64 in x, 63 in weight"):
        scaled_matmul(x, weight[:, :63], scales, **options)
    with pytest.raises(ValueError, match=r"axis Q \(groups of 16 inputs\) differs: 3 in scales, 4 in inputs"):
        scaled_matmul(x, weight, scales[:3], **options)
    with pytest.raises(ValueError, match=r"zeros must have the shape of scales, \[4, 48\], got \[3, 48\]"):
        scaled_matmul(x, weight, scales, zeros[:3], **options)
    for wrong in ((scales.astype(jnp.uint8), zeros), (scales, zeros.astype(jnp.int8))):
        with pytest.raises(ValueError, match="must be of floating point, or uint8 and int8, got "):
            scaled_matmul(x, weight, *wrong, **options)
    with pytest.raises(ValueError, match="a scaled matrix is of uint8, int8, float8_e4m3fn, float8_e5m2, got float32"):
        scaled_matmul(x, jnp.ones((48, 64)), scales, **options)
    with pytest.raises(ValueError, match="x must be of floating point"):
        scaled_matmul(x.astype(jnp.int32), weight, scales, **options)


FLOAT8_ROWS = {"group": 64, "compute": jnp.bfloat16}


def test_rows_in_float8_are_off_by_what_rounding_them_takes() -> None:
    numbers = np.random.default_rng(0)
    x = jnp.asarray(numbers.normal(size=(5, 64)) * [[1], [1e3], [1e-3], [0], [1]], jnp.bfloat16)
    weight = jnp.asarray(numbers.normal(size=(48, 64)), jnp.float8_e4m3fn)
    scales = jnp.asarray(numbers.uniform(0.01, 0.1, (1, 48)), jnp.float32)
    options = {"pairs": "int4", "round_rows": True, "precision": HIGHEST, **FLOAT8_ROWS}
    exact = np.asarray(scaled_matmul(x, weight, scales, **FLOAT8_ROWS, backend="reference"))
    found = np.asarray(tpu_float8.scaled_matmul(x, weight, scales, None, **options))
    error = np.linalg.norm(found - exact, axis=1) / np.maximum(np.linalg.norm(exact, axis=1), 1e-9)
    assert 0.005 < error[0] < 0.05
    assert (error < 0.05).all()
    assert not found[3].any()


@pytest.mark.tpu_compile
@pytest.mark.parametrize(("target", "narrow"), [("tpu7x", True), pytest.param("v6e", False, marks=pytest.mark.rare)])
def test_rows_are_rounded_to_float8_where_that_is_faster(target: str, narrow: bool) -> None:
    available("v6e-1")
    mesh = Mesh(np.asarray(devices(target, 1)), ("tensor",))
    whole = NamedSharding(mesh, PartitionSpec())
    shapes = [((256, 512), jnp.bfloat16), ((1024, 512), jnp.float8_e4m3fn), ((1, 1024), jnp.float32)]
    given = [jax.ShapeDtypeStruct(shape, dtype, sharding=whole) for shape, dtype in shapes]
    multiply = functools.partial(scaled_matmul, group=512, compute=jnp.bfloat16, round_rows=True, platform="tpu")
    with jax.set_mesh(mesh):
        text = jax.jit(multiply).trace(*given).lower(lowering_platforms=("tpu",)).compile().as_text()
    rows = re.findall(r"%\S+ = (\S+)\[256,512\]", text)
    assert ("f8e4m3fn" in rows) == narrow
