"""Every backend of paged attention on every case it claims, against a definition that loops over tokens."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pallas_kernels import KernelUnsupported, paged_attention
from pallas_kernels.check import pool_sized_moves
from pallas_kernels.gpu.device import AMPERE, interpreted_gpu
from pallas_kernels.native import calling
from pallas_kernels.paged_attention import OP, gpu, tpu
from pallas_kernels.paged_attention.tiles import cut, tile_lengths
from pallas_kernels.storage import to_float32
from pallas_kernels.testing import ATTENTION_CASES, AttentionCase, AttentionInputs
from tests.pallas_kernels.simulation import checked_tpu
from tests.quick import QUICK, at_once, slow_but

BACKENDS = tuple(OP.backends)
ON_THE_SIMULATED_TPU = {"all-options"}
"""The TPU cases that every run computes, some 10 seconds each to trace and compile; the others are rare."""

ON_THE_INTERPRETED_GPU = {"mixed", "all-options"}
"""Likewise for the GPU, whose interpreter has to be compiled for every case."""


ON_THE_CPU = {
    "decode-ragged",
    "prefill-ragged",
    "only-padding",
    "empty-row-with-start",
    "mixed",
    "mixed-options",
    "shared-pages",
    "stale-infinity",
    "long",
    "window-prefill-blocks",
    "sinks",
    "all-options",
    "spans-window",
    "crosses-bfloat16",
    "ratio-7",
    "head-size-80",
    "bfloat16-bfloat16",
    "int8-three-kv-heads",
}
"""Likewise for the CPU's own two: one of each kind."""
BY_DEFINITION = {"decode-ragged", "mixed-options", "all-options", "spans-window", "int8-three-kv-heads"}
"""And of the reference, which runs nowhere."""


def cases() -> Iterator[Any]:
    for case, backend in itertools.product(ATTENTION_CASES, BACKENDS):
        every_run = {
            "tpu": ON_THE_SIMULATED_TPU,
            "gpu": ON_THE_INTERPRETED_GPU,
            "reference": BY_DEFINITION,
        }.get(backend, ON_THE_CPU)
        slow = case.slow or case.name not in every_run
        simulated = backend in ("tpu", "gpu")
        marks = () if not slow else pytest.mark.rare if simulated or case.slow else pytest.mark.slow
        yield pytest.param(case, backend, id=f"{case}-{backend}", marks=marks)


