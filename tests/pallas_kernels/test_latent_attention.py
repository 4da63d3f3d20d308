"""Latent attention and writing what it reads: every backend against the definition, and where pages lie on a TPU."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pallas_kernels import KernelUnsupported, latent_attention, latent_page_shape, write_latents
from pallas_kernels.check import pool_moves
from pallas_kernels.gpu.device import interpreted_gpu
from pallas_kernels.latent_attention import OP, tpu
from pallas_kernels.storage import to_float32
from pallas_kernels.testing import LATENT_CASES, LatentCase, LatentInputs
from pallas_kernels.tpu.chip import simulated_tpu
from pallas_kernels.write_latents import tpu as writing
from tests.pallas_kernels.simulation import checked_tpu
from tests.quick import QUICK, at_once, rare_but, slow_but
from tests.targets.tpu import devices

(MIXED,) = (case for case in LATENT_CASES if case.name == "mixed")
(INT8,) = (case for case in LATENT_CASES if case.name == "int8")
(TWO_HEADS,) = (case for case in LATENT_CASES if case.name == "heads-2")
(HALF_BITS,) = (case for case in LATENT_CASES if case.name == "float32-float16-bits")
ON_THE_INTERPRETED_GPU = [case for case in LATENT_CASES if case.name in ("heads-20", "int8")]


def by_hand(case: LatentCase) -> np.ndarray[Any, Any]:
    """Token by token, head by head, in float64: only the positions that a token sees."""
    q, pages, table, offsets, starts = (np.asarray(array) for array in case.inputs())
    cached = np.asarray(at_once(to_float32, pages, kv_dtype=jnp.dtype(case.kv_dtype)), np.float64)[:, 0]
    if case.scales is not None:
        cached = cached * np.asarray(case.scales, np.float64)
    out = np.zeros((*q.shape[:2], case.value_size), np.float64)
    for row in range(len(case.rows)):
        for place in range(offsets[row], offsets[row + 1]):
            positions = np.arange(starts[row] + place - offsets[row] + 1)
            seen = cached[table[row, positions // case.page_tokens], positions % case.page_tokens]
            weights = np.exp(case.options["scale"] * q[place].astype(np.float64) @ seen.T)
            out[place] = weights / weights.sum(axis=1, keepdims=True) @ seen[:, : case.value_size]
    return out


@pytest.mark.parametrize("platform", ["cpu", "tpu"])
@pytest.mark.parametrize("backend", slow_but(["reference", "xla"], {"xla"}))
@pytest.mark.parametrize("case", slow_but(LATENT_CASES, [MIXED, INT8]), ids=str)
def test_a_backend_agrees_with_the_definition(case: LatentCase, backend: str, platform: str) -> None:
    compare(case, backend, case.inputs(platform))


@pytest.mark.parametrize("case", slow_but(LATENT_CASES, [INT8], often=[MIXED, TWO_HEADS]), ids=str)
def test_the_tpu_kernel_agrees_with_the_definition(case: LatentCase) -> None:
    with checked_tpu():
        compare(case, "tpu", case.inputs("tpu"))


@pytest.mark.parametrize("case", slow_but(LATENT_CASES, [INT8], often=ON_THE_INTERPRETED_GPU), ids=str)
def test_the_gpu_kernel_agrees_with_the_definition(case: LatentCase) -> None:
    with interpreted_gpu():
        compare(case, "gpu", case.inputs("gpu"))


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated")  # since jax 0.11
@pytest.mark.parametrize("case", LATENT_CASES, ids=str)
def test_a_gpu_agrees_with_the_definition(case: LatentCase) -> None:
    """As in test_paged_attention.py."""
    if jax.default_backend() != "gpu":
        pytest.skip("needs a GPU, and JAX_PLATFORMS=cuda,cpu")
    compare(case, "gpu", case.inputs("gpu"))


@pytest.mark.slow
def test_two_cores_share_the_rows() -> None:
    with checked_tpu(cores=2):
        compare(MIXED, "tpu", MIXED.inputs("tpu"))


@pytest.mark.slow
def test_a_page_table_beyond_the_scalar_memory_is_worked_off_in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = MIXED.inputs("tpu")
    monkeypatch.setattr(tpu, "_table_entries", lambda _: 3 * inputs.page_table.shape[1])
    with checked_tpu():
        compare(MIXED, "tpu", inputs)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"pages": jnp.zeros((4, 1, 8, 24))}, r"pages of \(1, 8, 24\) in float32 do not fill a TPU's tiles"),
        ({"pages": jnp.zeros((4, 1, 4, 128))}, "of a multiple of 8 tokens"),
        ({"pages": jnp.zeros((4, 1, 8, 128), jnp.uint16)}, "pages are uint16 bits, which only the CPU needs"),
        (
            {"pages": jnp.zeros((4, 1, 8, 128), jnp.float16)},
            "pages are float16; the TPU kernel takes bfloat16, float32, int8, float8_e4m3fn, float8_e5m2",
        ),
        ({"page_table": jnp.zeros((1, 200_000), jnp.int32)}, "use larger pages"),
        ({"pages": jnp.zeros((4, 1, 1 << 14, 128))}, "do not fit 16777216 bytes of VMEM"),
    ],
)
def test_the_tpu_kernel_says_what_it_does_not_take(changes: dict[str, Any], reason: str) -> None:
    inputs = LATENT_CASES[0].inputs("tpu")._asdict() | changes
    options = {"scale": 1.0, "value_size": 16}
    with simulated_tpu(pltpu.InterpretParams()), pytest.raises(KernelUnsupported, match=reason):
        latent_attention(**inputs, **options, backend="tpu")
    assert OP.choose("tpu", **inputs, **options, kv_dtype=inputs["pages"].dtype) == "xla"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"pages": jnp.zeros((4, 1, 8, 24), jnp.uint16)},
            "hold the bits of bfloat16 as uint16, which only the CPU needs",
        ),
        ({"q": jnp.zeros((1, 4, 600)), "pages": jnp.zeros((4, 1, 8, 600))}, "keys beside them of 584 numbers; .* 512"),
        ({"q": jnp.zeros((1, 4, 600)), "pages": jnp.zeros((4, 1, 8, 600)), "value_size": 513}, "values of 513 numbers"),
    ],
)
def test_the_gpu_kernel_says_what_it_does_not_take(changes: dict[str, Any], reason: str) -> None:
    given = LATENT_CASES[0].inputs()._asdict() | {"scale": 1.0, "value_size": 16} | changes
    with interpreted_gpu():
        with pytest.raises(KernelUnsupported, match=reason):
            latent_attention(**given, backend="gpu")
        kv_dtype = jnp.bfloat16 if given["pages"].dtype == jnp.uint16 else jnp.float32
        assert OP.choose("gpu", **given, kv_dtype=jnp.dtype(kv_dtype)) == "xla"


def compare(case: LatentCase, backend: str, inputs: LatentInputs) -> None:
    reason = OP.supports(backend, *inputs, **case.options)
    if reason is not None:
        pytest.skip(f"{backend}: {reason}")
    run = jax.jit(lambda *arrays: latent_attention(*arrays, backend=backend, **case.options), compiler_options=QUICK)
    found = run(*inputs)
    assert found.shape == (*inputs.q.shape[:2], case.value_size)
    assert found.dtype == inputs.q.dtype
    np.testing.assert_allclose(np.asarray(found, np.float64), by_hand(case), rtol=0, atol=case.tolerance)


@pytest.mark.parametrize("platform", ["cpu", "tpu"])
@pytest.mark.parametrize("backend", ["reference", "xla"])
@pytest.mark.parametrize("slots", slow_but([(13,), (9, 40, 0, 0, 31)], {(9, 40, 0, 0, 31)}))
@pytest.mark.parametrize("case", [LATENT_CASES[0], HALF_BITS, INT8], ids=str)
def test_vectors_lie_where_they_belong(case: LatentCase, slots: tuple[int, ...], backend: str, platform: str) -> None:
    rng = np.random.default_rng(0)
    shape = (6, *latent_page_shape(8, case.size, platform=platform))
    before = case.stored(rng.normal(size=shape))
    latents = jnp.asarray(rng.normal(size=(len(slots), case.size)), jnp.float32)
    options = {"scales": case.scales, "kv_dtype": case.kv_dtype, "backend": backend}
    after = write_latents(before, latents, jnp.asarray(slots, jnp.int32), **options)
    assert after.dtype == before.dtype
    expected = np.asarray(before)[1:].copy()
    for vector, slot in zip(np.asarray(latents), slots, strict=True):
        if slot >= 8:
            padded = np.pad(vector, (0, shape[-1] - case.size))
            expected[slot // 8 - 1, 0, slot % 8] = np.asarray(case.stored(padded))
    np.testing.assert_array_equal(np.asarray(after)[1:], expected)


@pytest.mark.parametrize("kv_dtype", slow_but(["int8", "float8_e4m3fn", "float8_e5m2"], (), often=["int8"]))
def test_a_tpu_writes_bytes_of_words(kv_dtype: str) -> None:
    """Runs over several tiles, neighbours that go on in another's tile, the sink between them, more tiles than a batch has."""
    rng = np.random.default_rng(0)
    runs = [range(40, 141), [0, 3], range(141, 150), [1000], range(33, 36), [2], [36], range(500, 480, -1)]
    slots = jnp.asarray([*itertools.chain(*runs), *range(1024, 3200, 40), 7], jnp.int32)
    scales = jnp.asarray(rng.uniform(0.01, 0.02, 130), jnp.float32)
    before = jnp.asarray(rng.integers(0, 100, (100, 1, 32, 256)), jnp.int8)
    pages = before if kv_dtype == "int8" else jax.lax.bitcast_convert_type(before, kv_dtype)
    latents = jnp.asarray(rng.normal(size=(slots.size, 130)), jnp.float32)
    run = functools.partial(write_latents, pages, latents, slots, scales=scales)
    expected = run(backend="reference")
    with checked_tpu():
        found = np.asarray(run(backend="tpu"))
    assert found.dtype == pages.dtype
    np.testing.assert_array_equal(found[1:].view(np.int8), np.asarray(expected)[1:].view(np.int8))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"q": jnp.zeros((3, 4, 40))}, "axis L of pages is 24"),
        ({"pages": jnp.zeros((4, 2, 8, 24))}, "axis 1"),
        ({"value_size": 25}, "value_size is 25"),
        ({"backend": "native"}, "no backend 'native'"),
        ({"backend": "gpu"}, "the program is not traced for a GPU"),
        ({"backend": "tpu"}, "the program is not traced for a TPU"),
        ({"pages": jnp.zeros((4, 1, 8, 24), jnp.int8)}, r"pages hold int8 and need scales \[D\]"),
        ({"scales": jnp.ones(24)}, "pages hold float32; scales belong to int8"),
        ({"pages": jnp.zeros((4, 1, 8, 24), jnp.int8), "scales": jnp.ones(16)}, "axis D"),
    ],
)
def test_what_does_not_fit_is_named(changes: dict[str, Any], message: str) -> None:
    inputs = LATENT_CASES[0].inputs()._asdict() | {"scale": 1.0, "value_size": 16, "backend": "xla"} | changes
    with pytest.raises((ValueError, KernelUnsupported), match=message):
        latent_attention(**inputs)


