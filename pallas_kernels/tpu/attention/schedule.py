"""What the TPU kernel does and in which order, as scalars: computed by XLA, read by the kernel from its scalar memory."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.tpu.attention.blocks import Blocks


class Tiles(NamedTuple):
    """Tiles of rows, first those of the first cut; int32. All but `bounds` have an entry for each tile that there may be.

    A cut's tiles that there are come first, in order; the others are empty, and at least one is.

    Blocks lie at fixed positions of the sequence, so that a token's sums do not depend on how its row was cut.
    """

    row: jax.Array
    place: jax.Array  # flat place of the tile's first token
    start: jax.Array  # its position
    end: jax.Array  # position after the tile's last token; 0 for an empty tile
    low: jax.Array  # the first position that any of its tokens sees
    buffer: jax.Array  # which of the two buffers holds its first block
    bounds: jax.Array  # [cuts * (cores + 1)], by cut each core's first tile, and the one after the last core's last
    seen: jax.Array | None = (
        None  # position after the last that any token sees, where that is not its own; 0 for an empty tile
    )

    @property
    def stop(self) -> jax.Array:
        """Position after the last that any of a tile's tokens sees; 0 for an empty tile."""
        return self.end if self.seen is None else self.seen


def make_tiles(
    offsets: jax.Array,
    starts: jax.Array,
    cuts: tuple[Blocks, ...],
    *,
    tokens: int,
    page_tokens: int,
    window: int | None,
    until: jax.Array | None = None,
    cores: int,
) -> Tiles:
    """Cut rows of `tokens` places in all into the tiles of `cuts`. `until` as in `paged_attention`."""
    rows = starts.shape[0]
    counts = offsets[1:] - offsets[:-1]
    ends = empty_tiles(cuts, rows=rows, tokens=tokens)
    sizes = np.diff([0, *(end + 1 for end in ends)])
    cut = np.repeat(np.arange(len(cuts)), sizes)  # of each tile, as what follows
    index = np.concatenate([np.arange(size) for size in sizes])
    places = np.array([blocks.places for blocks in cuts])
    block_tokens = np.array([blocks.pages * page_tokens for blocks in cuts])[cut]

    least, above = (
        np.array([[limit(blocks)] for blocks in cuts])
        for limit in (lambda blocks: blocks.lengths.start, lambda blocks: blocks.lengths.stop)
    )
    of_row = jnp.where((counts >= least) & (counts < above), -(-counts // places[:, None]), 0)  # [cuts, B]
    upto = jnp.sum(jnp.where(np.tri(rows, dtype=bool), of_row[:, None], 0), axis=2)
    row = jnp.sum(upto[cut] <= index[:, None], axis=1, dtype=jnp.int32)
    is_row = row[:, None] == jnp.arange(rows)  # a gather of scalars takes longer than these few sums

    def taken(values: jax.Array) -> jax.Array:
        return jnp.sum(jnp.where(is_row, values, 0), axis=1, dtype=jnp.int32)

    skipped = (index - taken((upto - of_row)[cut])) * places[cut]  # tokens of the row in tiles before
    real = row < rows
    start = jnp.where(real, taken(starts) + skipped, 0)
    end = jnp.where(real, start + jnp.minimum(taken(counts) - skipped, places[cut]), 0)
    place = jnp.where(real, taken(offsets[:-1]) + skipped, 0)
    seen = None if until is None else jnp.where(real, until.at[place + end - start - 1].get(mode="clip") + 1, 0)
    low = jnp.zeros_like(start) if window is None else jnp.maximum(start - window + 1, 0)

    num_blocks = -(-(end if seen is None else seen) // block_tokens) - low // block_tokens
    done = jnp.sum(jnp.where(_not_after(cut), num_blocks, 0), axis=1)
    total = jnp.stack([done[end] for end in ends])
    share = (jnp.arange(cores + 1) * total[:, None])[:, :, None]  # blocks after which a core's work begins
    middle_is_before = (2 * done - num_blocks) * cores <= 2 * share
    before = real & (cut == np.arange(len(cuts))[:, None])[:, None] & middle_is_before
    bounds = jnp.sum(before, axis=2) + (np.array(ends) + 1 - sizes)[:, None]
    return Tiles(
        *(
            array.astype(jnp.int32)
            for array in (
                jnp.where(real, row, 0),
                place,
                start,
                end,
                low,
                (done - num_blocks) % 2,
                bounds.reshape(-1),
            )
        )
    )._replace(seen=seen)


def empty_tiles(cuts: tuple[Blocks, ...], *, rows: int, tokens: int) -> tuple[int, ...]:
    """The last tile of each cut, which is always empty."""
    sizes = []
    for blocks in cuts:
        most_rows = min(rows, tokens // blocks.lengths.start)
        sizes.append(most_rows + 1 + (tokens // blocks.places if blocks.lengths[-1] > blocks.places else 0))
    return tuple(int(size) - 1 for size in np.cumsum(sizes))


def _not_after(cut: np.ndarray) -> np.ndarray:
    """Whether a tile (the second axis) is of the same cut as another and not after it."""
    return np.tri(len(cut), dtype=bool) & (cut[:, None] == cut)
