"""From logits to tokens: one pure function, compiled once per row count and variant."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh

from jaxengine.layers import sharding
from jaxengine.sampling.filters import threshold
from jaxengine.sampling.logprobs import token_logprobs, top_logprobs
from jaxengine.sampling.noise import gumbel
from jaxengine.sampling.penalties import add_bias, apply_penalties, mask_allowed
from jaxengine.sampling.tensors import SamplingInputs, Variant
from jaxengine.sampling.vocabulary import Vocabulary
from jaxengine.sampling_params import GREEDY_BELOW

Array = jax.Array

LARGEST_LOGIT = 1e30
LARGEST_PENALISED_LOGIT = 1e36
"""Logits are cut here, so that an infinite one is a certain token and not a source of NaN, at any temperature."""

CPU_ROWS = 8
"""Rows per group on CPU: 32 rows of 151,936 logits take a half to an eighth of the time that they take at once."""
TPU_ROWS = {Variant.GREEDY: 256, Variant.RANDOM: 32, Variant.FULL: 16}
"""Rows per group on TPU. Of 256 rows of 128,256 logits on a v6e, by the compiler's figures and together with the projection:
the workspace is 131, 149 and 164 MB (at once 131, 395 and 2,006) and compilation takes half as long. `FULL` has a fifth fewer
cycles, `RANDOM` a sixth more: in groups of 16 it would be three tenths. A loop counts as many rounds as it has groups."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SampleOutputs:
    """What was sampled. All but `tokens i32[R]` is None except in the `FULL` variant.

    `logprob f32[R]` is the raw log probability of the target or sampled token (minus infinity is possible), `rank i32[R]`
    its 1-based rank, `top_ids i32[R, max_logprobs]` and `top_logprobs f32[R, max_logprobs]` the most likely tokens, best
    first.
    """

    tokens: Array
    logprob: Array | None = None
    rank: Array | None = None
    top_ids: Array | None = None
    top_logprobs: Array | None = None


def sample(
    variant: Variant, logits: Array, inputs: SamplingInputs, *, max_logprobs: int, mesh: Mesh | None = None
) -> SampleOutputs:
    """Choose one token per row of `logits [R, V]`.

    Order: raw log probabilities are kept; allowed tokens, logit bias, penalties; temperature; min_p, top_k, top_p;
    Gumbel-max. Greedy rows take the most likely token after penalties. A row's token is a function of its own
    logits, options, seed and position alone: `R`, slot, neighbours, variant and mesh do not enter. Ties go to the lowest
    token id.

    Bad values stay in their row: a NaN logit counts as minus infinity, plus infinity as the largest logit, a row without
    any finite logit yields token 0, and a row whose `allowed` has no bit is sampled as if it had all.

    Args:
        variant: which options are honoured; `inputs` has exactly its fields.
        logits: any float type; computed in float32. With `mesh`, cut over the vocabulary if `layers.sharding.vocab_axis` says so.
        inputs: as `tensors.spec` lays out, replicated over `mesh`.
        max_logprobs: how many of the most likely tokens the `FULL` variant reports, at most V.
        mesh: when given, each device works on its part of the vocabulary and only numbers per row are exchanged.
    """
    size = logits.shape[1]
    axis = sharding.vocab_axis(size, mesh)
    cut = mesh is not None and axis == "vocab"
    vocabulary = Vocabulary(
        size, size // sharding.tensor_parallel_size(mesh) if cut else size, sharding.TENSOR if cut else None
    )

    def whole(logits: Array, inputs: SamplingInputs) -> SampleOutputs:
        return _sample(variant, logits, inputs, vocabulary=vocabulary, max_logprobs=max_logprobs)

    def part(logits: Array, inputs: SamplingInputs) -> SampleOutputs:
        return lax.platform_dependent(
            logits, inputs, cpu=_in_groups(whole, CPU_ROWS), tpu=_in_groups(whole, TPU_ROWS[variant]), default=whole
        )

    run = sharding.per_device(part, mesh=mesh, inputs=(("tokens", axis), None), outputs=())
    outputs: SampleOutputs = run(logits, inputs)
    return outputs


