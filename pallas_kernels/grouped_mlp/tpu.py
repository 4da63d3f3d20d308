"""Groups of a long prompt on a TPU in one kernel: reading their matrices hides taking rows, products, and adding rows up.

Rows and sums stay in VMEM, each row in registers of its own (`take_rows/tpu.py`), and the matrices of groups pass by once: those
of one are multiplied while another's are read. What rows have in between never leaves VMEM. Rows of a group are of different
places, so that some are loaded before any is stored.

`begin` is a kernel of its own that starts to read the first groups' matrices, while devices still send each other the rows. It
ends at once, with the room in VMEM and the semaphores on which the other kernel waits
(https://docs.jax.dev/en/latest/pallas/design/async_note.html).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.grouped_mlp import Begun
from pallas_kernels.storage import LANES
from pallas_kernels.tpu.channels import SOME_PLACES, channels_of, put_channel, put_channels
from pallas_kernels.tpu.chip import MIB, NO_TPU, SIMULATED, Chip, target_chip
from pallas_kernels.tpu.gates import gate_problem
from pallas_kernels.tpu.row_blocks import column, some

LEAST_PLACES = 512
"""Of fewer rows moves take less by other means."""
CHANNELS = 16
"""Of 128 numbers of bfloat16, that fill a register."""
FEWEST_ROWS, MOST_ROWS = 16, 256
"""Of a group, that are multiplied at once."""
COLUMNS = 256
"""Of a product, that are made at once."""
SLOTS = 2
"""Groups whose matrices are in VMEM at least."""
MOST_AHEAD_BYTES = 56 * MIB
"""Of matrices that `begin` has read. With the kernel that uses them they leave XLA some VMEM for what it keeps there.