@pytest.mark.slow
def test_a_tpu_writes_tiles_of_many_tokens_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles that a run fills, begins, ends, or leaves a gap in; one over the edge of a step's places; one that others end."""
    monkeypatch.setattr(writing, "MANY_TOKENS", 1)
    rng = np.random.default_rng(0)
    runs = [range(37, 141), [0, 3], range(144, 152), [1000], range(33, 37), [2], range(160, 175), [152, 175]]
    slots = jnp.asarray(
        [*itertools.chain(*runs), *range(512, 480, -1), *range(1600, 1760), *range(1024, 1584, 40), 7], jnp.int32
    )
    pages = jnp.asarray(rng.normal(size=(100, 1, 32, 256)), jnp.bfloat16)
    run = functools.partial(write_latents, pages, jnp.asarray(rng.normal(size=(slots.size, 130)), jnp.float32), slots)
    expected = run(backend="reference")
    with checked_tpu():
        found = np.asarray(run(backend="tpu"))
    np.testing.assert_array_equal(found[1:], np.asarray(expected)[1:])


@pytest.mark.tpu_compile
@pytest.mark.slow
@pytest.mark.parametrize("backend", rare_but(["auto", "xla"], {"auto"}))
@pytest.mark.parametrize(("rows", "places"), [(64, 64), (8, 1024)])
@pytest.mark.parametrize("generation", rare_but(["v6e", "v5e", "v4", "v5p", "tpu7x"], {"v6e"}))
@pytest.mark.parametrize("heads", rare_but([2, 8, 128, 20], {2, 8}))
def test_a_tpu_leaves_the_pool_where_it_is(heads: int, generation: str, rows: int, places: int, backend: str) -> None:
    """DeepSeek-V3's vectors, with its heads on one of 64 or sixteen chips, or all of them."""
    compiled, pool = compiled_layer(generation, heads=heads, rows=rows, places=places, backend=backend)
    assert pool_moves(compiled, pool, itemsize=2) == []
    assert ("tpu_custom_call" in compiled.as_text()) == (backend == "auto")