def _in_groups(function: Callable[[Array, SamplingInputs], SampleOutputs], most: int) -> Callable[..., SampleOutputs]:
    """Run `function` on up to `most` rows at a time, as long as there are rows to sample: the rest of the outputs is 0."""

    def grouped(logits: Array, inputs: SamplingInputs) -> SampleOutputs:
        rows = logits.shape[0]
        size = math.gcd(rows, most)
        if size in (1, rows):
            return function(logits, inputs)

        def group(index: Array | int) -> tuple[Array, SamplingInputs]:
            by_row = (logits, replace(inputs, num_rows=None))
            return jax.tree.map(lambda leaf: lax.dynamic_slice_in_dim(leaf, index * size, size), by_row)  # type: ignore[no-any-return]

        def sample_group(index: Array, outputs: SampleOutputs) -> SampleOutputs:
            def put(whole: Array, part: Array) -> Array:
                return lax.dynamic_update_slice_in_dim(whole, part, index * size, 0)

            return jax.tree.map(put, outputs, function(*group(index)))  # type: ignore[no-any-return]

        def of_all_rows(struct: jax.ShapeDtypeStruct) -> Array:
            return jnp.zeros((rows, *struct.shape[1:]), struct.dtype)

        nothing = jax.tree.map(of_all_rows, jax.eval_shape(lambda: function(*group(0))))
        groups = rows // size if inputs.num_rows is None else (inputs.num_rows + size - 1) // size
        return lax.fori_loop(0, groups, sample_group, nothing)  # type: ignore[no-any-return]

    return grouped


def _sample(
    variant: Variant, logits: Array, inputs: SamplingInputs, *, vocabulary: Vocabulary, max_logprobs: int
) -> SampleOutputs:
    logits = logits.astype(jnp.float32)
    raw = _clean(logits, at_most=LARGEST_LOGIT)
    if variant is Variant.GREEDY:
        return SampleOutputs(vocabulary.argmax(raw))
    if variant is Variant.RANDOM:
        return SampleOutputs(_draw(raw, inputs, vocabulary))
    logits = mask_allowed(raw, inputs, vocabulary)
    logits = add_bias(logits, inputs, vocabulary)
    logits = apply_penalties(logits, inputs, vocabulary)
    tokens = _draw(_clean(logits, at_most=LARGEST_PENALISED_LOGIT), inputs, vocabulary)
    logprob, rank = token_logprobs(raw, jnp.where(inputs.targets >= 0, inputs.targets, tokens), vocabulary)
    top_ids, top = top_logprobs(raw, vocabulary, count=max_logprobs)
    return SampleOutputs(tokens, logprob, rank, top_ids, top)


def _clean(logits: Array, *, at_most: float) -> Array:
    """Logits without NaN, plus infinity, and minus zero, which top_k would order below zero."""
    finite = jnp.where(jnp.isnan(logits), -jnp.inf, jnp.minimum(logits, at_most))
    return jnp.where(finite == 0, 0.0, finite)


def _draw(logits: Array, inputs: SamplingInputs, vocabulary: Vocabulary) -> Array:
    """Temperature, filters and the draw: `i32[R]`."""
    random = inputs.temperature >= GREEDY_BELOW
    scaled = logits / jnp.where(random, inputs.temperature, 1.0)[:, None]
    kept = scaled >= threshold(scaled, inputs, vocabulary)[:, None]
    noise = gumbel(inputs.seeds, inputs.positions, vocabulary.ids())
    noisy = jnp.where(kept, scaled + noise, -jnp.inf)
    return vocabulary.argmax(jnp.where(random[:, None], noisy, logits))