Links of v6e-4 take 54 thousand cycles to gather 2,048 tokens of 2,048 numbers at their nominal rate, in which 51 MB are read.
"""
PLACES = 128
"""Rows of a block that is copied to VMEM or back."""


def supports(
    sums: Any,
    x: Any,
    matrices: Sequence[Any],
    sizes: Any,
    rows: Any,
    weights: Any,
    *,
    activated: Callable[[jax.Array, jax.Array], jax.Array],
    usual: int,
    begun: Begun | None = None,
) -> str | None:
    """None, or why not."""
    chip = target_chip()
    if chip is None:
        return NO_TPU
    if chip.cores > 1:
        return f"of {chip.cores} cores that share a program one would do all the work"
    if any(each.dtype != jnp.bfloat16 for each in (x, *matrices)):
        return f"x is {x.dtype}, matrices {[each.dtype for each in matrices]}; the TPU kernel multiplies bfloat16"
    if chip.name != SIMULATED and len(x) < LEAST_PLACES:
        return f"{len(x)} rows are few, which other kernels move"
    (count, columns), inner = x.shape, matrices[0].shape[2]
    if columns % (CHANNELS * LANES) or inner % LANES:
        return f"{columns} columns and {inner} in between do not fill registers of {CHANNELS} x {LANES}"
    if (problem := gate_problem(activated)) is not None:
        return problem
    slots = SLOTS if begun is None else len(begun.gate)
    if _vmem_bytes(count, columns, inner, block_rows(usual), slots) > chip.vmem_bytes * 7 // 8:
        return f"{count} rows of {columns} columns and matrices do not fit {chip.vmem_bytes} bytes of VMEM"
    if 8 * len(rows) > chip.smem_bytes // 2:
        return f"the numbers of {len(rows)} rows do not fit {chip.smem_bytes} bytes of SMEM"
    return None


def block_rows(usual: int) -> int:
    """Rows that are multiplied at once where a group usually has so many: also those of one that has half as many again.

    128 usual ones in blocks of 192 take 266 thousand bundles where blocks of 256 take 287 (v6e, 32 of Qwen3-30B-A3B's experts).
    """
    return min(MOST_ROWS, max(FEWEST_ROWS, pl.cdiv(usual + usual // 2, FEWEST_ROWS) * FEWEST_ROWS))


def grouped_mlp(
    sums: jax.Array,
    x: jax.Array,
    matrices: tuple[jax.Array, jax.Array, jax.Array],
    sizes: jax.Array,
    rows: jax.Array,
    weights: jax.Array,
    *,
    activated: Callable[[jax.Array, jax.Array], jax.Array],
    usual: int,
    begun: Begun | None = None,
) -> jax.Array:
    """See the op's contract."""
    chip = target_chip()
    assert chip is not None  # `supports` has seen to it
    return _run(chip, activated, block_rows(usual), sums, x, matrices, sizes, rows, weights, begun)


def slots_ahead(places: int, matrices: Sequence[Any], *, usual: int) -> int:
    """See the contract."""
    chip = target_chip()
    if chip is None or chip.name == SIMULATED:
        return 0
    groups, columns, inner = matrices[0].shape
    left = chip.vmem_bytes * 7 // 8 - _vmem_bytes(places, columns, inner, block_rows(usual), slots=0)
    slots = min(groups, min(left, MOST_AHEAD_BYTES) // _matrix_bytes(columns, inner))
    return slots if slots >= SLOTS else 0


def begin(x: jax.Array, *matrices: jax.Array, slots: int) -> tuple[jax.Array, ...]:
    """See the contract."""
    anywhere, hbm = pl.BlockSpec(memory_space=pl.ANY), pl.BlockSpec(memory_space=pltpu.HBM)
    room = [pltpu.VMEM((slots, *matrix.shape[1:]), matrix.dtype) for matrix in matrices]
    started: tuple[jax.Array, ...] = pl.pallas_call(
        _begin_kernel,
        name="begin_grouped_mlp",
        in_specs=[anywhere, hbm, hbm, hbm],
        out_specs=[anywhere, *_specs_of_begun()],
        out_shape=[jax.ShapeDtypeStruct(x.shape, x.dtype), *room, pltpu.SemaphoreType.DMA((3 * slots,))],
        input_output_aliases={0: 0},
        compiler_params=pltpu.CompilerParams(has_side_effects=True),
    )(x, *(pltpu.with_memory_space_constraint(matrix, pltpu.HBM) for matrix in matrices))
    return tuple(started)


def _specs_of_begun() -> list[Any]:
    return [*[pl.BlockSpec(memory_space=pltpu.VMEM)] * 3, pl.BlockSpec(memory_space=pltpu.SEMAPHORE)]


def _begin_kernel(_: Any, gates: Any, ups: Any, downs: Any, same: Any, *room: Any) -> None:
    *targets, arrived = room
    for slot in range(len(targets[0])):
        for copy in _copies(slot, slot, (gates, ups, downs), targets, arrived):
            copy.start()


def _copies(group: Any, slot: Any, matrices: Sequence[Any], room: Sequence[Any], arrived: Any) -> list[Any]:
    """Of a group's matrices, to a slot of the room for them."""
    slots = len(room[0])
    return [
        pltpu.make_async_copy(source.at[group], target.at[slot], arrived.at[number * slots + slot])
        for number, (source, target) in enumerate(zip(matrices, room, strict=True))
    ]


@functools.partial(jax.jit, static_argnums=(0, 1, 2))  # layers share what takes a while to trace
def _run(
    chip: Chip,
    activated: Callable[[jax.Array, jax.Array], jax.Array],
    block: int,
    sums: jax.Array,
    x: jax.Array,
    matrices: tuple[jax.Array, jax.Array, jax.Array],
    sizes: jax.Array,
    rows: jax.Array,
    weights: jax.Array,
    begun: Begun | None,
) -> jax.Array:
    (count, columns), (groups, _, inner) = x.shape, matrices[0].shape
    laid = pl.cdiv(count, PLACES)
    # Those come first whose matrices are read: of groups that have rows, and what is begun.
    read = sizes > 0
    if begun is not None:
        read |= jnp.arange(groups) < len(begun.gate)
    order = jnp.argsort(~read, stable=True).astype(jnp.int32)
    starts = (jnp.cumsum(sizes) - sizes)[order]
    used = read.sum(keepdims=True, dtype=jnp.int32)
    padding = (0, SOME_PLACES)

    def of_given(step: Any, *scalars: Any) -> tuple[Any, ...]:
        return jnp.minimum(step, laid - 1), 0

    def of_found(step: Any, *scalars: Any) -> tuple[Any, ...]:
        return jnp.maximum(step - laid - groups, 0), 0

    def where_it_lies(matrix: jax.Array) -> jax.Array:
        return matrix if chip.name == SIMULATED else pltpu.with_memory_space_constraint(matrix, pltpu.HBM)

    channels = columns // LANES
    handed = [] if begun is None else [part for part in begun if part is not None]
    slots = len(handed[0]) if handed else SLOTS
    room = [pltpu.VMEM((slots, *matrix.shape[1:]), x.dtype) for matrix in matrices]
    found: jax.Array = pl.pallas_call(
        functools.partial(
            _kernel,
            activated=activated,
            laid=laid,
            groups=groups,
            handed=len(handed),
            simulated=chip.name == SIMULATED,
        ),
        name="grouped_mlp",
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=6,
            grid=(2 * laid + groups,),
            in_specs=[
                pl.BlockSpec((PLACES, columns), of_given),
                pl.BlockSpec((PLACES, columns), of_given),
                *[pl.BlockSpec(memory_space=pltpu.HBM)] * 3,
                *_specs_of_begun()[: len(handed)],
            ],
            out_specs=pl.BlockSpec((PLACES, columns), of_found),
            scratch_shapes=[
                *[*room, pltpu.SemaphoreType.DMA((3 * slots,))][len(handed) :],
                pltpu.VMEM((laid * PLACES, channels, LANES), x.dtype),
                pltpu.VMEM((laid * PLACES + 1, channels, LANES), jnp.float32),
                pltpu.VMEM((SOME_PLACES, channels, LANES), x.dtype),
                pltpu.VMEM((block, columns), x.dtype),
                pltpu.VMEM((block, inner), x.dtype),
                pltpu.VMEM((block, channels, LANES), jnp.float32),
            ],
        ),
        out_shape=jax.ShapeDtypeStruct(sums.shape, sums.dtype),
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("arbitrary",),
            vmem_limit_bytes=min(
                chip.vmem_bytes * 15 // 16,
                _vmem_bytes(count, columns, inner, block, slots=0 if handed else slots) + 4 * MIB,
            ),
        ),
    )(
        order,
        starts,
        sizes[order],
        used,
        jnp.pad(jnp.clip(rows, 0, count - 1), padding),
        jnp.pad(weights, padding),
        x,
        sums,
        *map(where_it_lies, matrices),
        *handed,
    )
    return found


