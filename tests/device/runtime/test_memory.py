"""The page count follows from numbers, and a refusal says which numbers and what fits instead."""

from __future__ import annotations

import dataclasses
import math

import jax
import jax.numpy as jnp
import pytest

from jaxengine.device.layers.keeps import Paged
from jaxengine.device.layers.sharding import share_layers
from jaxengine.device.runtime.cache_layout import lay_out
from jaxengine.device.runtime.memory import (
    MemoryBudget,
    SequencePages,
    page_bytes,
    parameter_bytes,
    plan_pages,
    pool_bytes,
    workspace_bytes,
)
from jaxengine.errors import CapacityError
from xla_cache.record import Memory

MIB = 2**20


def budget(limit_mib: int, *, weights_mib: int = 95, workspace_mib: int = 20) -> MemoryBudget:
    return MemoryBudget(
        device_bytes=1000 * MIB,
        limit_bytes=limit_mib * MIB,
        weight_bytes=weights_mib * MIB,
        slot_bytes=5 * MIB,
        workspace_bytes=workspace_mib * MIB,
        page_bytes=(MIB,),
        page_size=16,
    )


def plan(given: MemoryBudget, **changes: object) -> int:
    options = {"max_num_seqs": 4, "requested": None, "max_kv_bytes": None, **changes}
    layout = lay_out([(Paged(4, 8, 8),)] * 2, max_model_len=160)
    length = options.pop("max_model_len", 160)
    return plan_pages(given, SequencePages(layout=layout, page_size=16, ahead=64, max_model_len=length), **options)


def test_no_more_pages_than_all_sequences_can_ever_use():
    assert plan(budget(900)) == 4 * 10 + 1


def test_what_fits_when_not_everything_does():
    assert plan(budget(145)) == 25


def test_shared_memory_bounds_the_pool_but_one_sequence_always_fits():
    assert plan(budget(900), max_kv_bytes=20 * MIB) == 20
    assert plan(budget(900), max_kv_bytes=MIB) == 11


def test_asked_for_exactly():
    assert plan(budget(900), requested=30) == 30


@pytest.mark.parametrize("changes", [{}, {"requested": 500}])
def test_refusal_gives_numbers_and_a_context_that_fits(changes):
    with pytest.raises(CapacityError, match=r"weights 0\.09 GiB.*--max-model-len 64"):
        plan(budget(125), **changes)


def test_suggested_context_really_fits():
    assert plan(budget(125), max_model_len=64) == 5


def test_refusal_when_not_even_the_weights_fit():
    with pytest.raises(CapacityError, match=r"more devices \(--tensor-parallel-size\)"):
        plan(budget(90))


def test_a_requested_pool_too_small_for_one_sequence_is_refused_with_what_would_do():
    with pytest.raises(
        CapacityError, match=r"has 4 pages of 16 tokens .* needs 10. Use .*--num-pages 11.*--max-model-len 64"
    ):
        plan(budget(900), requested=5)
    assert plan(budget(900), requested=11) == 11
    with pytest.raises(CapacityError, match=rf"--kv-cache-memory-bytes {11 * MIB} \(--num-pages 11\) or more$"):
        plan(budget(900), requested=0)


def test_no_longer_context_is_suggested_than_was_asked_for():
    with pytest.raises(CapacityError, match="--max-model-len 160"):
        plan(budget(900), requested=5000)


TWO_POOLS = lay_out([*[(Paged(4, 8, 8, window=20),)] * 3, (Paged(4, 16, 16),)], max_model_len=640)
SEQUENCES = SequencePages(layout=TWO_POOLS, page_size=16, ahead=32, max_model_len=640)
NEEDS = (40, 5)
"""Pages of a sequence of 640 tokens: all of it, and 20 - 1 + 32 + 15 of it that a window and a step may span."""
COSTS = (2 * MIB, 3 * MIB)


def test_pages_are_divided_as_the_longest_sequences_need_them():
    assert SEQUENCES.of(640) == NEEDS
    assert SEQUENCES.divide(2 + 45) == (41, 6)
    assert SEQUENCES.divide(SEQUENCES.for_sequences(7)) == (1 + 7 * 40, 1 + 7 * 5)
    assert SEQUENCES.tokens_held(SEQUENCES.divide(SEQUENCES.for_sequences(7))) == 7 * 640


