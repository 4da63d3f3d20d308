"""What a draft model's logits are taken for: a guess at what the target's sampling will come to."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp

from jaxengine.contract.sampling_options import Needs
from jaxengine.device.layers.sharding import ONE_DEVICE, Layout
from jaxengine.device.sampling.noise import gumbel
from jaxengine.device.sampling.rows import Rows, SampleInputs
from jaxengine.device.sampling.slots import Slots
from jaxengine.device.sampling.vocabulary import Vocabulary

Array = jax.Array


def guess(logits: Array, slots_of: Array, positions: Array, slots: Slots, *, layout: Layout = ONE_DEVICE) -> Array:
    """The likeliest token of each row of `logits [R, V]`, or for a slot that samples one drawn with the target's own noise.

    The noise of a position is known before the target gets there. Where the draft's probabilities are near the target's, the same
    noise mostly draws the same token, also at temperatures at which the likeliest one would mostly be wrong.
    """
    size = logits.shape[1]
    vocabulary = Vocabulary.part_of(size, layout)
    nothing = jnp.zeros_like(slots_of)
    inputs = SampleInputs(slots=slots_of, positions=positions, targets=nothing - 1, writes=nothing, count=None)

    def part(logits: Array, inputs: SampleInputs, slots: Slots) -> Array:
        rows = Rows.of(inputs, slots)
        logits = jnp.nan_to_num(logits.astype(jnp.float32), nan=-jnp.inf)
        random = rows.need(Needs.RANDOM)
        noise = rows.options["temperature"][:, None] * gumbel(rows.seeds, rows.positions, vocabulary.ids())
        return vocabulary.argmax(jnp.where(random[:, None], logits + noise, logits))

    cut = layout.vocab_axis(size)
    on_devices = layout.per_device(part, inputs=(("tokens", cut), None, None), outputs=())
    found: Array = on_devices(logits, inputs, replace(slots, counts=None))
    return found