def _kernel(
    order: Any,
    starts: Any,
    sizes: Any,
    used: Any,
    rows: Any,
    weights: Any,
    x: Any,
    sums: Any,
    gates: Any,
    ups: Any,
    downs: Any,
    *others: Any,
    activated: Callable[[jax.Array, jax.Array], jax.Array],
    laid: int,
    groups: int,
    handed: int,
    simulated: bool,
) -> None:
    """Rows of `x` and `sums` are laid out first, block by block; then come the groups, and at last the sums go to `found`.

    So many parts of `Begun` are `handed`; the other ones of room and semaphores are scratch.
    """
    from_begin, (found, *own) = others[:handed], others[handed:]
    gate, up, down, flags, held, held_sums, taken, given, inner, made = (*from_begin, *own)
    slots, begun = len(gate), handed == len(Begun._fields)
    step, (block, columns), channels = pl.program_id(0), given.shape, range(held.shape[1])
    nowhere = held_sums.shape[0] - 1

    def copies(visit: Any) -> list[Any]:
        return _copies(order[visit], visit % slots, (gates, ups, downs), (gate, up, down), flags)

    def start(visit: Any) -> None:
        @pl.when(visit < used[0])
        def _() -> None:
            for copy in copies(visit):
                copy.start()

    @pl.when((step == 0) & (not begun))
    def start_first() -> None:
        for visit in range(slots):
            start(visit)

    @pl.when(step < laid)
    def lay_out() -> None:
        @pl.loop(0, x.shape[0], step=SOME_PLACES)
        def lay_some(at: jax.Array) -> None:
            place = some(step * x.shape[0] + at)
            for source, target in ((x, held), (sums, held_sums)):
                values = (source[some(at), column(channel)].astype(jnp.float32) for channel in channels)
                put_channels(target.at[place], values, simulated=simulated)

    def take(first: Any, left: Any) -> None:
        """The rows from number `first` on, to `given`."""

        @pl.loop(0, pl.cdiv(left, SOME_PLACES))
        def take_some(chunk: jax.Array) -> None:
            at = chunk * SOME_PLACES
            loaded = [held[rows[first + at + number]] for number in range(SOME_PLACES)]
            for number, row in enumerate(loaded):
                taken[number] = row
            for channel, values in enumerate(channels_of(taken, simulated=simulated)):
                given[some(at), column(channel)] = values

    def multiply(slot: Any) -> None:
        """What the group gives for the rows in `given`, to `made`."""

        @_each_columns(inner.shape[1])
        def _(own: Any, at: Any) -> None:
            products = (
                jnp.dot(given[...], matrix[slot, :, own], preferred_element_type=jnp.float32) for matrix in (gate, up)
            )
            inner[:, own] = activated(*products).astype(inner.dtype)

        @_each_columns(columns)
        def _(own: Any, at: Any) -> None:
            product = jnp.dot(inner[...], down[slot, :, own], preferred_element_type=jnp.float32)
            first = at * (own.size // LANES)
            for number, values in enumerate(jnp.split(product, own.size // LANES, axis=1)):
                put_channel(made, first + number, values, simulated=simulated)

    def add(first: Any, left: Any) -> None:
        """The rows in `made`, to their sums."""

        @pl.loop(0, pl.cdiv(left, SOME_PLACES))
        def add_some(chunk: jax.Array) -> None:
            at = chunk * SOME_PLACES

            def added(row: int) -> tuple[jax.Array, jax.Array]:
                number = first + at + row
                place = jnp.where(at + row < left, rows[number], nowhere)
                return place, held_sums[place] + weights[number] * made[at + row]

            for place, sum_ in list(map(added, range(SOME_PLACES))):
                held_sums[place] = sum_

    visit = step - laid

    @pl.when((visit >= 0) & (visit < used[0]))
    def visit_group() -> None:
        for copy in copies(visit):
            copy.wait()

        @pl.loop(0, sizes[visit], step=block)
        def _(first: jax.Array) -> None:
            left = jnp.minimum(sizes[visit] - first, block)
            take(starts[visit] + first, left)
            multiply(visit % slots)
            add(starts[visit] + first, left)

        start(visit + slots)

    @pl.when(step >= laid + groups)
    def give() -> None:
        @pl.loop(0, found.shape[0], step=SOME_PLACES)
        def give_some(at: jax.Array) -> None:
            own = held_sums.at[some((step - laid - groups) * found.shape[0] + at)]
            for channel, values in enumerate(channels_of(own, simulated=simulated)):
                found[some(at), column(channel)] = values.astype(found.dtype)


def _each_columns(count: int) -> Callable[[Callable[[Any, Any], None]], None]:
    """Calls with slices of so many columns, and their numbers, one after the other."""
    size = COLUMNS if count % COLUMNS == 0 else LANES

    def call(function: Callable[[Any, Any], None]) -> None:
        @pl.loop(0, count // size)
        def _(at: jax.Array) -> None:
            function(pl.ds(pl.multiple_of(at * size, size), size), at)

    return call


def _vmem_bytes(count: int, columns: int, inner: int, block: int, slots: int) -> int:
    """Of rows and sums, of blocks, two of each that is copied while another is in use, of matrices, and of what is made."""
    whole = columns * (6 * (count + PLACES) + 2 * (2 + 4 + 4) * PLACES)
    return whole + slots * _matrix_bytes(columns, inner) + block * (6 * columns + 2 * inner)


def _matrix_bytes(columns: int, inner: int) -> int:
    """Of a group's three."""
    return 3 * 2 * columns * inner