@pytest.mark.tpu_compile
@pytest.mark.slow
@pytest.mark.parametrize("generation", rare_but(["v6e", "v5e", "v4", "v5p", "tpu7x"], {"v4"}))
def test_float32_compiles(generation: str) -> None:
    compiled, pool = compiled_layer(generation, heads=16, rows=8, places=64, backend="auto", dtype=jnp.float32)
    assert pool_moves(compiled, pool, itemsize=4) == []
    assert "tpu_custom_call" in compiled.as_text()


@pytest.mark.tpu_compile
@pytest.mark.slow
@pytest.mark.parametrize("kv_dtype", rare_but([jnp.int8, jnp.float8_e4m3fn, jnp.float8_e5m2], {jnp.float8_e4m3fn}))
@pytest.mark.parametrize(("rows", "places"), [(64, 64), (8, 1024)])
@pytest.mark.parametrize("generation", rare_but(["v6e", "v5e", "v4", "v5p", "tpu7x"], {"v4"}))
@pytest.mark.parametrize("heads", rare_but([16, 128], {16}))
def test_a_tpu_leaves_a_quantised_pool_where_it_is(
    heads: int, generation: str, rows: int, places: int, kv_dtype: Any
) -> None:
    """One kernel writes, and one attends."""
    options: dict[str, Any] = {"backend": "tpu", "kv_dtype": kv_dtype}
    compiled, pool = compiled_layer(generation, heads=heads, rows=rows, places=places, **options)
    assert pool_moves(compiled, pool, itemsize=1) == []
    assert compiled.as_text().count('"tpu_custom_call"') == 2


