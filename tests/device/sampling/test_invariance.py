"""A row's token depends on its logits, options, seed and position: not on its slot, neighbours, row count or sharding."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec

from jaxengine.device.layers.sharding import Layout, share_layers
from jaxengine.device.sampling import SampleInputs, Slots, Variant, slots_spec
from tests.device.sampling.oracle import Options
from tests.device.sampling.rows import device_state, logits_rows, options, run, sampled
from tests.quick import slow_but

VOCAB = 8 * 131  # the part of a device starts anywhere in a word of the mask
ROWS = 5


def batches(vocab: int, rows: int, *, broken: bool = True) -> st.SearchStrategy[tuple[list[Options], np.ndarray]]:
    return st.tuples(
        st.lists(options(vocab), min_size=rows, max_size=rows),
        st.lists(logits_rows(vocab, broken=broken), min_size=rows, max_size=rows).map(np.stack),
    )


@settings(max_examples=20, deadline=None)
@given(batch=batches(VOCAB, ROWS), slots=st.permutations(range(8)))
def test_a_row_alone_equals_the_row_in_any_slot_of_any_batch(
    batch: tuple[list[Options], np.ndarray], slots: list[int]
) -> None:
    rows, logits = batch
    together = sampled(Variant.FULL, logits, rows)
    for i in range(ROWS):
        alone = sampled(Variant.FULL, logits[i : i + 1], rows[i : i + 1])
        assert alone.tokens[0] == together.tokens[i]
        assert alone.rank[0] == together.rank[i]
        np.testing.assert_array_equal(alone.top_ids[0], together.top_ids[i])
    spread = np.zeros((8, VOCAB), np.float32)
    places = [Options()] * 8
    for i in range(ROWS):
        spread[slots[i]], places[slots[i]] = logits[i], rows[i]
    moved = sampled(Variant.FULL, spread, places)
    np.testing.assert_array_equal([moved.tokens[slots[i]] for i in range(ROWS)], together.tokens)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(batch=batches(VOCAB, ROWS))
@pytest.mark.parametrize("devices", slow_but([2, 8], {8}))
def test_a_sharded_vocabulary_gives_the_same_result(devices: int, batch: tuple[list[Options], np.ndarray]) -> None:
    rows, logits = batch
    layout = share_layers(jax.devices()[:devices])
    for variant in (Variant.FULL, Variant.GREEDY):
        whole = sampled(variant, logits, rows)
        cut = sampled(variant, logits, rows, layout=layout)
        np.testing.assert_array_equal(cut.tokens, whole.tokens)
        if variant is Variant.FULL:
            np.testing.assert_array_equal(cut.rank, whole.rank)
            np.testing.assert_array_equal(cut.top_ids, whole.top_ids)
            np.testing.assert_allclose(cut.logprob, whole.logprob, rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(cut.top_logprobs, whole.top_logprobs, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_a_mask_whose_words_straddle_devices_is_cut_rightly() -> None:
    layout = share_layers(jax.devices()[:8])
    logits = np.zeros((ROWS, VOCAB), np.float32)
    for start in range(0, VOCAB - ROWS, ROWS):
        tokens = range(start, start + ROWS)
        rows = [Options(allowed=frozenset({token})) for token in tokens]
        np.testing.assert_array_equal(sampled(Variant.FULL, logits, rows, layout=layout).tokens, tokens)


def test_top_k_counts_over_all_devices() -> None:
    layout = share_layers(jax.devices()[:8])
    logits = np.tile(np.linspace(0, 1e-3, VOCAB, dtype=np.float32), (ROWS, 1))
    for first in range(0, 20, ROWS):
        rows = [Options(1.0, top_k=VOCAB // 2, seed=first + i) for i in range(ROWS)]
        assert min(sampled(Variant.FULL, logits, rows, layout=layout).tokens) >= VOCAB // 2


@pytest.mark.slow
def test_a_vocabulary_that_does_not_divide_is_whole_on_every_device() -> None:
    vocab = 1009
    logits = np.random.default_rng(0).normal(0, 2, (2, vocab)).astype(np.float32)
    rows = [Options(1.0, top_p=0.9, seed=4), Options(0.7, top_k=20, seed=5)]
    cut = sampled(Variant.FULL, logits, rows, layout=share_layers(jax.devices()[:8]))
    np.testing.assert_array_equal(cut.tokens, sampled(Variant.FULL, logits, rows).tokens)


@pytest.mark.slow
@pytest.mark.parametrize("variant", list(Variant))
def test_sharded_logits_are_never_gathered(variant: Variant) -> None:
    rows, vocab = 4, 8 * 1024
    layout = share_layers(jax.devices()[:8])
    logits = jax.ShapeDtypeStruct(
        (rows, vocab), jnp.float32, sharding=NamedSharding(layout.mesh, PartitionSpec(None, "tensor"))
    )
    kept, slots = structs(rows, vocab, layout=layout)
    compiled = run.lower(variant, logits, kept, slots, max_logprobs=20, layout=layout).compile()
    largest = collective_sizes(compiled.as_text())
    assert largest["all-reduce"] > 0, "nothing is exchanged, so this test would see no gather either"
    assert max(largest.values()) <= rows * 20 * 8


def structs(rows: int, vocab: int, *, layout: Layout, platform: str = "cpu") -> tuple[SampleInputs, Slots]:
    """The arguments of a sampling program beside the logits, on a mesh."""
    whole = NamedSharding(layout.mesh, PartitionSpec())
    integers = jax.ShapeDtypeStruct((rows,), jnp.int32, sharding=whole)
    count = jax.ShapeDtypeStruct((), jnp.int32, sharding=whole)
    kept = SampleInputs(slots=integers, positions=integers, targets=integers, writes=integers, count=count)
    return kept, slots_spec(rows + 1, vocab, platform=platform, layout=layout)


def collective_sizes(hlo: str) -> dict[str, int]:
    """The largest result, in elements, of each kind of collective in compiled HLO."""
    sizes: dict[str, int] = {}
    kinds = "all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter"
    for result, kind in re.findall(rf"= (.*?) ({kinds})(?:-start)?\(", hlo):
        for dims in re.findall(r"\w+\[([\d,]*)\]", result):
            sizes[kind] = max(sizes.get(kind, 0), int(np.prod([int(dim) for dim in dims.split(",") if dim])))
    return sizes


@pytest.mark.slow
def test_a_large_vocabulary_is_invariant_too() -> None:
    vocab, rows = 151_936, 12  # on CPU each a group
    logits = np.random.default_rng(5).normal(0, 3, (rows, vocab)).astype(np.float32)
    settings = [
        Options(1.0, top_k=50 * (i % 2), top_p=(1.0, 0.95, 0.3)[i % 3], min_p=0.01 * (i == 4), seed=i, position=7 * i)
        for i in range(rows)
    ]
    together = sampled(Variant.FULL, logits, settings).tokens
    for i in range(rows):
        kept, slots = device_state(settings[i : i + 1], vocab=vocab, logprobs=False)
        assert run(Variant.FULL, logits[i : i + 1], kept, slots, max_logprobs=1)[0].tokens[0] == together[i]
    cut = sampled(Variant.FULL, logits, settings, layout=share_layers(jax.devices()[:8])).tokens
    np.testing.assert_array_equal(cut, together)
