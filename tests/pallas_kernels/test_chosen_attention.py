"""The choice of tokens and attention to them: every backend against the definition, in cases of latent attention."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pallas_kernels import choose_tokens, chosen_attention, latent_attention, latent_page_shape, write_latents
from pallas_kernels.check import pool_moves
from pallas_kernels.choose_tokens import OP as CHOOSE
from pallas_kernels.chosen_attention import OP as ATTEND
from pallas_kernels.storage import to_float32
from pallas_kernels.testing import LATENT_CASES, LatentCase
from pallas_kernels.tpu.chip import simulated_tpu
from tests.quick import QUICK, rare_but, slow_but
from tests.targets.tpu import devices

(MIXED,) = (case for case in LATENT_CASES if case.name == "mixed")
(INT8,) = (case for case in LATENT_CASES if case.name == "int8")
PLAIN = [case for case in LATENT_CASES if case.scales is None]
COUNT = 48


def scores_by_hand(case: LatentCase, weights: np.ndarray[Any, Any]) -> list[tuple[int, np.ndarray[Any, Any]]]:
    """Of each place that holds a token, its position and the scores of all tokens up to it, in float64."""
    q, pages, table, offsets, starts = (np.asarray(array) for array in case.inputs())
    cached = np.asarray(to_float32(jnp.asarray(pages), kv_dtype=jnp.dtype(case.kv_dtype)), np.float64)[:, 0]
    found = []
    for row in range(len(case.rows)):
        for place in range(offsets[row], offsets[row + 1]):
            positions = np.arange(starts[row] + place - offsets[row] + 1)
            seen = cached[table[row, positions // case.page_tokens], positions % case.page_tokens]
            products = np.maximum(q[place].astype(np.float64) @ seen.T, 0)
            found.append((int(positions[-1]), weights[place].astype(np.float64) @ products))
    return found


def weights_of(case: LatentCase) -> np.ndarray[Any, Any]:
    q = case.inputs().q
    return np.random.default_rng(3).normal(size=q.shape[:2]).astype(np.float32)


@pytest.mark.parametrize("backend", ["reference", "xla", "tpu"])
@pytest.mark.parametrize("case", slow_but(PLAIN, [MIXED]), ids=str)
def test_the_highest_scores_are_chosen(case: LatentCase, backend: str) -> None:
    """All of them where there are no more; what is left out scores no higher than what is chosen, but for rounding."""
    weights = weights_of(case)
    run = functools.partial(choose_tokens, count=COUNT, kv_dtype=jnp.dtype(case.kv_dtype), backend=backend)
    inputs = case.inputs()
    found = np.asarray(jax.jit(run, compiler_options=QUICK)(inputs.q, jnp.asarray(weights), *inputs[1:]))
    assert found.dtype == np.int32
    for chosen, (last, scores) in zip(found, scores_by_hand(case, weights), strict=False):
        if last < COUNT:
            np.testing.assert_array_equal(chosen, np.arange(len(chosen)))
            continue
        assert (np.diff(chosen) > 0).all()
        assert chosen[-1] <= last
        left = np.delete(scores, chosen)
        assert left.max(initial=-np.inf) <= scores[chosen].min() + case.tolerance


@pytest.mark.parametrize("backend", ["reference", "xla", "tpu"])
@pytest.mark.parametrize("count", slow_but([1, 200, 1000], {200}))
def test_of_equal_scores_the_first_is_chosen(backend: str, count: int) -> None:
    """Whole numbers, of which many are equal, zeros of either sign among them; rows that are one page more than is chosen."""
    rng = np.random.default_rng(0)
    tokens, page_tokens = 3000, 8
    pages = rng.integers(-2, 3, (1 + tokens // page_tokens, 1, page_tokens, 4)).astype(np.float32)
    q = rng.integers(-2, 3, (9, 2, 4)).astype(np.float32)
    weights = rng.integers(-1, 2, (9, 2)).astype(np.float32)
    table = rng.permutation(len(pages) - 1).astype(np.int32)[None] + 1
    offsets, starts = np.array([0, 9], np.int32), np.array([tokens - 9], np.int32)
    found = choose_tokens(*map(jnp.asarray, (q, weights, pages, table, offsets, starts)), count=count, backend=backend)
    keys = pages[table[0]].reshape(tokens, 4)
    for place, chosen in enumerate(np.asarray(found)):
        scores = (weights[place] @ np.maximum(q[place] @ keys.T, 0))[: tokens - 8 + place]
        np.testing.assert_array_equal(chosen, np.sort(np.argsort(-scores, kind="stable")[:count]))


def chosen_by_hand(case: LatentCase, count: int) -> np.ndarray[Any, Any]:
    """Some positions for each place, ascending; all of them where there are no more than `count`."""
    rng = np.random.default_rng(4)
    q, _, _, offsets, starts = case.inputs()
    chosen = np.tile(np.arange(count, dtype=np.int32), (q.shape[0], 1))
    for row, start in enumerate(np.asarray(starts)):
        for place in range(int(offsets[row]), int(offsets[row + 1])):
            last = int(start) + place - int(offsets[row])
            if last >= count:
                chosen[place] = np.sort(rng.permutation(last + 1)[:count])
    return chosen


def attended_by_hand(case: LatentCase, chosen: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    q, pages, table, offsets, starts = (np.asarray(array) for array in case.inputs())
    cached = np.asarray(to_float32(jnp.asarray(pages), kv_dtype=jnp.dtype(case.kv_dtype)), np.float64)[:, 0]
    cached = cached if case.scales is None else cached * np.asarray(case.scales, np.float64)
    out = np.zeros((*q.shape[:2], case.value_size), np.float64)
    for row in range(len(case.rows)):
        for place in range(offsets[row], offsets[row + 1]):
            positions = chosen[place][chosen[place] <= starts[row] + place - offsets[row]]
            seen = cached[table[row, positions // case.page_tokens], positions % case.page_tokens]
            weights = np.exp(case.options["scale"] * q[place].astype(np.float64) @ seen.T)
            out[place] = weights / weights.sum(axis=1, keepdims=True) @ seen[:, : case.value_size]
    return out


@pytest.mark.parametrize("backend", ["reference", "xla", "tpu"])
@pytest.mark.parametrize("case", slow_but(LATENT_CASES, [INT8], often=[MIXED]), ids=str)
def test_a_backend_attends_to_what_is_chosen(case: LatentCase, backend: str) -> None:
    chosen = chosen_by_hand(case, COUNT)
    inputs = case.inputs("tpu" if backend == "tpu" else "cpu")
    with simulated_tpu(pltpu.InterpretParams()):
        if ATTEND.supports(backend, *inputs, jnp.asarray(chosen), **case.options) is not None:
            pytest.skip("pages of bits are for CPUs")
        run = functools.partial(chosen_attention, backend=backend, **case.options)
        found = jax.jit(run, compiler_options=QUICK)(*inputs, jnp.asarray(chosen))
    assert found.dtype == inputs.q.dtype
    np.testing.assert_allclose(
        np.asarray(found, np.float64), attended_by_hand(case, chosen), rtol=0, atol=case.tolerance
    )


def test_where_nothing_had_to_be_chosen_a_cpu_attends_as_densely_to_the_last_bit() -> None:
    inputs = MIXED.inputs()
    chosen = jnp.broadcast_to(jnp.arange(600, dtype=jnp.int32), (inputs.q.shape[0], 600))
    sparse = jax.jit(functools.partial(chosen_attention, backend="xla", **MIXED.options))(*inputs, chosen)
    dense = jax.jit(functools.partial(latent_attention, backend="xla", **MIXED.options))(*inputs)
    np.testing.assert_array_equal(np.asarray(sparse), np.asarray(dense))


@pytest.mark.slow
def test_a_token_s_choice_and_result_are_the_same_alone_and_in_company() -> None:
    inputs, weights = MIXED.inputs(), jnp.asarray(weights_of(MIXED))

    def run(q: Any, weights: Any, table: Any, offsets: Any, starts: Any) -> Any:
        chosen = choose_tokens(q, weights, inputs.pages, table, offsets, starts, count=COUNT, backend="xla")
        attended = chosen_attention(q, inputs.pages, table, offsets, starts, chosen, backend="xla", **MIXED.options)
        return chosen, attended

    together = jax.jit(run)(inputs.q, weights, *inputs[2:])
    for row, first, count in ((3, 151, 1), (5, 153 + 40, 1), (5, 153 + 17, 7)):
        begin = int(inputs.offsets[row])
        places = slice(first, first + count)
        start = inputs.starts[row] + first - begin
        offsets = jnp.array([0, count], jnp.int32)
        alone = jax.jit(run)(inputs.q[places], weights[places], inputs.page_table[row][None], offsets, start[None])
        for found, expected in zip(alone, together, strict=True):
            np.testing.assert_array_equal(np.asarray(found), np.asarray(expected)[places])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"count": 0}, "count is 0"),
        ({"weights": jnp.zeros((1, 3))}, "heads"),
        ({"q": jnp.zeros((1, 4, 40))}, "axis L of pages is 24"),
        ({"pages": jnp.zeros((4, 1, 8, 24), jnp.int8)}, "pages of int8 hold no keys of an indexer"),
    ],
)
def test_what_does_not_fit_is_named(changes: dict[str, Any], message: str) -> None:
    inputs = {**LATENT_CASES[0].inputs()._asdict(), "weights": jnp.zeros((1, 4)), "count": 4, "backend": "xla"}
    with pytest.raises(ValueError, match=message):
        choose_tokens(**{**inputs, **changes})


@pytest.mark.tpu_compile
@pytest.mark.slow
@pytest.mark.parametrize("generation", rare_but(["v6e", "v5e", "v5p", "tpu7x"], {"v6e"}))
@pytest.mark.parametrize("kv_dtype", rare_but([jnp.bfloat16, jnp.int8], {jnp.bfloat16}))
@pytest.mark.parametrize(("rows", "places"), [pytest.param(64, 64, marks=pytest.mark.rare), (8, 1024)])
def test_a_tpu_leaves_both_pools_where_they_are(generation: str, rows: int, places: int, kv_dtype: Any) -> None:
    """DeepSeek V3.2's sizes on one of sixteen chips, with rows of 131,072 tokens: the dense kernel beside the gathering."""
    mesh = Mesh(np.asarray(devices(generation, count=1)), ("tensor",))
    latents, keys = ((32_768, *latent_page_shape(64, size, platform="tpu")) for size in (576, 128))
    target: dict[str, Any] = {"platform": "tpu"}
    of_cache = {"scales": jnp.ones(576) if kv_dtype == jnp.int8 else None, **target}

    def layer(pages: Any, key_pages: Any, q: Any, index: Any, weights: Any, new: Any, key: Any, *rows: Any) -> Any:
        slots, table, offsets, starts = rows
        pages, key_pages = write_latents(pages, new, slots, **of_cache), write_latents(key_pages, key, slots, **target)
        chosen = choose_tokens(index, weights, key_pages, table, offsets, starts, count=2048, **target)
        attended = chosen_attention(q, pages, table, offsets, starts, chosen, scale=0.1, value_size=512, **of_cache)
        return pages, key_pages, attended

    arguments = [
        jax.ShapeDtypeStruct(shape, of, sharding=NamedSharding(mesh, PartitionSpec()))
        for shape, of in (
            (latents, kv_dtype),
            (keys, jnp.bfloat16),
            ((places, 8, 576), jnp.bfloat16),
            ((places, 64, 128), jnp.bfloat16),
            ((places, 64), jnp.float32),
            ((places, 576), jnp.bfloat16),
            ((places, 128), jnp.bfloat16),
            ((places,), jnp.int32),
            ((rows, 2048), jnp.int32),
            ((rows + 1,), jnp.int32),
            ((rows,), jnp.int32),
        )
    ]
    with jax.set_mesh(mesh):
        traced = jax.jit(layer, donate_argnums=(0, 1)).trace(*arguments)
        compiled = traced.lower(lowering_platforms=("tpu",)).compile()
    assert pool_moves(compiled, latents, itemsize=jnp.dtype(kv_dtype).itemsize) == []
    assert pool_moves(compiled, keys, itemsize=2) == []
    assert "latent_attention" in compiled.as_text()
    assert (CHOOSE.preferred["tpu"], ATTEND.preferred["tpu"]) == (("tpu",), ("tpu",))