def compiled_layer(
    generation: str,
    *,
    heads: int,
    rows: int,
    places: int,
    backend: str,
    dtype: Any = jnp.bfloat16,
    kv_dtype: Any = None,
) -> tuple[Any, tuple[int, ...]]:
    """What writes a layer's latent vectors and attends to them, for one chip, and the shape of its pool."""
    mesh = Mesh(np.asarray(devices(generation, count=1)), ("tensor",))
    # Several times as large as the queries of all heads, which are float32 where they meet scales.
    pool = (8192 if kv_dtype is None else 32_768, *latent_page_shape(64, 576, platform="tpu"))
    target = {"backend": backend, "platform": "tpu", "scales": None if kv_dtype is None else jnp.ones(576)}

    def layer(pages: Any, q: Any, latents: Any, slots: Any, table: Any, offsets: Any, starts: Any) -> Any:
        pages = write_latents(pages, latents, slots, **target)
        q = jnp.concatenate([q, q[..., :64]], axis=-1)
        return pages, latent_attention(q, pages, table, offsets, starts, scale=0.1, value_size=512, **target)

    arguments = [
        jax.ShapeDtypeStruct(shape, of, sharding=NamedSharding(mesh, PartitionSpec()))
        for shape, of in (
            (pool, dtype if kv_dtype is None else kv_dtype),
            ((places, heads, 512), dtype),
            ((places, 576), dtype),
            ((places,), jnp.int32),
            ((rows, 128), jnp.int32),
            ((rows + 1,), jnp.int32),
            ((rows,), jnp.int32),
        )
    ]
    with jax.set_mesh(mesh):
        traced = jax.jit(layer, donate_argnums=0).trace(*arguments)
        return traced.lower(lowering_platforms=("tpu",)).compile(), pool
