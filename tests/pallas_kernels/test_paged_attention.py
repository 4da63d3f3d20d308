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
from pallas_kernels.gpu_device import AMPERE, interpreted_gpu
from pallas_kernels.paged_attention import OP, gpu, tpu
from pallas_kernels.storage import to_float32
from pallas_kernels.testing import ATTENTION_CASES, AttentionCase, AttentionInputs
from tests.pallas_kernels.simulation import checked_tpu

BACKENDS = tuple(OP.backends)
ON_THE_SIMULATED_TPU = {
    "prefill-ragged",
    "padding-rows",
    "one-prompt-many-rows",
    "stale-infinity",
    "long",
    "long-prefill",
    "window-prefill-blocks",
    "alibi-blocks",
    "all-options",
    "head-size-64",
    "head-size-256",
    "odd-kv-heads",
    "bfloat16-bfloat16",
    "bfloat16-float8_e4m3fn",
    "int8-three-kv-heads",
}
"""The TPU cases that every run computes, a second or two each; the others are marked slow."""

ON_THE_INTERPRETED_GPU = {
    "prefill-ragged",
    "padding-rows",
    "stale-infinity",
    "long",
    "long-prefill",
    "alibi-blocks",
    "all-options",
    "int8-prefill-blocks",
    "ratio-7",
    "head-size-80",
    "page-of-24",
    "bfloat16-bfloat16",
}
"""Likewise for the GPU, whose interpreter has to be compiled for every case."""


def products() -> Iterator[Any]:
    for case, backend in itertools.product(ATTENTION_CASES, BACKENDS):
        slow = case.name not in {"tpu": ON_THE_SIMULATED_TPU, "gpu": ON_THE_INTERPRETED_GPU}.get(backend, {case.name})
        yield pytest.param(case, backend, id=f"{case}-{backend}", marks=pytest.mark.slow if slow else ())


