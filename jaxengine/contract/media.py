"""What a prompt shows beside its tokens: items made ready for an encoder, and where their embeddings stand.

The front makes a `MediaItem` of a picture, a sound or a video. The host finds room for its embeddings in a *pool* on the device,
pages of embeddings that are known by the item's digest, and has it encoded there (`Encoding`). A sequence that begins says which
places of its prompt take their embedding from where in the pool (`SlotMedia`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from buckets import Bucket
from jaxengine.contract.arrays import Floats, Int32s


class Modality(StrEnum):
    """As vLLM and `--limit-mm-per-prompt` name them."""

    IMAGE = "image"
    VIDEO = "video"
    AUDIO = "audio"


class Mosaic(NamedTuple):
    """How tiles are one picture again: `tiles` rows of them, of which `rows` by `columns` patches in the middle show it, as
    `out_rows` by `out_columns` embeddings with one more at the end of each row."""

    tiles: int
    rows: int
    columns: int
    out_rows: int
    out_columns: int

    @property
    def num_embeddings(self) -> int:
        return self.out_rows * (self.out_columns + 1)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class MediaItem:
    """A picture, a sound or a video as its encoder takes it.

    Items of one `digest` (32 bytes, of the content and of all that the processor was told) have the same embeddings. `patches`
    `[n, P]` are in the order in which the processor gives them, `grid` of them: frames, height and width, whose product is n.
    Embedding i of it stands at `places[i]` of the prompt, in increasing order. Behind these it has `unplaced` ones that stand
    nowhere: those that cross attention reads. A family that puts tiles together says how: its `mosaic`.

    Of an item whose embeddings are `given` these are `patches [n, W]`, and no encoder runs.
    """

    digest: bytes
    modality: Modality
    patches: Floats
    grid: tuple[int, int, int]
    places: Int32s
    unplaced: int = 0
    mosaic: Mosaic | None = None
    given: bool = False

    @property
    def num_embeddings(self) -> int:
        return len(self.places) + self.unplaced

    @property
    def num_rows(self) -> int:
        """Frames, or tiles of a picture, that see only themselves."""
        return self.grid[0]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PromptMedia:
    """The items of a prompt in the order of their places.

    Where rotary positions have several axes `axes int32 [A, prompt length]` are those of the prompt, and a token behind it at
    position p is at `p + offset` on each of them.
    """

    items: tuple[MediaItem, ...]
    axes: Int32s | None = None
    offset: int = 0


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SlotMedia:
    """Of a sequence that begins in a slot: what its prompt shows.

    The token at `places[i]` of the prompt has the embedding `embeddings[i]` of the pool (page times page size plus offset), -1
    where it will not be computed any more. The tokens of each of `spans int32 [k, 2]` (from, up to and without) see each other in
    both directions; a model whose items do not has none. `pages` are those that cross attention reads, in order, which hold
    `num_read` embeddings. `axes` and `offset` as of the prompt.
    """

    places: Int32s
    embeddings: Int32s
    spans: Int32s
    pages: Int32s | None = None
    num_read: int = 0
    axes: Int32s | None = None
    offset: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class ToEncode:
    """An item, and the pages of the pool that its embeddings are written to, one after the other."""

    item: MediaItem
    pages: Int32s


@dataclass(frozen=True, slots=True, eq=False)
class Encoding:
    """One launch of an encoder: at most `bucket.batch` rows (frames that see only themselves) with `bucket.tokens` patches.

    Launches are numbered from 1. Without a bucket the items' embeddings are `given`, and only written to their pages.
    """

    number: int
    bucket: Bucket | None
    items: tuple[ToEncode, ...]

    @property
    def num_patches(self) -> int:
        return sum(len(one.item.patches) for one in self.items)


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaFacts:
    """What an engine that sees or hears has for it.

    `buckets` are the shapes of its encoder's launches, each in rows and patches, the largest first; an item has at most
    `max_patches`. The pool has `num_pages` pages of `page_size` embeddings; page 0 is the sink of padding. With `sight` the
    tokens of an item see each other in both directions, so a row has whole items; with `crosses` decoding reads the pool itself,
    so items are held as long as their sequence, and where it `aligns` the model says where in a sound a text is heard.
    A model whose rotary positions have several has `num_axes`, others 0.
    Prompts may give embeddings themselves, of `given_width` numbers each; 0: they may not.
    """

    modalities: tuple[Modality, ...]
    buckets: tuple[Bucket, ...]
    num_pages: int
    page_size: int
    sight: bool = False
    crosses: bool = False
    aligns: bool = False
    num_axes: int = 0
    given_width: int = 0

    @property
    def max_patches(self) -> int:
        return max(bucket.tokens for bucket in self.buckets)

    def pages_of(self, num_embeddings: int) -> int:
        """How many pages so many embeddings take."""
        return -(-num_embeddings // self.page_size)
