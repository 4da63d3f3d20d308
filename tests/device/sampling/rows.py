"""From the oracle's options to the device's arrays, and hypothesis strategies for both."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

from jaxengine.contract.batch import SamplingSpec
from jaxengine.contract.sampling_options import OPTIONS, Option
from jaxengine.contract.sampling_params import MAX_LOGIT_BIAS
from jaxengine.device.layers.sharding import ONE_DEVICE, Layout
from jaxengine.device.sampling import SampleInputs, SampleOutputs, Slots, Variant, sample, settings_row
from jaxengine.device.sampling.slots import IN_PROMPT, SETTINGS
from tests.device.sampling.oracle import Options, Row
from tests.quick import QUICK

run = jax.jit(sample, static_argnums=0, static_argnames=("max_logprobs", "layout"), compiler_options=QUICK)
JUNK = 12345


def spec_of(row: Options, *, logprobs: bool = True) -> SamplingSpec:
    """What the host half would say of the row."""
    return SamplingSpec(
        **{option.name: getattr(row, option.name) for option in OPTIONS},
        seed=row.seed,
        masked=row.allowed is not None,
        bias_ids=tuple(row.bias),
        bias_values=tuple(row.bias.values()),
        num_logprobs=5 if logprobs else None,
    )


def device_state(
    rows: Sequence[Options], *, vocab: int, padded: int = 0, slots: Sequence[int] | None = None, logprobs: bool = True
) -> tuple[SampleInputs, Slots]:
    """What the runtime would have written for `rows`, with rows up to `padded` that are not sampled, in slots of their own.

    What no row needs is junk, as sequences leave it behind.
    """
    slots = range(1, len(rows) + 1) if slots is None else slots
    size, places = max([*slots, padded]) + 1, max(len(rows), padded)
    state = Slots(
        last_token=np.full(size, JUNK, np.int32),
        settings=np.full((size, len(SETTINGS)), JUNK, np.int32),
        bias=np.full((size, 2, MAX_LOGIT_BIAS), JUNK, np.int32),
        allowed=np.full((size, -(-vocab // 32)), JUNK, np.uint32),
        counts=np.full((size, vocab), JUNK, np.int32),
    )
    state.settings[0] = 0
    kept = SampleInputs(
        slots=np.zeros(places, np.int32),
        positions=np.zeros(places, np.int32),
        targets=np.full(places, -1, np.int32),
        writes=np.zeros(places, np.int32),
        count=np.int32(len(rows)),
    )
    for i, (slot, row) in enumerate(zip(slots, rows, strict=True)):
        kept.slots[i], kept.positions[i], kept.writes[i] = slot, row.position, slot
        if row.target is not None:
            kept.targets[i] = row.target
        spec = spec_of(row, logprobs=logprobs)
        state.settings[slot] = settings_row(spec)
        if row.bias:
            state.bias[slot, 0] = -1
            state.bias[slot, 0, : len(row.bias)] = list(row.bias)
            state.bias[slot, 1, : len(row.bias)] = np.array(list(row.bias.values()), np.float32).view(np.int32)
        if row.allowed is not None:
            state.allowed[slot] = bitmask(row.allowed, vocab=vocab)
        if spec.has_penalties:
            state.counts[slot] = counts_of(row, vocab=vocab)
    return kept, state


def counts_of(row: Options, *, vocab: int) -> np.ndarray:
    """The row of `Slots.counts` of a history."""
    counts = np.bincount(np.array(row.output, np.int64), minlength=vocab).astype(np.int32)
    counts[list(row.prompt)] += IN_PROMPT
    return counts


def bitmask(tokens: frozenset[int], *, vocab: int) -> np.ndarray:
    """The words whose bit `t % 32` of word `t // 32` is set for each of `tokens`."""
    words = np.zeros(-(-vocab // 32), np.uint32)
    for token in tokens:
        words[token // 32] |= np.uint32(1 << (token % 32))
    return words


def sampled(
    variant: Variant, logits: np.ndarray, rows: Sequence[Options], *, layout: Layout = ONE_DEVICE
) -> SampleOutputs:
    """Run the device sampler on `logits [R, V]`; rows beyond `rows` are padding."""
    kept, slots = device_state(rows, vocab=logits.shape[1], padded=logits.shape[0], logprobs=variant is Variant.FULL)
    outputs, _ = run(variant, jnp.asarray(logits), kept, slots, max_logprobs=5, layout=layout)
    return jax.device_get(outputs)  # type: ignore[no-any-return]  # each look into JAX's array runs a program


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


EDGES: dict[str, list[float]] = {
    "temperature": [0.0, 1e-6, 0.5, 1.0, 2.0],
    "top_p": [0.5, 0.9, 1e-7],
    "min_p": [0.05, 1.0],
    "presence_penalty": [-2.0, 1.5],
    "frequency_penalty": [-0.5, 2.0],
    "repetition_penalty": [0.5, 1.3],
}
"""Values that are seen often."""
LEAST = {"temperature": 0.0625, "top_p": 0.0078125}
"""The least of any values, where it is not the table's."""


def options(vocab: int) -> st.SearchStrategy[Options]:
    """Any combination of options, each neutral often enough to be seen alone."""
    tokens = st.integers(0, vocab - 1)
    some_tokens = st.lists(tokens, max_size=6).map(tuple)
    edges = EDGES | {"top_k": [1, 2, 3, vocab - 1, vocab, vocab + 5]}

    def values(option: Option) -> st.SearchStrategy[float]:
        known = st.sampled_from([option.default] * 2 + edges.get(option.name, []))
        if option.needs:  # penalties: their sums must not depend on how they are rounded
            return known
        if option.kind is int:
            return known | st.integers(0, vocab)
        low = LEAST.get(option.name, option.low)
        return known | st.floats(low, min(option.high, 3.0), width=32)

    return st.builds(
        Options,
        **{option.name: values(option) for option in OPTIONS},
        seed=st.integers(-(2**63), 2**63 - 1),
        position=st.integers(0, 2**20),
        prompt=some_tokens,
        output=some_tokens,
        bias=st.just({}) | st.dictionaries(tokens, st.sampled_from([-100.0, -1.0, 2.5, 100.0]), max_size=6),
        allowed=st.none() | st.frozensets(tokens, max_size=8),
        target=st.none() | tokens,
    )
