"""What the device keeps of each running sequence, so that a step need not send it again.

A sequence has a slot; slot 0 is the sink of padding. What an earlier owner left in a slot does not matter: `Needs` say what of it
is looked at, and they are written when a sequence begins.

Letters: S slots, R rows, V vocabulary, W = ceil(V / 32) words of a bitmask, L history places.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from enum import IntFlag
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.typing import NDArray

from jaxengine.contract.sampling_params import GREEDY_BELOW, MAX_LOGIT_BIAS
from jaxengine.device.layers.sharding import Layout
from jaxengine.device.sampling.vocabulary import Vocabulary
from pallas_kernels import scatter_add, scattered_rows

Array = jax.Array

IN_PROMPT = 1 << 30
"""Added to a token's count where the prompt holds it; the lower bits count its occurrences in the output."""

FLOATS = frozenset({"temperature", "top_p", "min_p", "presence", "frequency", "repetition"})
"""The columns of `Slots.settings` that hold the bits of floats."""


class Needs(IntFlag):
    """What a row needs beside its most likely token. Nothing else of its slot is looked at."""

    RANDOM = 1
    MASK = 2
    BIAS = 4
    PENALTIES = 8
    LOGPROBS = 16


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How some rows are sampled, one value per row. These are the columns of `Slots.settings`, in this order.

    `top_k` 0, `top_p` 1, `min_p` 0, `presence` 0, `frequency` 0 and `repetition` 1 are off.
    """

    needs: Array
    temperature: Array
    top_k: Array
    top_p: Array
    min_p: Array
    seed_high: Array
    seed_low: Array
    presence: Array
    frequency: Array
    repetition: Array

    @classmethod
    def of(cls, rows: Array) -> Settings:
        """Rows of `Slots.settings`, `i32[R, len(SETTINGS)]`."""
        columns = {name: rows[:, i] for i, name in enumerate(SETTINGS)}
        floats = {name: lax.bitcast_convert_type(columns[name], jnp.float32) for name in FLOATS}
        return cls(**{**columns, **floats})

    @property
    def seeds(self) -> Array:
        """`u32[R, 2]`."""
        return lax.bitcast_convert_type(jnp.stack([self.seed_high, self.seed_low], axis=1), jnp.uint32)

    def need(self, what: Needs) -> Array:
        """Which rows do, `bool[R]`."""
        return (self.needs & int(what)) != 0


SETTINGS = tuple(field.name for field in fields(Settings))


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Slots:
    """The state of all sequences. Every program that changes it is given it whole, donated, and returns it.

    `last_token i32[S]` is what each sampled last. `settings i32[S, len(SETTINGS)]`. `bias i32[S, 2, MAX_LOGIT_BIAS]`: token ids,
    all different, then -1; and the bits of what is added to their logits. `allowed u32[S, W]`: bit `t % 32` of word `t // 32` is
    set when token `t` may be sampled. `counts i32[>= S, V]` says how often each token occurs (`IN_PROMPT`), cut like logits on a
    mesh.
    """

    last_token: Any
    settings: Any
    bias: Any
    allowed: Any
    counts: Any


def slots_spec(num_slots: int, vocab: int, *, platform: str, layout: Layout) -> Slots:
    """Shapes, types and places of the slots."""
    axis = layout.vocab_axis(vocab)
    width = vocab // layout.shards("vocab") if axis == "vocab" else vocab
    rows = scattered_rows(num_slots, width, platform=platform)

    def struct(shape: tuple[int, ...], axes: tuple[str, ...], dtype: Any = np.int32) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=layout.sharding(axes))

    return Slots(
        last_token=struct((num_slots,), ("slots",)),
        settings=struct((num_slots, len(SETTINGS)), ("slots", "settings")),
        bias=struct((num_slots, 2, MAX_LOGIT_BIAS), ("slots", "settings", "settings")),
        allowed=struct((num_slots, -(-vocab // 32)), ("slots", "settings"), np.uint32),
        counts=struct((rows, vocab), ("slots", axis)),
    )


def settings_row(
    *,
    needs: int = 0,
    temperature: float = 0.0,
    seed: int = 0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    presence: float = 0.0,
    frequency: float = 0.0,
    repetition: float = 1.0,
) -> NDArray[np.int32]:
    """One row of `Slots.settings`. `needs` need not have `RANDOM`, which follows from the temperature."""
    if np.float32(temperature) >= np.float32(GREEDY_BELOW):
        needs |= Needs.RANDOM
    floats = np.array([temperature, top_p, min_p, presence, frequency, repetition], np.float32).view(np.int32)
    seeds = np.array(seed_words(seed), np.uint32).view(np.int32)
    return np.array([needs, floats[0], top_k, *floats[1:3], *seeds, *floats[3:]], np.int32)


def seed_words(seed: int) -> tuple[int, int]:
    """The high and low 32 bits of a seed, which may be any 64-bit integer, signed or not."""
    return (seed >> 32) & 0xFFFFFFFF, seed & 0xFFFFFFFF


def write_settings(slots: Slots, rows: Array) -> Slots:
    """`rows i32[M, 1 + len(SETTINGS)]`: a slot and its settings, which replace what was there. Padding has slot 0."""
    number = lax.broadcasted_iota(jnp.int32, (slots.settings.shape[0], rows.shape[0]), 0)
    given = number == rows[None, :, 0]
    chosen = jnp.take(rows[:, 1:], jnp.argmax(given, axis=1), axis=0)
    return replace(slots, settings=jnp.where(jnp.any(given, axis=1)[:, None], chosen, slots.settings))


def write_bias(slots: Slots, row: Array) -> Slots:
    """`row i32[1 + 2 * MAX_LOGIT_BIAS]`: a slot, the token ids (then -1) and the bits of what is added to their logits."""
    bias = lax.dynamic_update_slice(slots.bias, row[1:].reshape(1, 2, -1), (row[0], 0, 0))
    return replace(slots, bias=bias)


def write_masks(slots: Slots, rows: Array) -> Slots:
    """`rows u32[M, 1 + W]`: a slot and the tokens that it allows. Padding has slot 0."""

    def write(i: Array, allowed: Array) -> Array:
        row = lax.dynamic_slice_in_dim(rows, i, 1)
        updated: Array = lax.dynamic_update_slice(allowed, row[:, 1:], (row[0, 0].astype(jnp.int32), 0))
        return updated

    return replace(slots, allowed=lax.fori_loop(0, rows.shape[0], write, slots.allowed))


def write_history(slots: Slots, row: Array, *, platform: str, layout: Layout) -> Slots:
    """`row i32[2 + L]`: a slot, how many of the tokens are the prompt, and the sequence's tokens so far, then -1."""
    size = slots.counts.shape[1]

    def write(counts: Array, row: Array) -> Array:
        vocabulary = Vocabulary.part_of(size, layout)
        places = vocabulary.places(row[2:])
        is_output = (jnp.arange(places.shape[0]) >= row[1]).astype(jnp.int32)
        # One scatter of pairs: on TPU two scatters cost twice the time and five times the compilation.
        kinds = jnp.stack([is_output, 1 - is_output])
        sums = scatter_add(places, kinds, width=vocabulary.width, platform=platform)
        counted = sums[0] + jnp.where(sums[1] > 0, IN_PROMPT, 0)
        updated: Array = lax.dynamic_update_slice(counts, counted[None], (row[0], 0))
        return updated

    axes = ("slots", layout.vocab_axis(size))
    on_devices = layout.per_device(write, inputs=(axes, None), outputs=axes)
    return replace(slots, counts=on_devices(slots.counts, row))
