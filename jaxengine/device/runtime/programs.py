"""The device programs of an engine as pure functions with fixed shapes.

A step calls `forward` and `sample`, and where the device drafts what `drafting.py` says; the others run when a sequence begins
that needs them, when its mask changes, when pages or states move, or before it shows something. `forward` is keyed by a bucket,
`sample` by a row count and a variant. What passes between them has one shape, the kept places of a step, so that their numbers
add and do not multiply.

On a CPU what can do all is apart from the logits (`SamplingShapes.logits_apart`), and so is compiled once for all row counts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from buckets import Bucket
from jaxengine.contract.sampling_params import MAX_LOGIT_BIAS
from jaxengine.device.layers.adapters import rows_by_group
from jaxengine.device.models.interface import LOGITS
from jaxengine.device.models.parameters import merge_some
from jaxengine.device.runtime.adapter_slots import adapter_names, adapter_programs
from jaxengine.device.runtime.alignment import alignment_names, alignment_programs
from jaxengine.device.runtime.block_moves import all_moved, move_programs
from jaxengine.device.runtime.drafting import draft_names, draft_programs
from jaxengine.device.runtime.encoder_programs import encoder_names, encoder_programs
from jaxengine.device.runtime.forward_programs import forward_names, forward_programs, hidden_struct, passages
from jaxengine.device.runtime.handover import return_passage
from jaxengine.device.runtime.passing import Passage
from jaxengine.device.runtime.program_kinds import HEAVY, ProgramKind
from jaxengine.device.runtime.sampling_shapes import SampleShape
from jaxengine.device.runtime.snapshots import snapshot_names, snapshot_programs
from jaxengine.device.runtime.space import ProgramSpace
from jaxengine.device.sampling import SampleInputs, SampleOutputs, Slots, sample
from jaxengine.device.sampling.slots import SETTINGS, write_bias, write_history, write_masks, write_settings
from xla_cache import Program

SLOTS_PER_LAUNCH = 16
SETTINGS_NAME, BIAS_NAME, MASKS_NAME, HISTORY_NAME = "write settings", "write bias", "write masks", "write history"


def sample_programs(space: ProgramSpace, hidden: jax.ShapeDtypeStruct) -> list[Program]:
    """The programs that `space.sampling.shapes` call, each once, of a place's `hidden [1, E]` (`hidden_struct`)."""
    programs = (program for shape in space.sampling.shapes for program in programs_of_shape(space, shape, hidden))
    return list({program.name: program for program in programs}.values())


def programs_of_shape(space: ProgramSpace, shape: SampleShape, hidden: jax.ShapeDtypeStruct) -> tuple[Program, ...]:
    """Those of `space.sampling.names`. The final projection belongs here, because it is padded by rows and not by tokens.

    One is `(parameters of no layer, hidden [K, E], kept, slots) -> (SampleOutputs, slots)`, of the first rows of `hidden` and
    `kept`. Two are `(parameters of no layer, hidden [K, E], kept, slots) -> slots`, which writes the first of `Slots.logits`, and
    `(kept, slots) -> (SampleOutputs, slots)`. Behind the parameters are the head's adapters where rows go through such.
    """

    def logits_of(parameters: tuple[jax.Array, ...], hidden: jax.Array, first: SampleInputs) -> jax.Array:
        through = rows_by_group(first.adapters, space.adapters.slots) if shape.adapters and space.adapters else None
        model = merge_some(space.graph, space.parameters, given, parameters)
        return model.heads[LOGITS](hidden[: shape.rows], through)  # type: ignore[no-any-return]

    def write_logits(parameters: tuple[jax.Array, ...], hidden: jax.Array, kept: SampleInputs, slots: Slots) -> Slots:
        logits = logits_of(parameters, hidden, kept.first(shape.rows)).astype(jnp.float32)
        return replace(slots, logits=jax.lax.dynamic_update_slice(slots.logits, logits, (0, 0)))

    def sample_from(logits: jax.Array, kept: SampleInputs, slots: Slots) -> tuple[SampleOutputs, Slots]:
        outputs, slots = sample(
            shape.variant,
            logits,
            kept,
            slots,
            max_logprobs=space.max_logprobs,
            layout=space.device_layout,
            num_drafts=space.num_drafts,
            platform=space.platform,
        )
        return space.everywhere(outputs), space.pinned(slots)

    def sample_written(kept: SampleInputs, slots: Slots) -> tuple[SampleOutputs, Slots]:
        return sample_from(slots.logits, kept, slots)

    def sample_rows(
        parameters: tuple[jax.Array, ...], hidden: jax.Array, kept: SampleInputs, slots: Slots
    ) -> tuple[SampleOutputs, Slots]:
        first = kept.first(shape.rows)
        return sample_from(logits_of(parameters, hidden, first), first, slots)

    given = (*space.outer, *space.parts.scoring) if shape.adapters else space.outer
    integers = space.replicated_struct((space.kept,), jnp.int32)
    kept = SampleInputs(
        slots=integers,
        positions=integers,
        targets=integers,
        writes=integers,
        count=space.replicated_struct((), jnp.int32),
        nth=integers if space.num_drafts else None,
        drafts=integers if space.num_drafts else None,
        adapters=integers if shape.adapters else None,
    )
    rows = space.replicated_struct((space.kept, *hidden.shape[1:]), hidden.dtype)
    of_rows = (space.structs(given), rows, kept)

    def sampling(name: str, function: Callable[..., Any], *arguments: Any, weight: float = shape.cost) -> Program:
        return space.program(
            name,
            function,
            (*arguments, space.slots),
            kind=ProgramKind.SAMPLE,
            donate=(len(arguments),),
            weight=weight,
            facts={
                "max_logprobs": space.max_logprobs,
                **({"num_drafts": space.num_drafts} if space.num_drafts else {}),
            },
            nodes=(SampleOutputs, Slots),
        )

    if not space.sampling.logits_apart(shape):
        return (sampling(shape.name, sample_rows, *of_rows),)
    logits_name, sample_name = space.sampling.names(shape)
    logits = space.program(
        logits_name,
        write_logits,
        (*of_rows, space.slots),
        kind=ProgramKind.LOGITS,
        donate=(len(of_rows),),
        weight=shape.rows,
        facts={},
        nodes=(Slots,),
    )
    # by row it takes longer to compile than a layer, and what begins last ends last
    return logits, sampling(sample_name, sample_written, replace(kept, adapters=None), weight=2 * HEAVY)


