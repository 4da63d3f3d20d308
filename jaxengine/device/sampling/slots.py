"""What the device keeps of each running sequence, so that a step need not send it again.

A sequence has a slot; slot 0 is the sink of padding. What an earlier owner left in a slot does not matter: `Needs` say what of it
is looked at, and they are written when a sequence begins.

Where drafts are made (k of them) the device has them too, and how long each sequence is.

Letters: S slots, R rows, V vocabulary, W = ceil(V / 32) words of a bitmask, L history places.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.typing import NDArray

from jaxengine.contract.batch import SamplingSpec
from jaxengine.contract.sampling_options import OPTIONS, Option
from jaxengine.contract.sampling_params import MAX_LOGIT_BIAS
from jaxengine.device.layers.sharding import Layout
from jaxengine.device.sampling.vocabulary import Vocabulary
from pallas_kernels import scatter_add, scattered_rows

Array = jax.Array

IN_PROMPT = 1 << 30
"""Added to a token's count where the prompt holds it; the lower bits count its occurrences in the output."""

SETTINGS = ("needs", "seed_high", "seed_low", *(option.name for option in OPTIONS))
"""The columns of `Slots.settings`. Options of type float are there as the bits of a float32."""
LARGEST = {int: 2**31 - 1, float: float(np.finfo(np.float32).max)}
"""What options are cut to: more tokens than any vocabulary has, and all but infinite."""
LEAST = float(np.finfo(np.float32).tiny)
"""What options above zero are raised to: XLA takes less for zero on a CPU, which turns many of them off."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class Slots:
    """The state of all sequences. Every program that changes it is given it whole, donated, and returns it.

    `last_token i32[S]` is what each sampled last. `settings i32[S, len(SETTINGS)]`. `bias i32[S, 2, MAX_LOGIT_BIAS]`: token ids,
    all different, then -1; and the bits of what is added to their logits. `allowed u32[S, W]`: bit `t % 32` of word `t // 32` is
    set when token `t` may be sampled. `counts i32[>= S, V]` says how often each token occurs (`IN_PROMPT`), cut like logits on a
    mesh.

    With k drafts `allowed` has rows for the places of a row: S of those that follow the last token, then S of those that follow
    the first draft, and so on. `length i32[S]` is the position of the last token, 0 while none was sampled since the sequence
    began, and `drafts i32[S, k]` are those that the device proposes; None where it does not.

    `logits f32[K, V]` are those of a step's kept places, where one program makes them and another samples; None elsewhere.
    """

    last_token: Any
    settings: Any
    bias: Any
    allowed: Any
    counts: Any
    length: Any = None
    drafts: Any = None
    logits: Any = None


def slots_spec(
    num_slots: int,
    vocab: int,
    *,
    platform: str,
    layout: Layout,
    num_drafts: int = 0,
    proposes: bool = False,
    logit_rows: int = 0,
) -> Slots:
    """Shapes, types and places of the slots, with so many drafts, which the device `proposes` or is given; and of `logits`."""
    axis = layout.vocab_axis(vocab)
    width = vocab // layout.shards("vocab") if axis == "vocab" else vocab
    rows = scattered_rows(num_slots, width, platform=platform)

    def struct(shape: tuple[int, ...], axes: tuple[str, ...], dtype: Any = np.int32) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=layout.sharding(axes))

    return Slots(
        last_token=struct((num_slots,), ("slots",)),
        settings=struct((num_slots, len(SETTINGS)), ("slots", "settings")),
        bias=struct((num_slots, 2, MAX_LOGIT_BIAS), ("slots", "settings", "settings")),
        allowed=struct((num_slots * (1 + num_drafts), -(-vocab // 32)), ("slots", "settings"), np.uint32),
        counts=struct((rows, vocab), ("slots", axis)),
        length=struct((num_slots,), ("slots",)) if proposes else None,
        drafts=struct((num_slots, num_drafts), ("slots", "settings")) if proposes else None,
        logits=struct((logit_rows, vocab), ("slots", axis), np.float32) if logit_rows else None,
    )


def settings_row(spec: SamplingSpec) -> NDArray[np.int32]:
    """The row of `Slots.settings` that says all of `spec` that fits there."""
    seeds = np.array(seed_words(spec.seed), np.uint32).view(np.int32)
    return np.array([spec.needs, *seeds, *(_bits(option, getattr(spec, option.name)) for option in OPTIONS)], np.int32)


def _bits(option: Option, value: float) -> np.int32:
    value = min(value, LARGEST[option.kind])
    if option.kind is int:
        return np.int32(value)
    return np.float32(max(value, LEAST) if value > 0 else value).view(np.int32)


def option_columns(rows: Array) -> dict[str, Array]:
    """The options of rows of `Slots.settings` by name, `i32[R]` or `f32[R]`."""
    columns = {option: rows[:, SETTINGS.index(option.name)] for option in OPTIONS}
    return {
        option.name: column if option.kind is int else lax.bitcast_convert_type(column, jnp.float32)
        for option, column in columns.items()
    }


def seed_words(seed: int) -> tuple[int, int]:
    """The high and low 32 bits of a seed, which may be any 64-bit integer, signed or not."""
    return (seed >> 32) & 0xFFFFFFFF, seed & 0xFFFFFFFF


def write_settings(slots: Slots, rows: Array) -> Slots:
    """`rows i32[M, 1 + len(SETTINGS)]`: a slot and its settings, which replace what was there. Padding has slot 0."""
    number = lax.broadcasted_iota(jnp.int32, (slots.settings.shape[0], rows.shape[0]), 0)
    given = number == rows[None, :, 0]
    chosen = jnp.take(rows[:, 1:], jnp.argmax(given, axis=1), axis=0)
    begins = jnp.any(given, axis=1)
    return replace(
        slots,
        settings=jnp.where(begins[:, None], chosen, slots.settings),
        length=None if slots.length is None else jnp.where(begins, 0, slots.length),
    )


def write_bias(slots: Slots, row: Array) -> Slots:
    """`row i32[1 + 2 * MAX_LOGIT_BIAS]`: a slot, the token ids (then -1) and the bits of what is added to their logits."""
    bias = lax.dynamic_update_slice(slots.bias, row[1:].reshape(1, 2, -1), (row[0], 0, 0))
    return replace(slots, bias=bias)


def write_masks(slots: Slots, rows: Array) -> Slots:
    """`rows u32[M, 1 + W]`: a row of `Slots.allowed` and what it becomes. Padding has row 0."""

    def write(i: Array, allowed: Array) -> Array:
        row = lax.dynamic_slice_in_dim(rows, i, 1)
        updated: Array = lax.dynamic_update_slice(allowed, row[:, 1:], (row[0, 0].astype(jnp.int32), 0))
        return updated

    return replace(slots, allowed=lax.fori_loop(0, rows.shape[0], write, slots.allowed))


def write_history(slots: Slots, row: Array, *, platform: str, layout: Layout) -> Slots:
    """`row i32[3 + L]`: a slot, whether what was counted of its sequence stays, how many of these tokens are of the prompt, and
    tokens of the sequence, then -1."""
    size = slots.counts.shape[1]

    def write(counts: Array, row: Array) -> Array:
        vocabulary = Vocabulary.part_of(size, layout)
        places = vocabulary.places(row[3:])
        is_output = (jnp.arange(places.shape[0]) >= row[2]).astype(jnp.int32)
        # One scatter of pairs: on TPU two scatters cost twice the time and five times the compilation.
        kinds = jnp.stack([is_output, 1 - is_output])
        sums = scatter_add(places, kinds, width=vocabulary.width, platform=platform)
        before = jnp.where(row[1] > 0, lax.dynamic_slice_in_dim(counts, row[0], 1)[0], 0)
        counted = before + sums[0] | jnp.where(sums[1] > 0, IN_PROMPT, 0)
        updated: Array = lax.dynamic_update_slice(counts, counted[None], (row[0], 0))
        return updated

    axes = ("slots", layout.vocab_axis(size))
    on_devices = layout.per_device(write, inputs=(axes, None), outputs=axes)
    return replace(slots, counts=on_devices(slots.counts, row))
