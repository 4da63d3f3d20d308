"""From rows to the arrays of a sampling program: which variant a step needs, and its inputs."""

from __future__ import annotations

from collections.abc import Sequence

from jaxengine.batch import RowSampling
from jaxengine.runtime.space import SampleShape
from jaxengine.sampling.tensors import SamplingInputs, Variant, neutral, seed_words


def choose_shape(rows: Sequence[RowSampling], *, num_rows: int, max_history: int) -> SampleShape:
    """The cheapest program of `num_rows` row places that can do what every row asks for."""
    if any(row.history is not None for row in rows):
        return SampleShape(num_rows, Variant.FULL, max_history)
    if any(_needs_full(row) for row in rows):
        return SampleShape(num_rows, Variant.FULL)
    if any(row.spec.temperature > 0 for row in rows):
        return SampleShape(num_rows, Variant.RANDOM)
    return SampleShape(num_rows, Variant.GREEDY)


def fill(
    shape: SampleShape, rows: Sequence[RowSampling], positions: Sequence[int], *, vocab_size: int
) -> SamplingInputs:
    """NumPy inputs for `shape.rows` places, of which the first are `rows`; the rest is not sampled."""
    inputs = neutral(shape.variant, rows=shape.rows, vocab=vocab_size, history=shape.history)
    if shape.variant is Variant.GREEDY:
        return inputs
    inputs.num_rows[...] = len(rows)
    for i, (row, position) in enumerate(zip(rows, positions, strict=True)):
        spec = row.spec
        inputs.temperature[i] = spec.temperature
        inputs.top_k[i] = spec.top_k
        inputs.top_p[i] = spec.top_p
        inputs.min_p[i] = spec.min_p
        inputs.seeds[i] = seed_words(spec.seed)
        inputs.positions[i] = position
        if shape.variant is Variant.FULL:
            _fill_full(inputs, i, row)
    return inputs


def _fill_full(inputs: SamplingInputs, i: int, row: RowSampling) -> None:
    spec = row.spec
    inputs.presence[i] = spec.presence_penalty
    inputs.frequency[i] = spec.frequency_penalty
    inputs.repetition[i] = spec.repetition_penalty
    if row.history is not None:
        inputs.history[i, : len(row.history)] = row.history
        inputs.num_prompt[i] = row.num_prompt_tokens
    if spec.bias_ids:
        inputs.bias_ids[i, : len(spec.bias_ids)] = spec.bias_ids
        inputs.bias_values[i, : len(spec.bias_values)] = spec.bias_values
    if row.allowed is not None:
        inputs.allowed[i] = row.allowed
    if row.target is not None:
        inputs.targets[i] = row.target


def _needs_full(row: RowSampling) -> bool:
    spec = row.spec
    return bool(spec.num_logprobs is not None or row.target is not None or row.allowed is not None or spec.bias_ids)