def slot_programs(space: ProgramSpace) -> list[Program]:
    """`(slots, what is written) -> slots`, as the functions of `sampling.slots` have it."""

    def settings(slots: Slots, rows: jax.Array) -> Slots:
        return space.pinned(write_settings(slots, rows))

    def bias(slots: Slots, row: jax.Array) -> Slots:
        return space.pinned(write_bias(slots, row))

    def masks(slots: Slots, rows: jax.Array) -> Slots:
        return space.pinned(write_masks(slots, rows))

    def history(slots: Slots, row: jax.Array) -> Slots:
        return space.pinned(write_history(slots, row, platform=space.platform, layout=space.device_layout))

    words = space.slots.allowed.shape[1]
    given = {
        SETTINGS_NAME: (settings, (SLOTS_PER_LAUNCH, 1 + len(SETTINGS)), jnp.int32),
        BIAS_NAME: (bias, (1 + 2 * MAX_LOGIT_BIAS,), jnp.int32),
        MASKS_NAME: (masks, (SLOTS_PER_LAUNCH, 1 + words), jnp.uint32),
        HISTORY_NAME: (history, (3 + space.history_tokens,), jnp.int32),
    }
    return [
        space.program(
            name,
            function,
            (space.slots, space.replicated_struct(extents, dtype)),
            kind=ProgramKind.WRITE,
            donate=(0,),
            facts={},
            nodes=(Slots,),
        )
        for name, (function, extents, dtype) in given.items()
    ]


def all_programs(space: ProgramSpace) -> list[Program]:
    """Every program that serving can ask for, on whichever host."""
    forwards = [program for bucket in space.grid.buckets for program in forward_programs(space, bucket)]
    hidden = hidden_struct(space)  # once, as it is traced and every start asks for it
    drafts = [program for bucket in space.grid.buckets for program in draft_programs(space, bucket, hidden)]
    moves = (*move_programs(space), *snapshot_programs(space))
    return [
        *forwards,
        *(program for passage in all_passages(space) for program in passage.programs()),
        *sample_programs(space, hidden),
        *drafts,
        *slot_programs(space),
        *adapter_programs(space),
        *moves,
        *encoder_programs(space),
        *alignment_programs(space),
    ]


def all_passages(space: ProgramSpace) -> list[Passage]:
    """The ways from mesh to mesh of a pipeline."""
    return [*passages(space).values(), return_passage(space)] if len(space.views) > 1 else []


def standing_bytes(space: ProgramSpace) -> int:
    """What a device holds for what other hosts pass to it, the most of any."""
    by_target: dict[int, int] = {}
    for passage in all_passages(space):
        mesh = passage.target.mesh or 0
        by_target[mesh] = by_target.get(mesh, 0) + passage.standing_bytes
    return max(by_target.values(), default=0)


def step_programs(space: ProgramSpace, bucket: Bucket) -> list[str]:
    """The names of the programs that a step of this bucket cannot do without, and of the sampling that suits it."""
    rows = {space.sampling.rows_for(min(bucket.batch, space.kept)), space.kept}
    samples = [name for shape in space.sampling.shapes if shape.rows in rows for name in space.sampling.names(shape)]
    moves = [name for moved in all_moved(space) if space.host_blocks for name in moved.names]
    writes = [SETTINGS_NAME, BIAS_NAME, MASKS_NAME, HISTORY_NAME, *adapter_names(space)]
    return [
        *samples,
        *writes,
        *moves,
        *snapshot_names(space),
        *encoder_names(space),
        *alignment_names(space),
        *forward_names(space, bucket),
        *draft_names(space, bucket),
    ]
