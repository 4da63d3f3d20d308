"""What the rows of a step hold, as the kernels of its layers read it from their scalars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.kernels import mesh_of
from buckets import Bucket
from jaxengine.errors import ConfigError
from pallas_kernels.paged_attention import tpu
from pallas_kernels.tpu.attention.schedule import make_tiles
from pallas_kernels.tpu.chip import target_chip

Shapes = Sequence[tuple[int, ...]]


@dataclass(frozen=True, kw_only=True)
class Filling:
    """A step of `bucket` that is full: of rows that decode at `context` positions, or of one prompt from its beginning.

    `heads`, `kv_heads` and `head_size` are those of one device. Layers that see a window are not told apart.
    """

    chip: str
    bucket: Bucket
    context: int
    heads: int
    kv_heads: int
    head_size: int

    @property
    def decodes(self) -> bool:
        return self.bucket.seq == 1

    @property
    def seen(self) -> int:
        """Positions that all queries of a head see together."""
        tokens = self.bucket.tokens
        return tokens * self.context if self.decodes else tokens * (tokens + 1) // 2

    @property
    def operations(self) -> int:
        """Of a layer's attention."""
        return 4 * self.heads * self.head_size * self.seen

    @property
    def read_bytes(self) -> int:
        """Of a layer's keys and values in bfloat16, each once."""
        positions = self.bucket.tokens * (self.context if self.decodes else 1)
        return 2 * 2 * self.kv_heads * self.head_size * positions

    def operands(self, kernel: str, shapes: Shapes) -> Mapping[int, Sequence[int]]:
        """The scalars of a kernel of that name, by the operand's index; none for one that has its loops fixed."""
        if kernel == "paged_attention":
            return self._attention(shapes)
        if kernel == "write_kv":
            return {0: self._slots(shapes[0][0])}
        return {}

    def _attention(self, shapes: Shapes) -> Mapping[int, Sequence[int]]:
        """The kernel's own order: page table, end of the tokens, tiles; then queries and pages."""
        queries, pages = shapes[9:11]
        rows, places = self.bucket.batch, self.bucket.tokens
        if queries[0] != places or shapes[0][0] % rows:
            raise ConfigError(f"attention takes {queries[0]} places at once, of {places}: another bucket is wanted")
        offsets = np.arange(rows + 1) if self.decodes else np.minimum(np.arange(rows + 1), 1) * places
        starts = np.full(rows, self.context - 1 if self.decodes else 0)
        with jax.set_mesh(mesh_of(self.chip)):
            chip = target_chip()
        assert chip is not None
        q = jax.ShapeDtypeStruct((places, self.heads, self.head_size), jnp.bfloat16)
        cuts = tpu.blocks_for(chip, q, jax.ShapeDtypeStruct(pages, jnp.bfloat16), self.kv_heads)
        assert cuts is not None
        tiles = make_tiles(
            jnp.asarray(offsets),
            jnp.asarray(starts),
            cuts,
            tokens=places,
            page_tokens=pages[1],
            window=None,
            cores=chip.cores,
        )
        given = [array for array in tiles if array is not None]
        scalars = [np.zeros(shapes[0][0], int), offsets[-1:], *given]
        return {index: [int(number) for number in np.asarray(values)] for index, values in enumerate(scalars)}

    def _slots(self, count: int) -> Sequence[int]:
        """A prompt's follow each other, rows lie apart; none is one of page 0."""
        return [(at + 1) * (self.context if self.decodes else 1) + self.context for at in range(count)]