@pytest.mark.parametrize("num_pages", range(2, 200, 7))
def test_all_pages_are_divided_and_every_pool_has_its_sink(num_pages):
    pools = SEQUENCES.divide(num_pages)
    assert sum(pools) == num_pages
    assert min(pools) >= 1


@pytest.mark.parametrize("amount", [-5, 0, 4 * MIB, 5 * MIB, 99 * MIB, 100 * MIB, 977 * MIB, 5000 * MIB + 1])
def test_the_most_pages_of_two_pools_fit_and_one_more_does_not(amount):
    most = SEQUENCES.most(amount, COSTS)
    assert most == 0 or pool_bytes(SEQUENCES.divide(most), COSTS) <= amount
    assert all(pool_bytes(SEQUENCES.divide(count), COSTS) > amount for count in (most + 1, most + 2, most + 3))


def test_the_longest_sequence_of_two_pools():
    least = pool_bytes((1 + 40, 1 + 5), COSTS)
    assert SEQUENCES.longest(least, COSTS, most=2000) == 640
    assert SEQUENCES.longest(least, COSTS, most=100) == 100
    assert SEQUENCES.longest(least - 1, COSTS, most=2000) == 39 * 16
    assert SEQUENCES.longest(5 * MIB, COSTS, most=2000) == 0


def test_a_refusal_of_two_pools_says_what_would_do():
    given = dataclasses.replace(budget(900), page_bytes=COSTS)
    options = {"max_num_seqs": 4, "max_kv_bytes": None}
    assert plan_pages(given, SEQUENCES, requested=47, **options) == 47
    assert plan_pages(given, SEQUENCES, requested=None, **options) == 2 + 4 * 45
    with pytest.raises(
        CapacityError,
        match=rf"has 44 pages .*\({2 * MIB} or {3 * MIB} bytes each\).* needs 45. "
        rf"Use --kv-cache-memory-bytes {100 * MIB} \(--num-pages 47\) or more, or --max-model-len 624$",
    ):
        plan_pages(given, SEQUENCES, requested=46, **options)
    small = dataclasses.replace(given, limit_bytes=(120 + 99) * MIB)
    with pytest.raises(CapacityError, match=r"does not fit.*--max-model-len 624"):
        plan_pages(small, SEQUENCES, requested=None, **options)
    none = dataclasses.replace(given, limit_bytes=120 * MIB)
    share = (120 * MIB + pool_bytes(SEQUENCES.divide(47), COSTS)) / given.device_bytes + 0.01
    with pytest.raises(
        CapacityError,
        match=rf"Use fewer sequences at once \(--max-num-seqs \d\), or more devices.* With "
        rf"--memory-utilization {share:.2f} or more it may fit",
    ):
        plan_pages(none, SEQUENCES, requested=None, **options)


def test_bytes():
    layers, pages, page = 2, 5, (16, 2 * 4, 8)
    pool = (layers * pages, *page)
    assert page_bytes(jax.ShapeDtypeStruct(pool, jnp.bfloat16), pages) == layers * math.prod(page) * 2
    split = share_layers(jax.devices()[:1]).kv_sharding()
    shared = jax.ShapeDtypeStruct(pool, jnp.bfloat16, sharding=split)
    assert page_bytes(shared, pages) == layers * math.prod(page) * 2
    structs = {"a": jax.ShapeDtypeStruct((3, 5), jnp.bfloat16), "b": jax.ShapeDtypeStruct((7,), jnp.float32)}
    assert parameter_bytes(structs) == 30 + 28


def test_workspace_is_read_from_the_compiler():
    def function(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        return x + 1, jnp.sort(y @ y, axis=0)

    structs = (jax.ShapeDtypeStruct((1024,), jnp.float32), jax.ShapeDtypeStruct((64, 64), jnp.float32))
    compiled = jax.jit(function, donate_argnums=0).lower(*structs).compile()
    assert 64 * 64 * 4 <= workspace_bytes([Memory.of(compiled)], num_programs=1) < 10 * 64 * 64 * 4 + 1_000_000