@functools.lru_cache(maxsize=1)  # the backends of one case follow each other
def by_hand(case: AttentionCase) -> np.ndarray[Any, Any]:
    """Token by token in float64: no masks, only the positions that a token sees."""
    q, kv_pages, table, offsets, starts = (np.asarray(array) for array in case.inputs())
    cached = np.asarray(at_once(to_float32, kv_pages, kv_dtype=jnp.dtype(case.kv_dtype)), np.float64)
    if case.options["kv_scales"] is not None:
        cached = cached * np.asarray(case.options["kv_scales"], np.float64).T.reshape(-1, 1)
    sinks = None if case.options["sinks"] is None else np.asarray(case.options["sinks"], np.float64)
    out = np.zeros(q.shape, np.float64)
    group = case.heads // case.kv_heads
    for row in range(len(case.rows)):
        for place in range(offsets[row], offsets[row + 1]):
            last = starts[row] + place - offsets[row]
            first = 0 if case.window is None else max(0, last - case.window + 1)
            positions = np.arange(first, case.last_seen((case.sequences or range(len(case.rows)))[row], last) + 1)
            seen = cached[table[row, positions // case.page_tokens], positions % case.page_tokens]
            keys, values = seen[:, 0::2].repeat(group, axis=1), seen[:, 1::2].repeat(group, axis=1)
            scores = case.options["scale"] * np.einsum("hd,shd->hs", q[place].astype(np.float64), keys)
            if case.soft_cap is not None:
                scores = case.soft_cap * np.tanh(scores / case.soft_cap)
            if case.alibi:
                scores = scores + np.asarray(case.options["alibi_slopes"], np.float64)[:, None] * (positions - last)
            weights = np.exp(scores)
            total = weights.sum(axis=1) + (0.0 if sinks is None else np.exp(sinks))
            out[place] = np.einsum("hs,shd->hd", weights, values) / total[:, None]
    return out


def check(case: AttentionCase, backend: str, *, platform: str = "cpu", library: str | None = None) -> None:
    inputs = case.inputs("tpu" if backend == "tpu" else platform)
    with {"tpu": checked_tpu, "gpu": interpreted_gpu}.get(backend, nullcontext)(), calling(library):
        compare(case, backend, inputs)


def compare(case: AttentionCase, backend: str, inputs: AttentionInputs) -> None:
    reason = OP.supports(backend, *inputs, **case.options)
    if reason is not None:
        pytest.skip(f"{backend}: {reason}")
    run = jax.jit(lambda *arrays: paged_attention(*arrays, backend=backend, **case.options), compiler_options=QUICK)
    result = run(*inputs)
    assert result.shape == inputs.q.shape
    assert result.dtype == inputs.q.dtype
    np.testing.assert_allclose(np.asarray(result, np.float64), by_hand(case), rtol=0, atol=case.tolerance)


@pytest.mark.parametrize(("case", "backend"), list(cases()))
def test_a_backend_agrees_with_the_definition(case: AttentionCase, backend: str, native: str) -> None:
    check(case, backend, library=native)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated")  # since jax 0.11
@pytest.mark.parametrize("case", ATTENTION_CASES, ids=str)
def test_a_gpu_agrees_with_the_definition(case: AttentionCase) -> None:
    """`JAX_PLATFORMS=cuda,cpu python -m pytest -m gpu` on a machine that has one."""
    if jax.default_backend() != "gpu":
        pytest.skip("needs a GPU, and JAX_PLATFORMS=cuda,cpu")
    compare(case, "gpu", case.inputs("gpu"))


@pytest.mark.parametrize("backend", ["reference", "xla"])
@pytest.mark.parametrize("name", ["decode-ragged", "head-size-64", "head-size-80", "odd-kv-heads", "int8-one-kv-head"])
def test_every_backend_reads_the_pages_of_a_tpu(name: str, backend: str) -> None:
    (case,) = (case for case in ATTENTION_CASES if case.name == name)
    check(case, backend, platform="tpu")


@pytest.mark.parametrize("name", slow_but(["long", "padding-rows"], ()))
def test_two_cores_share_the_rows(name: str) -> None:
    (case,) = (case for case in ATTENTION_CASES if case.name == name)
    with checked_tpu(cores=2):
        compare(case, "tpu", case.inputs("tpu"))


@pytest.mark.slow
def test_a_page_table_beyond_the_scalar_memory_is_worked_off_in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    (case,) = (case for case in ATTENTION_CASES if case.name == "decode-ragged")
    inputs = case.inputs("tpu")
    monkeypatch.setattr(tpu, "_table_entries", lambda _: 2 * inputs.page_table.shape[1])
    with checked_tpu():
        compare(case, "tpu", inputs)


def test_a_gpu_that_cannot_convert_float8_takes_it_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    (case,) = (case for case in ATTENTION_CASES if case.name == "float8_e4m3fn-head-size-64")
    monkeypatch.setattr(gpu, "gpu_refused", lambda least: None if least == AMPERE else "it is an A100")
    with interpreted_gpu():
        compare(case, "gpu", case.inputs())


def test_every_case_has_a_name_of_its_own_and_a_reason() -> None:
    names = [case.name for case in ATTENTION_CASES]
    assert len(set(names)) == len(names)
    assert all(case.reason for case in ATTENTION_CASES)


@st.composite
def cases(draw: st.DrawFn) -> AttentionCase:
    count = st.sampled_from([0, 1, 1, 2, 7, 16, 40, 130])
    rows = draw(st.lists(st.tuples(st.integers(0, 300), count), min_size=1, max_size=6))
    kv_heads = draw(st.sampled_from([1, 2, 3]))
    kv_dtype = draw(st.sampled_from(["float32", "bfloat16", "int8", "float8_e4m3fn", "float8_e5m2"]))
    return AttentionCase(
        name="random",
        reason="what nobody thought of",
        rows=tuple(rows),
        padding=draw(st.integers(0 if any(count for _, count in rows) else 1, 9)),
        kv_heads=kv_heads,
        heads=kv_heads * draw(st.sampled_from([1, 2, 5])),
        head_size=draw(st.sampled_from([4, 64])),
        page_tokens=draw(st.sampled_from([4, 16, 128])),
        spare_pages=draw(st.integers(0, 3)),
        window=draw(st.none() | st.integers(1, 200)),
        soft_cap=draw(st.none() | st.just(3.0)),
        sinks=draw(st.booleans()),
        alibi=draw(st.booleans()),
        kv_dtype=kv_dtype,
        bits=kv_dtype in ("bfloat16", "float8_e4m3fn", "float8_e5m2") and draw(st.booleans()),
        seed=draw(st.integers(0, 1000)),
    )


@pytest.mark.slow
@settings(max_examples=3, deadline=None)
@given(case=cases())
def test_random_cases(case: AttentionCase) -> None:
    check(case, "xla")


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["tpu", "gpu"])
@settings(max_examples=2, deadline=None)
@given(case=cases().filter(lambda case: not case.bits))
def test_random_cases_on_a_simulated_device(backend: str, case: AttentionCase) -> None:
    check(case, backend)


CASE = ATTENTION_CASES[1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": (5, 6, 16), "kv_pages": (4, 8, 8, 16)}, "q has 6 query heads, which 4 KV heads do not divide"),
        ({"q": (5, 4, 32)}, r"axis H \(head size\) differs: 32 in q, 16 in kv_pages"),
        ({"page_table": (4, 3)}, r"axis B \(rows\) differs: 4 in page_table, 5 in starts"),
        ({"offsets": (5,)}, r"axis B\+1 \(rows and one\) differs: 6 in page_table, 5 in offsets"),
        ({"q": (5, 1, 4, 16)}, r"q must have axes \[N, heads, H\], got shape \[5, 1, 4, 16\]"),
        ({"kv_pages": (4, 8, 3, 16)}, "axis C of kv_pages is 3: 1 KV heads take 2 channels"),
        ({"starts": (5, 1)}, r"starts must have axes \[B\]"),
    ],
)
def test_arguments_that_do_not_fit_name_the_axis(change: dict[str, tuple[int, ...]], message: str) -> None:
    inputs = CASE.inputs()._asdict()
    inputs |= {name: jnp.zeros(shape, inputs[name].dtype) for name, shape in change.items()}
    with pytest.raises(ValueError, match=message):
        paged_attention(**inputs, scale=1.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": 0}, "window is 0; it counts the token itself"),
        ({"soft_cap": 0.0}, "soft_cap is 0.0"),
        ({"sinks": jnp.zeros(3)}, r"axis heads \(query heads\) differs: 4 in q, 3 in sinks"),
        ({"alibi_slopes": jnp.zeros(2)}, r"axis heads \(query heads\) differs: 4 in q, 2 in alibi_slopes"),
        ({"alibi_slopes": jnp.zeros((4, 1))}, r"alibi_slopes must have axes \[heads\]"),
        ({"until": jnp.zeros(4, jnp.int32)}, r"axis N \(places\) differs: 5 in q, 4 in until"),
        ({"until": jnp.zeros(5)}, "until must be int32, got float32"),
        ({"until": jnp.zeros(5, jnp.int32), "backend": "gpu"}, "not built for tokens that see others"),
        ({"kv_dtype": jnp.bfloat16}, "kv_dtype is bfloat16, but kv_pages hold float32"),
        (
            {"kv_scales": jnp.ones((2, 2))},
            "kv_pages hold float32; kv_scales belong to int8, float8_e4m3fn, float8_e5m2",
        ),
        ({"backend": "mosaic"}, "no backend 'mosaic'; use one of auto, reference, xla"),
    ],
)
def test_options_that_cannot_be_say_so(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        paged_attention(*CASE.inputs(), scale=1.0, **options)


def test_positions_places_and_pages_are_int32() -> None:
    inputs = CASE.inputs()
    for name in ("page_table", "offsets", "starts"):
        with pytest.raises(ValueError, match=f"{name} must be int32, got int16"):
            paged_attention(*inputs._replace(**{name: getattr(inputs, name).astype(jnp.int16)}), scale=1.0)


@pytest.mark.parametrize(
    ("kv_scales", "message"),
    [
        (None, r"kv_pages hold int8 and need kv_scales \[2, K\]"),
        (jnp.ones(2), r"kv_scales must have axes \[2, K\], got shape \[2\]"),
        (jnp.ones((2, 3)), r"axis K \(KV heads\) differs: 3 in kv_scales, 2 in kv_pages"),
        (jnp.ones((1, 2)), r"axis 2 \(keys, values\) differs: 1 in kv_scales"),
        (jnp.ones((2, 2), jnp.bfloat16), "kv_scales must be float32, got bfloat16"),
    ],
)
def test_quantised_pages_need_scales_per_head(kv_scales: jax.Array | None, message: str) -> None:
    inputs = CASE.inputs()._replace(kv_pages=jnp.zeros((4, 8, 4, 16), jnp.int8))
    with pytest.raises(ValueError, match=message):
        paged_attention(*inputs, scale=1.0, kv_scales=kv_scales)


@pytest.mark.parametrize("backend", ["reference", "xla"])
def test_pages_of_another_type_are_refused(backend: str) -> None:
    inputs = CASE.inputs()
    with pytest.raises(KernelUnsupported, match="kv_pages of int32 hold no keys and values"):
        paged_attention(*inputs._replace(kv_pages=inputs.kv_pages.astype(jnp.int32)), scale=1.0, backend=backend)


@pytest.mark.parametrize("backend", ["xla", "native"])
@pytest.mark.parametrize("window", slow_but([None, 40], {None}))
@pytest.mark.parametrize(
    ("head_size", "heads", "kv_dtype"),
    [
        (20, 6, "float32"),
        pytest.param(64, 4, "bfloat16", marks=pytest.mark.slow),
        pytest.param(64, 4, "int8", marks=pytest.mark.slow),
        pytest.param(64, 2, "float32", marks=pytest.mark.slow),
        pytest.param(8, 2, "float32", marks=pytest.mark.slow),
        pytest.param(80, 4, "bfloat16", marks=pytest.mark.slow),
    ],
)
def test_a_token_has_the_same_bits_in_every_step(
    head_size: int, heads: int, kv_dtype: str, window: int | None, backend: str, native: str
) -> None:
    """Cut into other rows, decoded, alone or among others: nothing but the sequence decides a token's result."""
    tokens, others = 290, 31
    whole = AttentionCase(
        name="whole",
        reason="two sequences, a row each",
        rows=((0, tokens), (0, others)),
        heads=heads,
        head_size=head_size,
        window=window,
        alibi=kv_dtype == "int8",
        kv_dtype=kv_dtype,
        dtype="float32",
        bits=kv_dtype == "bfloat16",
    )
    queries, kv_pages, table, _, _ = map(np.asarray, whole.inputs())
    with calling(native):
        reason = OP.supports(backend, *whole.inputs(), **whole.options)
    if reason is not None:
        pytest.skip(reason)

    @jax.jit
    def step(*arrays: jax.Array) -> jax.Array:
        with calling(native):
            return paged_attention(*arrays, backend=backend, **whole.options)

    def attend(rows: list[tuple[int, int, int]], *, batch: int, places: int) -> np.ndarray[Any, Any]:
        """The results of all tokens of rows of (sequence, position, number) in a step of that size."""
        sequence, start, count = np.asarray(rows + [(0, 0, 0)] * (batch - len(rows)), np.int32).T
        own = np.concatenate([sequence * tokens + np.arange(begin, begin + number) for sequence, begin, number in rows])
        padded = np.pad(queries[own], ((0, places - len(own)), (0, 0), (0, 0)))
        offsets = np.asarray([0, *np.cumsum(count)], np.int32)
        return np.asarray(step(padded, kv_pages, table[sequence], offsets, start))[: len(own)]

    expected = attend([(0, 0, tokens)], batch=44, places=340)
    assert np.isfinite(expected).all()
    for sizes in ([128] * 3, [64] * 5, [50] * 6, [7] * 42, [1, 130, 3, 5, 2, 96, 4, 49]):
        begins = np.minimum(np.cumsum([0, *sizes]), tokens)
        rows = [(0, int(begin), int(end - begin)) for begin, end in itertools.pairwise(begins)]
        result = attend([(1, 0, others), *rows], batch=44, places=340)
        np.testing.assert_array_equal(result[others:], expected, err_msg=f"rows of {sizes}")
        result = attend([*rows, (1, 0, others)], batch=44, places=340)
        np.testing.assert_array_equal(result[:tokens], expected, err_msg=f"rows of {sizes} before another")
    decoded = [1, 127, 128, 129, 200, 255, 256, 289]
    singles = [(0, position, 1) for position in decoded]
    np.testing.assert_array_equal(attend(singles, batch=8, places=16), expected[decoded])
    mixed = attend([*singles[:4], (1, 0, 5), *singles[4:]], batch=44, places=340)
    np.testing.assert_array_equal(np.delete(mixed, range(4, 9), axis=0), expected[decoded])
    for single, position in zip(singles, decoded, strict=True):
        np.testing.assert_array_equal(attend([single], batch=1, places=1)[0], expected[position])


@pytest.mark.parametrize("backend", ["xla", "native"])
@pytest.mark.parametrize("kv_dtype", slow_but(["float32", "bfloat16"], {"bfloat16"}))
def test_a_token_that_sees_others_has_the_same_bits_in_every_step(kv_dtype: str, backend: str, native: str) -> None:
    """A picture whose tokens see each other: whole in a row, or cut as a prefix hit cuts it, with a neighbour and without."""
    end, spans = 200, ((0, 20, 190), (1, 2, 9))
    case = AttentionCase(
        name="whole",
        reason="",
        rows=((0, end), (0, 31)),
        spans=spans,
        head_size=64,
        kv_dtype=kv_dtype,
        bits=kv_dtype == "bfloat16",
    )
    queries, kv_pages, table, _, _ = map(np.asarray, case.inputs())
    until = np.asarray(case.options["until"])
    options = {name: value for name, value in case.options.items() if name != "until"}

    def attend(rows: list[tuple[int, int, int]], places: int) -> np.ndarray[Any, Any]:
        sequence, start, count = np.asarray(rows, np.int32).T
        own = np.concatenate([of * end + np.arange(begin, begin + number) for of, begin, number in rows])
        arrays = [
            np.pad(array[own], ((0, places - len(own)),) + ((0, 0),) * (array.ndim - 1)) for array in (queries, until)
        ]
        offsets = np.asarray([0, *np.cumsum(count)], np.int32)

        @jax.jit
        def step(q: jax.Array, until: jax.Array, *others: jax.Array) -> jax.Array:
            with calling(native):
                return paged_attention(q, *others, until=until, backend=backend, **options)

        return np.asarray(step(*arrays, kv_pages, table[sequence], offsets, start))[: len(own)]

    with calling(native):
        reason = OP.supports(backend, *case.inputs(), **case.options)
    if reason is not None:
        pytest.skip(reason)
    expected = attend([(0, 0, end)], 240)
    np.testing.assert_array_equal(attend([(1, 0, 31), (0, 0, 195), (0, 195, 5)], 240)[31:], expected)
    np.testing.assert_array_equal(attend([(0, 60, 140)], 150), expected[60:])
    np.testing.assert_array_equal(attend([(0, 100, 1)], 1), expected[100:101])


@st.composite
def ragged_rows(draw: st.DrawFn) -> tuple[list[int], int]:
    """Numbers of tokens of seven rows, and a number of places that holds them."""
    counts = draw(st.lists(st.sampled_from([0, 0, 1, 1, 2, 3, 4, 31, 32, 33, 96, 97, 127, 128, 129, 300]), max_size=7))
    return counts + [0] * (7 - len(counts)), draw(st.sampled_from([3, 20, 100, 2100]))


@settings(max_examples=60, deadline=None)
@given(drawn=ragged_rows().filter(lambda drawn: sum(drawn[0]) <= drawn[1]), group=st.sampled_from([1, 4]))
def test_every_token_is_in_one_tile(drawn: tuple[list[int], int], group: int) -> None:
    counts, places = drawn
    starts = np.arange(7, dtype=np.int32) * 50
    lengths = tile_lengths(places, group)
    offsets = np.cumsum([0, *counts], dtype=np.int32)
    tiles, numbers = _cut(offsets, starts, lengths, places=places, together=4)
    found = []
    for kind, length in enumerate(lengths):
        real = tiles.end[kind] > 0
        assert real.sum() == numbers[kind]
        assert real[: numbers[kind]].all()
        row_ends = (starts + counts)[tiles.row[kind, real]]
        assert (np.diff(row_ends) <= 0).all()
        for tile in np.flatnonzero(real):
            row, place, start = (array[kind, tile] for array in (tiles.row, tiles.place, tiles.start))
            number = tiles.end[kind, tile] - start
            assert 0 < number <= length
            found += [(row, place + token, start + token) for token in range(number)]
    assert sorted(found) == [
        (row, offsets[row] + token, starts[row] + token) for row in range(7) for token in range(counts[row])
    ]


def _cut(*arguments: Any, **options: Any) -> Any:
    compiled = jax.jit(cut, static_argnums=2, static_argnames=("places", "together"))
    return jax.tree.map(np.asarray, compiled(*arguments, **options))


def lowered(rows: int, places: int, *, pages_per_row: int = 16, pages: int = 4096) -> Any:
    """The program of a step on the CPU: eight heads and four KV heads of 64, pages of 16 in bits."""
    return jax.jit(functools.partial(paged_attention, scale=1.0, backend="xla")).lower(
        jax.ShapeDtypeStruct((places, 8, 64), jnp.bfloat16),
        jax.ShapeDtypeStruct((pages, 16, 8, 64), jnp.uint16),
        jax.ShapeDtypeStruct((rows, pages_per_row), jnp.int32),
        jax.ShapeDtypeStruct((rows + 1,), jnp.int32),
        jax.ShapeDtypeStruct((rows,), jnp.int32),
    )


@pytest.mark.parametrize(("rows", "places"), slow_but([(32, 32), (2, 256)], {(2, 256)}, several=True))
def test_memory_does_not_grow_with_the_page_table(rows: int, places: int) -> None:
    def temporary_bytes(pages_per_row: int) -> int:
        compiled = lowered(rows, places, pages_per_row=pages_per_row).compile()
        return int(compiled.memory_analysis().temp_size_in_bytes)

    table_bytes = 4 * rows * (2048 - 8)
    assert temporary_bytes(2048) - temporary_bytes(8) <= 2 * table_bytes


def test_memory_is_that_of_the_places() -> None:
    """Queries and results in float32 and a few blocks: no copy of either in tiles, and none of the pool."""
    pool = (2**15, 16, 8, 64)
    compiled = lowered(64, 8192, pages=pool[0]).compile()
    in_float32 = 4 * 8192 * 8 * 64
    assert compiled.memory_analysis().temp_size_in_bytes < 2 * in_float32 + (8 << 20)
    assert not pool_sized_moves(compiled.as_text(), pool)


def test_the_cpu_multiplies_a_bfloat16_cache_in_bfloat16() -> None:
    """The fast path: no product falls back to float32 copies of the keys and values."""
    hlo = lowered(8, 128).compile().as_text()
    for batch in (32, 4):  # 4 KV heads of 8 single tokens, or of one longer tile; 128 tokens; head size
        blocks = re.findall(rf"= (\w+)\[{batch},128,64\]", hlo)
        assert blocks
        assert set(blocks) <= {"bf16", "u16"}
