"""How a kernel attends the rows of a step on a GPU, whatever the keys are: short rows by shares, longer ones by tiles."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from pallas_kernels.gpu.attention.blocks import Blocks
from pallas_kernels.gpu.attention.schedule import cut, make_rows, share_out
from pallas_kernels.gpu.attention.softmax import combine
from pallas_kernels.gpu.device import interpreted

Kernel = Callable[..., None]


def attend_rows(
    make_kernel: Callable[[tuple[int, ...], int, bool], Kernel],
    blocks: Blocks,
    operands: Sequence[jax.Array],
    offsets: jax.Array,
    starts: jax.Array,
    *,
    result: jax.ShapeDtypeStruct,
    tiles_of_heads: int,
    window: int | None,
    name: str,
) -> jax.Array:
    """Every row's result, of `result`'s shape `[N, heads, V]`.

    Rows of few tokens are attended by one kernel, whose programs share a row's context, and combined by a second; longer ones by
    a third one, which is left out where N makes them impossible. Memory beside the result: float32 states of few tokens'
    results, one for each share.

    Args:
        make_kernel: from the numbers of queries that a program may have, the tokens of a block, and whether it leaves states,
            what it does. Its refs are `Shares`, the operands, other rows' results if it leaves none, and what it leaves
            (`gpu_softmax.give`).
        blocks: how rows are cut.
        operands: what the kernel reads.
        offsets: of the rows, as in `paged_attention`.
        starts: likewise.
        result: what comes out.
        tiles_of_heads: how many programs attend the same tokens, the first axis of the grid.
        window: as in `paged_attention`.
        name: of the kernels.
    """
    few, many = blocks.few, blocks.many
    places, heads, _ = result.shape
    rows = make_rows(offsets, starts, places=places, block_tokens=few.block_tokens, window=window)

    def call(
        body: Kernel,
        operands: Sequence[jax.Array],
        results: Sequence[jax.ShapeDtypeStruct],
        *,
        grid: tuple[int, ...],
        warps: int = 4,
        aliases: Mapping[int, int] | None = None,
    ) -> Sequence[jax.Array]:
        called: Sequence[jax.Array] = pl.pallas_call(
            body,
            out_shape=results,
            grid=grid,
            input_output_aliases=aliases or {},
            compiler_params=plgpu.CompilerParams(num_warps=warps, num_stages=blocks.stages),
            interpret=interpreted(),
            name=name,
        )(*operands)
        return called

    shares, parts = share_out(rows, few)
    states = call(
        make_kernel(few.sizes, few.block_tokens, True),
        [*shares, *operands],
        [jax.ShapeDtypeStruct((few.states, *shape), jnp.float32) for shape in (result.shape[1:], (heads,), (heads,))],
        grid=(tiles_of_heads, few.shares),
        warps=few.warps,
    )
    (found,) = call(combine, [*parts, *states], [result], grid=(heads, rows.place.size))
    if many is None:
        return found
    tiles = cut(rows, many, longer_than=few.places, block_tokens=many.block_tokens, window=window)
    operands = [*tiles, *operands, found]
    (found,) = call(
        make_kernel((many.size,), many.block_tokens, False),
        operands,
        [result],
        grid=(tiles_of_heads, many.tiles),
        warps=many.warps,
        aliases={len(operands) - 1: 0},
    )
    return found