def by_hand(case: AttentionCase) -> np.ndarray[Any, Any]:
    """Token by token, head by head, in float64: no masks, only the positions that a token sees."""
    q, kv_pages, table, starts, lengths = (np.asarray(array) for array in case.inputs())
    cached = np.asarray(to_float32(jnp.asarray(kv_pages), kv_dtype=jnp.dtype(case.kv_dtype)), np.float64)
    if case.options["kv_scales"] is not None:
        cached = cached * np.asarray(case.options["kv_scales"], np.float64).T.reshape(-1, 1)
    sinks = None if case.options["sinks"] is None else np.asarray(case.options["sinks"], np.float64)
    out = np.zeros(q.shape, np.float64)
    group = case.heads // case.kv_heads
    for row in range(len(case.rows)):
        for place in range(lengths[row]):
            last = starts[row] + place
            first = 0 if case.window is None else max(0, last - case.window + 1)
            positions = np.arange(first, last + 1)
            seen = cached[table[row, positions // case.page_tokens], positions % case.page_tokens]
            for head in range(case.heads):
                keys, values = seen[:, 2 * (head // group)], seen[:, 2 * (head // group) + 1]
                scores = case.options["scale"] * keys @ q[row, place, head].astype(np.float64)
                if case.soft_cap is not None:
                    scores = case.soft_cap * np.tanh(scores / case.soft_cap)
                if case.alibi:
                    scores = scores + float(case.options["alibi_slopes"][head]) * (positions - last)
                weights = np.exp(scores)
                total = weights.sum() + (0.0 if sinks is None else np.exp(sinks[head]))
                out[row, place, head] = weights @ values / total
    return out


def check(case: AttentionCase, backend: str, *, platform: str = "cpu") -> None:
    inputs = case.inputs("tpu" if backend == "tpu" else platform)
    with {"tpu": checked_tpu, "gpu": interpreted_gpu}.get(backend, nullcontext)():
        compare(case, backend, inputs)


def compare(case: AttentionCase, backend: str, inputs: AttentionInputs) -> None:
    reason = OP.supports(backend, *inputs, **case.options)
    if reason is not None:
        pytest.skip(f"{backend}: {reason}")
    result = jax.jit(lambda *arrays: paged_attention(*arrays, backend=backend, **case.options))(*inputs)
    assert result.shape == inputs.q.shape
    assert result.dtype == inputs.q.dtype
    np.testing.assert_allclose(np.asarray(result, np.float64), by_hand(case), rtol=0, atol=case.tolerance)


@pytest.mark.parametrize(("case", "backend"), list(products()))
def test_a_backend_agrees_with_the_definition(case: AttentionCase, backend: str) -> None:
    check(case, backend)


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


@pytest.mark.parametrize("name", ["long", "padding-rows"])
def test_two_cores_share_the_rows(name: str) -> None:
    (case,) = (case for case in ATTENTION_CASES if case.name == name)
    with checked_tpu(cores=2):
        compare(case, "tpu", case.inputs("tpu"))


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
    places = draw(st.sampled_from([1, 2, 7, 16]))
    rows = draw(st.lists(st.tuples(st.integers(0, 300), st.integers(0, places)), min_size=1, max_size=5))
    kv_heads = draw(st.sampled_from([1, 2, 3]))
    kv_dtype = draw(st.sampled_from(["float32", "bfloat16", "int8", "float8_e4m3fn", "float8_e5m2"]))
    return AttentionCase(
        name="random",
        reason="what nobody thought of",
        rows=tuple(rows),
        places=places,
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


@settings(max_examples=12, deadline=None)
@given(case=cases())
def test_random_cases(case: AttentionCase) -> None:
    check(case, "xla")


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["tpu", "gpu"])
@settings(max_examples=8, deadline=None)
@given(case=cases().filter(lambda case: not case.bits))
def test_random_cases_on_a_simulated_device(backend: str, case: AttentionCase) -> None:
    check(case, backend)


CASE = ATTENTION_CASES[1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": (5, 1, 6, 16), "kv_pages": (4, 8, 8, 16)}, "q has 6 query heads, which 4 KV heads do not divide"),
        ({"q": (5, 1, 4, 32)}, r"axis H \(head size\) differs: 32 in q, 16 in kv_pages"),
        ({"page_table": (4, 3)}, r"axis B \(rows\) differs: 5 in q, 4 in page_table"),
        ({"q": (5, 4, 16)}, r"q must have axes \[B, S, N, H\], got shape \[5, 4, 16\]"),
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
        ({"sinks": jnp.zeros(3)}, r"axis N \(query heads\) differs: 4 in q, 3 in sinks"),
        ({"alibi_slopes": jnp.zeros(2)}, r"axis N \(query heads\) differs: 4 in q, 2 in alibi_slopes"),
        ({"alibi_slopes": jnp.zeros((4, 1))}, r"alibi_slopes must have axes \[N\]"),
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


def test_positions_are_int32() -> None:
    inputs = CASE.inputs()
    with pytest.raises(ValueError, match="starts must be int32, got int16"):
        paged_attention(*inputs._replace(starts=inputs.starts.astype(jnp.int16)), scale=1.0)


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


@pytest.mark.parametrize("window", [None, 40])
@pytest.mark.parametrize(
    ("head_size", "heads", "kv_dtype"),
    [
        (64, 4, "bfloat16"),
        (64, 2, "float32"),
        (20, 6, "float32"),
        (8, 2, "float32"),
        (80, 4, "bfloat16"),
        (64, 4, "int8"),
    ],
)
def test_a_token_has_the_same_bits_in_every_step(head_size: int, heads: int, kv_dtype: str, window: int | None) -> None:
    """Cut into other rows, decoded, alone or among others: nothing but the sequence decides a token's result."""
    tokens = 290
    whole = AttentionCase(
        name="whole",
        reason="one row",
        rows=((0, tokens), (0, 31)),
        places=tokens,
        heads=heads,
        head_size=head_size,
        window=window,
        alibi=kv_dtype == "int8",
        kv_dtype=kv_dtype,
        dtype="float32",
        bits=kv_dtype == "bfloat16",
    )
    q, kv_pages, table, _, _ = whole.inputs()
    queries = q[0]
    step = jax.jit(functools.partial(paged_attention, backend="xla", **whole.options))

    def attend(rows: list[tuple[int, int]], places: int) -> np.ndarray[Any, Any]:
        """Each row's tokens of sequence 0, followed by the unrelated sequence 1."""
        blocks = [
            jnp.pad(queries[start : start + length], ((0, places - length), (0, 0), (0, 0))) for start, length in rows
        ]
        result = step(
            jnp.stack([*blocks, q[1, :places]]),
            kv_pages,
            jnp.concatenate([jnp.repeat(table[:1], len(rows), axis=0), table[1:]]),
            jnp.asarray([start for start, _ in rows] + [0], jnp.int32),
            jnp.asarray([length for _, length in rows] + [min(places, 31)], jnp.int32),
        )
        return np.concatenate([np.asarray(result[row, :length]) for row, (_, length) in enumerate(rows)])

    expected = attend([(0, tokens)], tokens)
    assert np.isfinite(expected).all()
    for size, places in ((128, 128), (64, 64), (50, 64), (7, 8)):
        rows = [(start, min(size, tokens - start)) for start in range(0, tokens, size)]
        np.testing.assert_array_equal(attend(rows, places), expected, err_msg=f"rows of {size} in {places} places")
    decoded = [1, 127, 128, 129, 200, 255, 256, 289]
    np.testing.assert_array_equal(attend([(position, 1) for position in decoded], 1), expected[decoded])
    for position in decoded:
        alone = step(
            queries[None, position : position + 1],
            kv_pages,
            table[:1],
            jnp.asarray([position], jnp.int32),
            jnp.ones(1, jnp.int32),
        )
        np.testing.assert_array_equal(np.asarray(alone[0, 0]), expected[position])


@pytest.mark.parametrize(("rows", "places"), [(32, 1), (2, 128)])
def test_memory_does_not_grow_with_the_page_table(rows: int, places: int) -> None:
    def temporary_bytes(pages_per_row: int) -> int:
        compiled = jax.jit(functools.partial(paged_attention, scale=1.0, backend="xla")).lower(
            jax.ShapeDtypeStruct((rows, places, 8, 64), jnp.bfloat16),
            jax.ShapeDtypeStruct((4096, 16, 8, 64), jnp.uint16),
            jax.ShapeDtypeStruct((rows, pages_per_row), jnp.int32),
            jax.ShapeDtypeStruct((rows,), jnp.int32),
            jax.ShapeDtypeStruct((rows,), jnp.int32),
        )
        return int(compiled.compile().memory_analysis().temp_size_in_bytes)

    table_bytes = 4 * rows * (2048 - 8)
    assert temporary_bytes(2048) - temporary_bytes(8) <= 2 * table_bytes


def test_the_cpu_multiplies_a_bfloat16_cache_in_bfloat16() -> None:
    """The fast path: no product falls back to float32 copies of the keys and values."""
    compiled = jax.jit(functools.partial(paged_attention, scale=1.0, backend="xla")).lower(
        jax.ShapeDtypeStruct((8, 1, 8, 64), jnp.bfloat16),
        jax.ShapeDtypeStruct((64, 16, 8, 64), jnp.uint16),
        jax.ShapeDtypeStruct((8, 16), jnp.int32),
        jax.ShapeDtypeStruct((8,), jnp.int32),
        jax.ShapeDtypeStruct((8,), jnp.int32),
    )
    hlo = compiled.compile().as_text()
    blocks = re.findall(r"= (\w+)\[32,128,64\]", hlo)  # 8 rows x 4 KV heads, 128 tokens, head size
    assert blocks
    assert set(blocks) <= {"bf16", "u16"}
