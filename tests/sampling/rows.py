"""From the oracle's options to the device's arrays, and hypothesis strategies for both."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

from jaxengine.sampling import SampleOutputs, SamplingInputs, Variant, neutral, sample, seed_words
from tests.sampling.oracle import Options, Row

run = jax.jit(sample, static_argnums=0, static_argnames=("max_logprobs", "mesh"))


def device_inputs(
    variant: Variant, rows: Sequence[Options], *, vocab: int, history: int = 12, max_bias: int = 6, padded: int = 0
) -> SamplingInputs:
    """What the runtime would fill in for `rows`, with rows up to `padded` that are not sampled."""
    inputs = neutral(variant, max(len(rows), padded), vocab, history, max_bias=max_bias)
    if variant is Variant.GREEDY:
        return inputs
    inputs.num_rows[...] = len(rows)
    for i, row in enumerate(rows):
        inputs.temperature[i], inputs.top_k[i], inputs.top_p[i] = row.temperature, row.top_k, row.top_p
        inputs.min_p[i], inputs.seeds[i], inputs.positions[i] = row.min_p, seed_words(row.seed), row.position
        if variant is not Variant.FULL:
            continue
        inputs.presence[i], inputs.frequency[i] = row.presence, row.frequency
        inputs.repetition[i], inputs.num_prompt[i] = row.repetition, len(row.prompt)
        inputs.history[i, : len(row.prompt + row.output)] = row.prompt + row.output
        inputs.bias_ids[i, : len(row.bias)] = list(row.bias)
        inputs.bias_values[i, : len(row.bias)] = list(row.bias.values())
        if row.allowed is not None:
            inputs.allowed[i] = bitmask(row.allowed, vocab=vocab)
        if row.target is not None:
            inputs.targets[i] = row.target
    return inputs


def bitmask(tokens: frozenset[int], *, vocab: int) -> np.ndarray:
    """The words whose bit `t % 32` of word `t // 32` is set for each of `tokens`."""
    words = np.zeros(-(-vocab // 32), np.uint32)
    for token in tokens:
        words[token // 32] |= np.uint32(1 << (token % 32))
    return words


def sampled(
    variant: Variant, logits: np.ndarray, rows: Sequence[Options], *, mesh: jax.sharding.Mesh | None = None
) -> SampleOutputs:
    """Run the device sampler on `logits [R, V]`; rows beyond `rows` are padding."""
    inputs = device_inputs(variant, rows, vocab=logits.shape[1], padded=logits.shape[0])
    return run(variant, jnp.asarray(logits), inputs, max_logprobs=5, mesh=mesh)


@functools.cache
def _normal(seed: int, vocab: int, scale: float) -> Row:
    return np.random.default_rng(seed).normal(0, scale, vocab).astype(np.float32)


def logits_rows(vocab: int, *, broken: bool = True) -> st.SearchStrategy[Row]:
    """Rows of logits: smooth, peaked, flat, full of ties as bfloat16 makes them, and with infinities and NaN if `broken`."""
    seeds = st.integers(0, 40)
    smooth = st.builds(_normal, seeds, st.just(vocab), st.sampled_from([0.1, 1.0, 4.0, 20.0]))
    ties = smooth.map(lambda row: np.asarray(jnp.asarray(row, jnp.bfloat16), np.float32))
    coarse = smooth.map(lambda row: np.round(row).astype(np.float32))
    flat = st.sampled_from([0.0, -7.5, 3.0]).map(lambda value: np.full(vocab, value, np.float32))
    kinds = [smooth, ties, coarse, flat]
    if broken:
        holes = st.lists(
            st.tuples(st.integers(0, vocab - 1), st.sampled_from([-np.inf, np.nan, 1e30])), min_size=1, max_size=vocab
        )
        kinds.append(st.builds(_with_holes, smooth, holes))
        kinds.append(st.sampled_from([np.nan, -np.inf]).map(lambda value: np.full(vocab, value, np.float32)))
    return st.one_of(kinds)


def _with_holes(row: Row, holes: list[tuple[int, float]]) -> Row:
    row = row.copy()
    for token, value in holes:
        row[token] = value
    return row


def options(vocab: int) -> st.SearchStrategy[Options]:
    """Any combination of options, each neutral often enough to be seen alone."""
    tokens = st.integers(0, vocab - 1)
    some_tokens = st.lists(tokens, max_size=6).map(tuple)
    real = functools.partial(st.floats, width=32)
    return st.builds(
        Options,
        temperature=st.sampled_from([0.0, 1e-6, 0.5, 1.0, 1.0, 2.0]) | real(min_value=0.0625, max_value=2),
        top_k=st.sampled_from([0, 0, 1, 2, 3, vocab - 1, vocab, vocab + 5]) | st.integers(0, vocab),
        top_p=st.sampled_from([1.0, 1.0, 0.5, 0.9, 1e-7]) | real(min_value=0.0078125, max_value=1),
        min_p=st.sampled_from([0.0, 0.0, 0.05, 1.0]) | real(min_value=0, max_value=1),
        seed=st.integers(-(2**63), 2**63 - 1),
        position=st.integers(0, 2**20),
        presence=st.sampled_from([0.0, 0.0, -2.0, 1.5]),
        frequency=st.sampled_from([0.0, 0.0, -0.5, 2.0]),
        repetition=st.sampled_from([1.0, 1.0, 0.5, 1.3]),
        prompt=some_tokens,
        output=some_tokens,
        bias=st.just({}) | st.dictionaries(tokens, st.sampled_from([-100.0, -1.0, 2.5, 100.0]), max_size=6),
        allowed=st.none() | st.frozensets(tokens, max_size=8),
        target=st.none() | tokens,
    )
