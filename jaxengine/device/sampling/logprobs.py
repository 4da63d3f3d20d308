"""Raw log probabilities: of the sampled or a target token, and of the most likely ones."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxengine.device.sampling.vocabulary import Vocabulary

Array = jax.Array


def log_normaliser(logits: Array, vocabulary: Vocabulary) -> Array:
    """`log(sum(exp(logits)))` of each row, `f32[R]`; 0 for a row with nothing but minus infinity."""
    best = vocabulary.max(logits)
    best = jnp.where(jnp.isfinite(best), best, 0.0)
    total = vocabulary.sum(jnp.exp(logits - best[:, None]))
    return jnp.where(total > 0, best + jnp.log(total), 0.0)


def token_logprobs(logits: Array, tokens: Array, vocabulary: Vocabulary) -> tuple[Array, Array]:
    """The log probability `f32[R]` of `tokens i32[R]`, and their rank `i32[R]`: 1 for the most likely, ties share the last place.

    The rank counts logits: log probabilities of different logits may round to the same number.
    """
    chosen = vocabulary.at(logits, tokens)
    rank = vocabulary.count(logits >= chosen[:, None])
    return chosen - log_normaliser(logits, vocabulary), rank


def top_logprobs(logits: Array, vocabulary: Vocabulary, *, count: int) -> tuple[Array, Array]:
    """The `count` most likely token ids, best first, and their log probabilities: `i32[R, count]`, `f32[R, count]`."""
    values, ids = vocabulary.top(logits, count)
    return ids, values - log_normaliser(logits, vocabulary)[:, None]
