"""What `attend` adds to the kernels: layers in one pool, all rows written before any attends, pages written in place."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxengine.device.layers.attention import attend
from jaxengine.device.layers.context import ModelContext
from jaxengine.device.layers.keeps import CacheIndex, Paged
from jaxengine.device.layers.step import Step
from pallas_kernels import kv_storage_dtype
from tests.quick import at_once

LAYERS, PAGES, PAGE_SIZE, HEADS, KV_HEADS, HEAD_DIM = 3, 8, 4, 4, 2, 8


def inputs(table, starts, counts, *, slots):
    """Rows of `counts` tokens, one after the other; `slots` of all of them and of padding behind."""
    return Step(
        positions=np.zeros(len(slots), np.int32),
        page_table=np.asarray([table], np.int32),
        offsets=np.cumsum([0, *counts], dtype=np.int32),
        starts=np.asarray(starts, np.int32),
        slot_mapping=np.asarray([slots], np.int32),
        indices=tuple(CacheIndex(lane=layer) for layer in range(LAYERS)),
        num_pages=(PAGES,),
        page_size=PAGE_SIZE,
        attention_backend="auto",
    )


def tokens(count, *, seed=0):
    generator = np.random.default_rng(seed)
    shapes = ((count, HEADS, HEAD_DIM), (count, KV_HEADS, HEAD_DIM), (count, KV_HEADS, HEAD_DIM))
    return [generator.normal(size=shape).astype(np.float32) for shape in shapes]


def empty_pages(dtype=jnp.float32):
    return jnp.zeros((LAYERS * PAGES, PAGE_SIZE, 2 * KV_HEADS, HEAD_DIM), kv_storage_dtype(dtype, platform="cpu"))


def run(q, k, v, pages, given, **options):
    """As one program, as models run it."""
    return at_once(traced, q, k, v, pages, given, **options)


def traced(q, k, v, pages, given, *, layer, window=None, dtype=jnp.float32, own=None):
    context = ModelContext(dtype=jnp.dtype(dtype), platform="cpu")
    paged = Paged(KV_HEADS, HEAD_DIM, HEAD_DIM, dtype=own)
    step = given.for_layer(layer)
    return attend(q, k, v, pages, step, paged=paged, scale=0.5, window=window, until=step.until, context=context)


def dense(q, k, v, window=None):
    """Causal attention of one sequence, written out."""
    out = np.zeros(q.shape)
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    for t in range(len(q)):
        first = 0 if window is None else max(0, t - window + 1)
        for head in range(HEADS):
            group = head // (HEADS // KV_HEADS)
            scores = np.exp(0.5 * k[first : t + 1, group] @ q[t, head])
            out[t, head] = scores / scores.sum() @ v[first : t + 1, group]
    return out


@pytest.mark.parametrize("window", [None, 3])
def test_rows_of_a_prompt_and_a_decoding_row_in_one_step(window):
    """A 7-token prompt as rows of 4 and 3, and the last token of another sequence whose 5 tokens are in the pages."""
    q, k, v = tokens(7)
    q2, k2, v2 = tokens(6, seed=1)
    other = [5 * PAGE_SIZE + p for p in range(4)] + [2 * PAGE_SIZE + p for p in range(2)]
    _, pages = run(q2[:5], k2[:5], v2[:5], empty_pages(), inputs([[5, 2]], [0], [5], slots=other[:5]), layer=1)
    mine = [3 * PAGE_SIZE + p for p in range(4)] + [6 * PAGE_SIZE + p for p in range(3)]
    step = inputs([[3, 6], [3, 6], [5, 2], [0, 0]], [0, 4, 5, 0], [4, 3, 1, 0], slots=[*mine, other[5], *([0] * 4)])

    def flat(one, two):
        return np.concatenate([one, two[5:], np.ones((4, *one.shape[1:]), np.float32)])

    found, _ = run(flat(q, q2), flat(k, k2), flat(v, v2), pages, step, layer=1, window=window)
    np.testing.assert_allclose(found[:7], dense(q, k, v, window), atol=1e-5)
    np.testing.assert_allclose(found[7], dense(q2, k2, v2, window)[5], atol=1e-5)


def test_tokens_see_others_where_a_step_says_so():
    """The second and third of four tokens see each other, the others those before them."""
    q, k, v = tokens(4)
    step = inputs([[1]], [0], [4], slots=[PAGE_SIZE + p for p in range(4)])
    found, _ = run(q, k, v, empty_pages(), replace(step, until=np.asarray([0, 2, 2, 3], np.int32)), layer=1)
    expected = dense(q, k, v)
    expected[1] = dense(*(x[[0, 2, 1, 3]] for x in (q, k, v)))[2]
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_layers_do_not_see_each_other():
    q, k, v = tokens(3)
    step = inputs([[1]], [0], [3], slots=[PAGE_SIZE, PAGE_SIZE + 1, PAGE_SIZE + 2])
    _, pages = run(q, k, v, empty_pages(), step, layer=2)
    touched = np.flatnonzero(np.asarray(pages).any(axis=(1, 2, 3)))
    assert touched.tolist() == [2 * PAGES + 1]


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("count", [1, 2])
def test_pages_are_written_in_place(dtype, count):
    """Also for a single token, of which XLA:CPU would make an update that copies the whole pool."""
    q, k, v = tokens(count)
    step = inputs([[1]] * count, [0] * count, [1] * count, slots=list(range(PAGE_SIZE, PAGE_SIZE + count)))
    pool = jax.ShapeDtypeStruct((1 << 16, PAGE_SIZE, 2 * KV_HEADS, HEAD_DIM), empty_pages(dtype).dtype)
    size = pool.size * pool.dtype.itemsize

    def two_layers(q, k, v, pages, step):
        for layer in (0, 1):
            q, pages = traced(q, k, v, pages, step, layer=layer, dtype=dtype)
            k, v = (
                q[:, :KV_HEADS],
                q[:, KV_HEADS:],
            )  # as in a model, no layer can be written before the last one was read
        return q, pages

    memory = jax.jit(two_layers, donate_argnums=3).lower(q, k, v, pool, step).compile().memory_analysis()
    assert memory.alias_size_in_bytes >= size
    assert memory.temp_size_in_bytes < size // 2


def test_a_single_token_leaves_only_its_slot_and_a_sink_changed():
    q, k, v = tokens(1)
    step = inputs([[4]], [2], [1], slots=[4 * PAGE_SIZE + 2])
    _, pages = run(q, k, v, empty_pages() + 7, step, layer=1)
    changed = np.argwhere((np.asarray(pages) != 7).any(axis=(2, 3))).tolist()
    assert [page for page in changed if page[0] != 0] == [[PAGES + 4, 2]]
