"""From logits to tokens: one pure function, compiled once per row count and variant."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jax import lax

from jaxengine.contract.sampling_options import Needs
from jaxengine.device.layers.sharding import ONE_DEVICE, Layout
from jaxengine.device.sampling.filters import keep
from jaxengine.device.sampling.logprobs import token_logprobs, top_logprobs
from jaxengine.device.sampling.noise import gumbel
from jaxengine.device.sampling.penalties import add_bias, apply_penalties, count_tokens, mask_allowed
from jaxengine.device.sampling.rows import Rows, SampleInputs, Variant, gained, with_earlier, write_back
from jaxengine.device.sampling.slots import Slots
from jaxengine.device.sampling.vocabulary import Vocabulary
from pallas_kernels import argmax

Array = jax.Array

LARGEST_LOGIT = 1e30
LARGEST_PENALISED_LOGIT = 1e36
"""Logits are cut here, so that an infinite one is a certain token and not a source of NaN, at any temperature."""

CPU_ROWS = {Variant.FULL: 1}
"""Rows per group on CPU: one, so that a row which needs much does not make others pay, nor one request the group's padding, for
one program with every option samples any number of rows. All give the same to the last bit (`benchmarks/sampler.py` has times by
sizes). Those of greedy programs are sampled at once."""
TPU_ROWS = {Variant.GREEDY: 256, Variant.FULL: 16}
"""Rows per group on TPU, which bound the workspace."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SampleOutputs:
    """What was sampled. All but `tokens i32[R]` is None except in the `FULL` variant, and means nothing where it is not needed.

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
    variant: Variant,
    logits: Array,
    inputs: SampleInputs,
    slots: Slots,
    *,
    max_logprobs: int,
    layout: Layout = ONE_DEVICE,
    num_drafts: int = 0,
    platform: str | None = None,
) -> tuple[SampleOutputs, Slots]:
    """Choose one token per row of `logits [R, V]`, and note it in the slots of `inputs`.

    Order: raw log probabilities are kept; allowed tokens, logit bias, penalties; temperature; `filters.keep`;
    Gumbel-max. Greedy rows take the most likely token after penalties. A row's token is a function of its own
    logits, options, seed and position alone: `R`, slot, neighbours, variant and layout do not enter. Ties go to the lowest
    token id.

    Rows are sampled in groups (on CPU and TPU), and a group does what some row of it needs: neighbours should need alike.

    Bad values stay in their row: a NaN logit counts as minus infinity, plus infinity as the largest logit, a row without
    any finite logit yields token 0, and a row whose mask has no bit is sampled as if it had all.

    Args:
        variant: which of the `Needs` are honoured; rows must have no others.
        logits: any float type; computed in float32. Cut over the vocabulary if `Layout.vocab_axis` says so.
        inputs: R rows, on each device. Those beyond the first `count` yield anything.
        slots: as `slots.slots_spec` lays them out.
        max_logprobs: how many of the most likely tokens the `FULL` variant reports, at most V.
        layout: where there is a mesh, each device works on its part of the vocabulary and only numbers per row are exchanged.
        num_drafts: the most that a sequence has among the rows. What is sampled in the place of one is compared with it.
        platform: what it is lowered for; None: traced for each platform, which takes three times as long.

    Returns:
        What was sampled, -1 behind a wrong draft, and the slots with the tokens as their last ones; `FULL` also counts those of
        slots with penalties.
    """
    size = logits.shape[1]
    inputs = with_earlier(inputs, num_drafts)
    vocabulary = Vocabulary.part_of(size, layout)

    def part(logits: Array, inputs: SampleInputs, slots: Slots, counts: Array) -> tuple[SampleOutputs, Array]:
        slots = replace(slots, counts=counts)
        run = _Sampler(variant, vocabulary, max_logprobs, platform)
        grouped = {
            name: functools.partial(replace(run, platform=name).in_groups, most=rows.get(variant))
            for name, rows in (("cpu", CPU_ROWS), ("tpu", TPU_ROWS))
        }
        if platform is None:
            outputs = lax.platform_dependent(logits, inputs, slots, default=run.at_once, **grouped)
        else:
            outputs = grouped.get(platform, run.at_once)(logits, inputs, slots)
        if variant is Variant.FULL:
            gains, _ = gained(inputs, outputs.tokens, num_drafts)
            counted = jnp.where(Rows.of(inputs, slots).need(Needs.PENALTIES) & gains, inputs.writes, 0)
            counts = count_tokens(counts, counted, outputs.tokens, vocabulary)
        return outputs, counts

    cut = layout.vocab_axis(size)
    on_devices = layout.per_device(
        part, inputs=(("tokens", cut), None, None, ("slots", cut)), outputs=(None, ("slots", cut))
    )
    outputs, counts = on_devices(logits, inputs, replace(slots, counts=None), slots.counts)
    gains, last = gained(inputs, outputs.tokens, num_drafts)
    slots = write_back(inputs, outputs.tokens, last, replace(slots, counts=counts))
    return replace(outputs, tokens=jnp.where(gains, outputs.tokens, -1)), slots


@dataclass(frozen=True)
class _Sampler:
    """Samples rows, all at once or in groups."""

    variant: Variant
    vocabulary: Vocabulary
    max_logprobs: int
    platform: str | None

    def in_groups(self, logits: Array, inputs: SampleInputs, slots: Slots, *, most: int | None) -> SampleOutputs:
        """Up to `most` rows at a time, as long as there are rows to sample: the rest of the outputs is 0. None: all at once."""
        rows = logits.shape[0]
        size = rows if most is None else math.gcd(rows, most)
        if size == rows:
            return self.at_once(logits, inputs, slots)
        by_row = (logits, replace(inputs, count=None))

        def sample_group(index: Array, outputs: SampleOutputs) -> SampleOutputs:
            def put(whole: Array, part: Array) -> Array:
                return lax.dynamic_update_slice_in_dim(whole, part, index * size, 0)

            some, of_inputs = jax.tree.map(lambda leaf: lax.dynamic_slice_in_dim(leaf, index * size, size), by_row)
            return jax.tree.map(put, outputs, self.at_once(some, of_inputs, slots))  # type: ignore[no-any-return]

        groups = (inputs.count + size - 1) // size
        return lax.fori_loop(0, groups, sample_group, self._nothing(rows))  # type: ignore[no-any-return]

    def at_once(self, logits: Array, inputs: SampleInputs, slots: Slots) -> SampleOutputs:
        logits = logits.astype(jnp.float32)
        if self.variant is Variant.GREEDY and self.vocabulary.axis is None:
            return SampleOutputs(argmax(logits, at_most=LARGEST_LOGIT, count=inputs.count, platform=self.platform))
        raw = _clean(logits, at_most=LARGEST_LOGIT)
        if self.variant is Variant.GREEDY:
            return SampleOutputs(self.vocabulary.argmax(raw))
        rows = Rows.of(inputs, slots)
        logits = mask_allowed(raw, rows, slots, self.vocabulary)
        logits = add_bias(logits, rows, slots, self.vocabulary)
        logits = apply_penalties(logits, rows, slots, self.vocabulary)
        tokens = self._draw(_clean(logits, at_most=LARGEST_PENALISED_LOGIT), rows)
        return self._with_logprobs(raw, tokens, rows)

    def _draw(self, logits: Array, rows: Rows) -> Array:
        """Temperature, filters and the draw, for those rows that are random: `i32[R]`."""
        random = rows.need(Needs.RANDOM)

        def draw(logits: Array) -> Array:
            scaled = logits / jnp.where(random, rows.options["temperature"], 1.0)[:, None]
            kept = keep(scaled, rows, self.vocabulary, platform=self.platform)
            noise = gumbel(rows.seeds, rows.positions, self.vocabulary.ids())
            noisy = jnp.where(kept, scaled + noise, -jnp.inf)
            return self.vocabulary.argmax(jnp.where(random[:, None], noisy, logits))

        return lax.cond(jnp.any(random), draw, self.vocabulary.argmax, logits)

    def _with_logprobs(self, raw: Array, tokens: Array, rows: Rows) -> SampleOutputs:
        def report(raw: Array) -> SampleOutputs:
            named = jnp.where(rows.targets >= 0, rows.targets, tokens)
            logprob, rank = token_logprobs(raw, named, self.vocabulary)
            top_ids, top = top_logprobs(raw, self.vocabulary, count=self.max_logprobs)
            return SampleOutputs(tokens, logprob, rank, top_ids, top)

        def tokens_alone(raw: Array) -> SampleOutputs:
            return replace(self._nothing(raw.shape[0]), tokens=tokens)

        return lax.cond(jnp.any(rows.need(Needs.LOGPROBS)), report, tokens_alone, raw)  # type: ignore[no-any-return]

    def _nothing(self, rows: int) -> SampleOutputs:
        """Outputs of so many rows that were not sampled."""
        tokens = jnp.zeros(rows, jnp.int32)
        if self.variant is not Variant.FULL:
            return SampleOutputs(tokens)
        most_likely = jnp.zeros((rows, self.max_logprobs))
        return SampleOutputs(tokens, jnp.zeros(rows), tokens, most_likely.astype(jnp.int32), most_likely)


def _clean(logits: Array, *, at_most: float) -> Array:
    """Logits without NaN, plus infinity, and minus zero, which top_k would order below zero."""
    finite = jnp.where(jnp.isnan(logits), -jnp.inf, jnp.minimum(logits, at_most))
    return jnp.where(finite == 0, 0.0, finite)
