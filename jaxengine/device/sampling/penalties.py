"""What changes logits before temperature: allowed tokens, bias, and penalties on tokens already seen.

Each costs something only where a row needs it, and changes the logits of those rows alone.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from jaxengine.contract.sampling_options import Needs
from jaxengine.device.sampling.rows import Rows
from jaxengine.device.sampling.slots import IN_PROMPT, Slots
from jaxengine.device.sampling.vocabulary import Vocabulary

Array = jax.Array


def mask_allowed(logits: Array, rows: Rows, slots: Slots, vocabulary: Vocabulary) -> Array:
    """Logits `f32[R, width]` with minus infinity where `slots.allowed` has no bit.

    A row that allows no token at all keeps its logits: there is no right answer, and the model's own beats token 0.
    """
    masked = rows.need(Needs.MASK)

    def mask(logits: Array) -> Array:
        allowed = _unpack(jnp.take(slots.allowed, rows.masks, axis=0, mode="clip"), vocabulary)
        some = masked & (vocabulary.count(allowed) > 0)
        return jnp.where(allowed | ~some[:, None], logits, -jnp.inf)

    return lax.cond(jnp.any(masked), mask, lambda logits: logits, logits)


def add_bias(logits: Array, rows: Rows, slots: Slots, vocabulary: Vocabulary) -> Array:
    """Logits plus what `slots.bias` says; token ids beyond the vocabulary are dropped."""
    biased = rows.need(Needs.BIAS)

    def add(logits: Array) -> Array:
        found = jnp.take(slots.bias, rows.slots, axis=0, mode="clip")
        places = vocabulary.places(jnp.where(biased[:, None], found[:, 0], -1))
        number = lax.broadcasted_iota(jnp.int32, places.shape, 0)
        # Integers, whatever they mean: floats are scattered by a v6e's SparseCore, whose compiler crashed once in some 30 runs.
        bias = jnp.zeros(logits.shape, jnp.int32).at[number, places].set(found[:, 1], mode="drop")
        return logits + lax.bitcast_convert_type(bias, jnp.float32)

    return lax.cond(jnp.any(biased), add, lambda logits: logits, logits)


def apply_penalties(logits: Array, rows: Rows, slots: Slots, vocabulary: Vocabulary) -> Array:
    """Logits after the repetition penalty (tokens of prompt and output), then frequency and presence (output only)."""
    penalised = rows.need(Needs.PENALTIES)

    def apply(logits: Array) -> Array:
        options = rows.options
        counts = jnp.take(slots.counts, rows.slots, axis=0, mode="clip")
        if rows.earlier is not None:
            number = lax.broadcasted_iota(jnp.int32, rows.earlier.shape, 0)
            counts = counts.at[number, vocabulary.places(rows.earlier)].add(1, mode="drop")
        counts = jnp.where(penalised[:, None], counts, 0)
        seen, count = counts != 0, counts & (IN_PROMPT - 1)
        repetition = jnp.clip(options["repetition_penalty"], 1e-30, 1e30)[:, None]  # 0 times infinity is not a number
        logits = jnp.where(seen, jnp.where(logits > 0, logits / repetition, logits * repetition), logits)
        logits = logits - options["frequency_penalty"][:, None] * count.astype(jnp.float32)
        return logits - options["presence_penalty"][:, None] * (count > 0).astype(jnp.float32)

    return lax.cond(jnp.any(penalised), apply, lambda logits: logits, logits)


def count_tokens(counts: Array, slots: Array, tokens: Array, vocabulary: Vocabulary) -> Array:
    """This device's part of `Slots.counts` with one more of `tokens i32[R]` in `slots i32[R]`; slot 0 counts nothing."""
    places = vocabulary.places(jnp.where(slots > 0, tokens, -1))
    return counts.at[slots, places].add(1, mode="drop")


def _unpack(words: Array, vocabulary: Vocabulary) -> Array:
    """The bits of this device's tokens, `bool[R, width]`, from the words of the whole vocabulary `u32[R, W]`."""
    start = vocabulary.start()
    span = vocabulary.width // 32 + 2  # words that a part may touch, wherever it starts
    words = jnp.pad(words, ((0, 0), (0, span)))
    words = lax.dynamic_slice_in_dim(words, start // 32, span, axis=1)
    bits = (words[:, :, None] >> jnp.arange(32, dtype=jnp.uint32)) & 1
    bits = bits.reshape(words.shape[0], span * 32)
    return lax.dynamic_slice_in_dim(bits, start % 32, vocabulary.width, axis=1) > 0
