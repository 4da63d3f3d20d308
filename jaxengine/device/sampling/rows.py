"""The places of a step whose tokens are sampled, or whose log probabilities are asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxengine.contract.sampling_options import Needs
from jaxengine.device.sampling.slots import Slots, option_columns

Array = jax.Array


class Variant(Enum):
    """How much a sampling program can do. Each is compiled per row count (on a CPU `FULL` once, apart from the logits), and a
    step takes the least that serves all rows.

    `GREEDY` takes the most likely token. `FULL` does all that a row may need, for those groups of rows that need it: a third one
    between them saved less than it cost a start (`benchmarks/sampler.py`). A row gets the same token from both.
    """

    GREEDY = "greedy"
    FULL = "full"

    @classmethod
    def serving(cls, needs: int) -> Variant:
        """The least that serves rows with these `Needs`."""
        return cls.FULL if needs else cls.GREEDY


@jax.tree_util.register_dataclass
@dataclass(frozen=True, kw_only=True)
class SampleInputs:
    """Rows to sample, the first `count i32[]` of them; the others are padding, of slot 0.

    Of each, `i32[R]`: `slots`; `positions` that the sampled token will have; `targets`, the token whose log probability is asked
    for, -1 for the sampled one; `writes`, the slot whose last token the sampled one becomes, 0 where it does not.

    Where there are drafts also `nth`, how many drafts of its sequence stand before the place, and `drafts`, the one that stands
    behind it, -1 for none; `earlier i32[R, k]` are made of these. Places of one sequence lie side by side, and all of them are
    written: the last right one counts.

    Where the head has adapters, in a step with such the one that each goes through, as `AdapterRows.adapters`.
    """

    slots: Any
    positions: Any
    targets: Any
    writes: Any
    count: Any
    nth: Any = None
    drafts: Any = None
    earlier: Any = None
    adapters: Any = None

    def first(self, rows: int) -> SampleInputs:
        """The first so many rows."""
        cut: SampleInputs = jax.tree.map(lambda leaf: leaf[:rows], replace(self, count=None))
        return replace(cut, count=jnp.minimum(self.count, rows))


@dataclass(frozen=True)
class Rows:
    """Some of the rows and how they are sampled: their `Needs`, `seeds u32[R, 2]`, and `options` by name, a value per row.

    `masks` are the rows of `Slots.allowed`. `earlier i32[R, k]` are the drafts before each place, then -1; None without drafts.
    """

    slots: Array
    positions: Array
    targets: Array
    needs: Array
    seeds: Array
    options: Mapping[str, Array]
    masks: Array
    earlier: Array | None

    @classmethod
    def of(cls, inputs: SampleInputs, slots: Slots) -> Rows:
        """A row with a target is asked for log probabilities, and for no token of its own."""
        settings = jnp.take(slots.settings, inputs.slots, axis=0, mode="clip")
        needs, seed_high, seed_low = (settings[:, i] for i in range(3))
        return cls(
            inputs.slots,
            inputs.positions,
            inputs.targets,
            needs=jnp.where(inputs.targets >= 0, int(Needs.LOGPROBS), needs),
            seeds=lax.bitcast_convert_type(jnp.stack([seed_high, seed_low], axis=1), jnp.uint32),
            options=option_columns(settings),
            masks=inputs.slots if inputs.nth is None else inputs.slots + inputs.nth * slots.settings.shape[0],
            earlier=inputs.earlier,
        )

    def need(self, what: Needs) -> Array:
        """Which rows do, `bool[R]`."""
        return (self.needs & int(what)) != 0


def with_earlier(inputs: SampleInputs, num_drafts: int) -> SampleInputs:
    """The inputs with the drafts that stand before each place, which penalties count though no slot does yet."""
    if inputs.nth is None:
        return inputs
    back = [
        jnp.where(inputs.nth > distance, jnp.roll(inputs.drafts, 1 + distance), -1) for distance in range(num_drafts)
    ]
    return replace(inputs, earlier=jnp.stack(back, axis=1))


def gained(inputs: SampleInputs, tokens: Array, num_drafts: int) -> tuple[Array, Array]:
    """Which of `tokens i32[R]` their sequences gain, because all drafts before are right, and which are the last of these."""
    if inputs.nth is None:
        everything = jnp.ones(tokens.shape, jnp.bool_)
        return everything, everything
    right = tokens == inputs.drafts
    gains = inputs.nth == 0
    for nth in range(1, 1 + num_drafts):
        gains = jnp.where(inputs.nth == nth, jnp.roll(gains & right, 1), gains)
    return gains, gains & ~right


def write_back(inputs: SampleInputs, tokens: Array, last: Array, slots: Slots) -> Slots:
    """The slots with `tokens i32[R]` as the last ones of `inputs.writes`, of those places that are the `last` of a sequence."""
    number = lax.broadcasted_iota(jnp.int32, (slots.last_token.shape[0], tokens.shape[0]), 0)
    here = (number == inputs.writes[None]) & (number > 0) & last[None]
    any_here = jnp.any(here, axis=1)

    def written(values: Array, before: Array) -> Array:
        # each slot is written once at most, and a TPU compares and adds faster than it scatters
        return jnp.where(any_here, jnp.sum(jnp.where(here, values[None], 0), axis=1), before)

    return replace(
        slots,
        last_token=written(tokens, slots.last_token),
        length=None if slots.length is None else written(inputs.positions, slots.length),
    )
