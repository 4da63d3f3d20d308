"""What the rows of a step hold, as kernels read it from their scalars, and the least that mixing tokens takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.kernels import mesh_of
from benchmarks.recurrences import Layer
from buckets import Bucket
from jaxengine.device.models.config.decoder_config import DecoderConfig
from jaxengine.device.models.shared.latent import LatentConfig
from jaxengine.errors import ConfigError
from pallas_kernels.grouped_scaled_matmul import tpu_few, tpu_group_sums
from pallas_kernels.latent_attention import tpu as latent_tpu
from pallas_kernels.paged_attention import tpu as paged_tpu
from pallas_kernels.tpu.attention.blocks import Blocks
from pallas_kernels.tpu.attention.schedule import make_tiles
from pallas_kernels.tpu.chip import Chip, target_chip

Shapes = Sequence[tuple[int, ...]]
Scalars = Mapping[int, Sequence[int]]


@dataclass(frozen=True)
class Rows:
    """A step of `bucket` that is full: of rows that decode at `context` positions, or of one prompt from its beginning."""

    bucket: Bucket
    context: int

    @property
    def decode(self) -> bool:
        return self.bucket.seq == 1

    @property
    def offsets(self) -> np.ndarray:
        rows, tokens = self.bucket.batch, self.bucket.tokens
        return np.arange(rows + 1) if self.decode else np.minimum(np.arange(rows + 1), 1) * tokens

    @property
    def starts(self) -> np.ndarray:
        return np.full(self.bucket.batch, self.context - 1 if self.decode else 0)

    def positions(self, window: int | None) -> int:
        """Of which keys and values are read, each once."""
        if self.decode:
            return self.bucket.tokens * min(self.context, window or self.context)
        return self.bucket.tokens

    def seen(self, window: int | None) -> int:
        """Positions that all tokens see together."""
        if self.decode:
            return self.positions(window)
        tokens = self.bucket.tokens
        within = min(window or tokens, tokens)
        return within * (within + 1) // 2 + (tokens - within) * within


class Mixer(Protocol):
    """What lets tokens see others in a layer, on one device."""

    def operations(self, rows: Rows) -> float: ...

    def moved_bytes(self, rows: Rows) -> float:
        """Of what is kept of sequences, each once."""
        ...


@dataclass(frozen=True)
class Attention:
    """Of heads; keys and values in bfloat16."""

    heads: int
    kv_heads: int
    head_size: int
    window: int | None = None

    def operations(self, rows: Rows) -> float:
        return 4 * self.heads * self.head_size * rows.seen(self.window)

    def moved_bytes(self, rows: Rows) -> float:
        return 2 * 2 * self.kv_heads * self.head_size * rows.positions(self.window)


@dataclass(frozen=True)
class Latents:
    """Of heads that see one vector of `size` numbers a token, the first `rank` of which are what they take.

    All devices have all vectors, and need not all read those of a row: `devices` that have so many heads each share them.
    """

    heads: int
    size: int
    rank: int
    devices: int

    def operations(self, rows: Rows) -> float:
        return 2 * self.heads * (self.size + self.rank) * rows.seen(None)

    def moved_bytes(self, rows: Rows) -> float:
        return 2 * self.size * rows.positions(None) / self.devices


@dataclass(frozen=True)
class Recurrence:
    """Of states, each of which a row reads and writes."""

    layer: Layer

    def operations(self, rows: Rows) -> float:
        return 0 if rows.decode else self.layer.operations(rows.bucket.tokens)

    def moved_bytes(self, rows: Rows) -> float:
        if rows.decode:
            return 2 * rows.bucket.batch * self.layer.state_bytes
        return self.layer.state_bytes + rows.bucket.tokens * self.layer.token_bytes()


def mixers(config: Any, devices: int) -> tuple[Mixer, ...]:
    """Those of a model's layers, in their order.

    Raises:
        ConfigError: a kind of layer that has no figures here.
    """
    if not isinstance(config, DecoderConfig) or config.tower is not None:
        raise ConfigError(f"--schedules takes decoders of text, got {type(config).__name__}")
    recurrent, net = getattr(config, "recurrent", ()), getattr(config, "delta_net", None)
    if recurrent and net is None:
        raise ConfigError(f"--schedules takes recurrences that are delta rules, got {type(config).__name__}")
    if isinstance(config, LatentConfig):
        latent = config.attention
        if recurrent or latent.indexer is not None:
            raise ConfigError("--schedules takes latent attention to all positions in all layers; use another model")
        return (Latents(config.num_heads // devices, latent.latent, latent.rank, devices),) * config.num_layers
    windows = config.windows or (None,) * config.num_layers
    heads, kv_heads = config.num_heads // devices, max(1, config.num_kv_heads // devices)
    found: list[Mixer] = [Attention(heads, kv_heads, config.head_dim, window) for window in windows]
    for number in recurrent:
        keys, values = net.key_heads // devices, net.heads // devices
        found[number] = Recurrence(Layer(keys=keys, heads=values, size=net.value_size, state=net.key_size, learns=True))
    return tuple(found)


@dataclass(frozen=True)
class Filling:
    """A full step on one device of `chip`, whose layers have these `mixers`.

    Of `pairs` of a token and one of `experts` this device has its part. As many experts are touched as choices by chance would
    touch, as in the bound; those have as many pairs each.
    """

    chip: str
    rows: Rows
    mixers: tuple[Mixer, ...]
    pairs: int = 0
    experts: int = 0
    devices: int = 1
    spread: ClassVar[int] = 5
    """Tokens from one pair of an expert to the next."""

    def mixing(self, *, bytes_per_cycle: float, flops_per_cycle: float) -> float:
        """The least cycles of all mixers: of their products or of what they move."""
        return sum(
            max(of.operations(self.rows) / flops_per_cycle, of.moved_bytes(self.rows) / bytes_per_cycle)
            for of in self.mixers
        )

    def operands(self, kernel: str, before: int, shapes: Shapes) -> Scalars:
        """The scalars of a kernel of that name, by the operand's index; none for one that has its loops fixed."""
        if kernel == "paged_attention":
            attention = [of for of in self.mixers if isinstance(of, Attention)]
            return self._attention(attention[before], shapes)
        if kernel == "latent_attention":
            return self._latents(shapes)
        if kernel in ("write_kv", "write_latents"):
            return {0: self._slots(shapes[0][0])}
        if kernel in ("rows_of_one_token", "longer_rows"):
            rows = self.rows
            return _listed([np.arange(rows.bucket.batch) + 1, rows.starts, rows.offsets])
        if kernel.startswith("ragged-dot"):
            return self._ragged(shapes) if len(shapes) > 1 else {}
        if kernel == "grouped_scaled_matmul":
            return self._blocks(shapes)
        if kernel == "few_grouped_scaled_matmul":
            return self._visits(shapes)
        if kernel == "float8_grouped_matmul":
            return self._small_visits(shapes)
        if kernel == "take_rows":
            (rows,), (places, _) = shapes[0], shapes[2]
            return _listed([np.arange(rows) * self.spread % places, np.array([self._used(rows)])])
        if kernel == "sum_rows":
            (rows,), (places, _) = shapes[0], shapes[4]
            apart = np.zeros(shapes[2][0], int)
            return _listed([np.arange(rows) * self.spread % places, np.ones(rows), apart, np.array([self._used(rows)])])
        if kernel == "grouped_mlp":
            (groups,), (rows,), (places, _) = shapes[0], shapes[4], shapes[6]
            sizes = self._sizes(groups)  # touched ones come first
            starts, used = np.cumsum(sizes) - sizes, np.array([np.count_nonzero(sizes)])
            return _listed(
                [np.arange(groups), starts, sizes, used, np.arange(rows) * self.spread % places, np.ones(rows)]
            )
        return {}

    def _used(self, rows: int) -> int:
        """Of rows of pairs. Blocks of one group each have gaps, and may all be in use."""
        own = self.pairs // self.devices
        return own if rows < 2 * own else rows

    def _attention(self, mixer: Attention, shapes: Shapes) -> Scalars:
        queries, pages = shapes[9:11]
        q = jax.ShapeDtypeStruct((queries[0], mixer.heads, mixer.head_size), jnp.bfloat16)
        chip = self._chip()
        cuts = paged_tpu.blocks_for(chip, q, jax.ShapeDtypeStruct(pages, jnp.bfloat16), mixer.kv_heads, mixer.window)
        return self._tiles(chip, cuts, shapes, page_tokens=pages[1], window=mixer.window)

    def _latents(self, shapes: Shapes) -> Scalars:
        queries, pages = shapes[9:11]
        mixer = next(of for of in self.mixers if isinstance(of, Latents))
        exchanged = self.rows.bucket.tokens // queries[0]  # devices that exchange heads for tokens
        q = jax.ShapeDtypeStruct((queries[0], mixer.heads * exchanged, mixer.size), jnp.bfloat16)
        stored = jax.ShapeDtypeStruct((pages[0], 1, *pages[1:]), jnp.bfloat16)
        chip = self._chip()
        cuts = latent_tpu.blocks_for(chip, q, stored, mixer.rank)
        return self._tiles(chip, cuts, shapes, page_tokens=pages[1], window=None)

    def _tiles(
        self, chip: Chip, cuts: tuple[Blocks, ...] | None, shapes: Shapes, *, page_tokens: int, window: int | None
    ) -> Scalars:
        """The kernels' own order: page table, end of the tokens, tiles; then queries and pages."""
        rows, places = self.rows, shapes[9][0]
        if rows.bucket.tokens % places or shapes[0][0] % rows.bucket.batch:
            raise ConfigError(f"attention takes {places} places at once, of {rows.bucket.tokens}: use another bucket")
        assert cuts is not None
        offsets = np.minimum(rows.offsets, places)
        tiles = make_tiles(
            jnp.asarray(offsets),
            jnp.asarray(rows.starts),
            cuts,
            tokens=places,
            page_tokens=page_tokens,
            window=window,
            cores=chip.cores,
        )
        given = [np.asarray(array) for array in tiles if array is not None]
        return _listed([np.zeros(shapes[0][0], int), offsets[-1:], *given])

    def _chip(self) -> Chip:
        with jax.set_mesh(mesh_of(self.chip)):
            chip = target_chip()
        assert chip is not None
        return chip

    def _slots(self, count: int) -> Sequence[int]:
        """A prompt's follow each other from the beginning of a page on, rows lie apart; none is one of page 0."""
        context = self.rows.context
        return [at * (context if self.rows.decode else 1) + context for at in range(count)]

    def _sizes(self, groups: int) -> np.ndarray:
        """Rows of each of this device's experts."""
        tokens = self.rows.bucket.tokens
        missed = (1 - self.pairs / tokens / self.experts) ** tokens
        touched = max(1, round(groups * (1 - missed)))
        sizes = np.diff(np.arange(touched + 1) * (self.pairs * groups // self.experts) // touched)
        return np.pad(sizes, (0, groups - touched))

    def _ragged(self, shapes: Shapes) -> Scalars:
        """XLA's kernel: how many visits there are, where groups begin, each visit's group, and its tile of rows."""
        groups, visits = shapes[6][0], shapes[2][0]
        tile = shapes[5][0] // (visits - groups + 1)
        sizes = self._sizes(groups)
        ends = np.cumsum(sizes)
        tiles = [
            (group, at)
            for group in range(groups)
            if sizes[group]
            for at in range((ends[group] - sizes[group]) // tile, (ends[group] - 1) // tile + 1)
        ]
        padding = [(0, 0)] * (visits - len(tiles))
        group_of, tile_of = np.array(tiles + padding).T
        begins = np.concatenate([[0], ends])
        return _listed([np.array([len(tiles)]), begins, group_of, tile_of, np.array([0])])

    def _blocks(self, shapes: Shapes) -> Scalars:
        """This project's kernel: the group of each block of rows, and how many are used."""
        count, groups = shapes[0][0], shapes[3][0]
        block = shapes[2][0] // count
        blocks_of = -(-self._sizes(groups) // block)
        used = np.repeat(np.arange(groups), blocks_of)
        return _listed([np.pad(used, (0, count - len(used)), mode="edge"), np.array([len(used)])])

    def _visits(self, shapes: Shapes) -> Scalars:
        """The same for few rows: how many visits there are, each one's group and rows, and windows or the rows that are taken."""
        given, (places, _), (groups, *_) = shapes[4][0], *shapes[5:7]
        taken = shapes[1][0] == groups
        window = None if taken else tpu_few.window_rows(places, groups)
        sizes = jnp.asarray(self._sizes(groups), jnp.int32)
        scalars = tpu_few.visits(sizes, places=given if taken else places, window=window)
        return _listed([*map(np.atleast_1d, scalars), *([np.arange(given) % places] if taken else [])])

    def _small_visits(self, shapes: Shapes) -> Scalars:
        """And for fewer still, which are taken one by one."""
        (visits,), (rows,), (count, _), _, (groups, *_) = shapes[1], *shapes[4:8]
        sizes = jnp.asarray(self._sizes(groups), jnp.int32)
        window = next(size for size in (tpu_group_sums.FEW, tpu_group_sums.MORE) if groups + rows // size == visits)
        *scalars, _ = tpu_few.visits(sizes, places=rows, window=window, tile=1)
        return _listed([*map(np.atleast_1d, scalars), np.arange(rows) % count])


def _listed(scalars: Sequence[np.ndarray]) -> Scalars:
    return {index: [int(number) for number in values] for index, values in enumerate(scalars)}
