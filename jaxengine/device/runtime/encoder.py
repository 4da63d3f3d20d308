"""The encoder of a model that sees or hears, and the pool that its embeddings are written to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from buckets import Bucket
from jaxengine.contract.arrays import Int32s
from jaxengine.contract.media import Encoding, ToEncode
from jaxengine.device.models.towers.places import ItemGrid, Places, padded
from jaxengine.device.models.towers.step import TowerStep
from jaxengine.device.runtime.encoder_programs import GIVEN_NAME, GIVEN_PER_LAUNCH, EncoderRoom, encoder_stages
from jaxengine.device.runtime.media_space import MediaSpace
from jaxengine.device.runtime.space import ProgramSpace
from jaxengine.device.runtime.transfer import put

Call = Callable[..., Any]


class EmbeddingPool:
    """The embeddings on the device, `array [pages * page size, W]`; None of a model that neither sees nor hears."""

    def __init__(self, space: ProgramSpace) -> None:
        self._space = space
        self.array: jax.Array | None = None

    def allocate(self) -> None:
        """An empty one. The first time this compiles what makes zeros."""
        self.array = None if self._space.embeddings is None else self._space.empty_state.embedding_pool()

    def free(self) -> None:
        """Give the device's memory back."""
        if self.array is not None and not self.array.is_deleted():
            self.array.delete()


class Encoder:
    """Runs the encoder's programs with a model's parameters, in the order of `space.parameters`."""

    def __init__(self, space: ProgramSpace, parameters: Sequence[jax.Array], pool: EmbeddingPool) -> None:
        self._space, self._pool = space, pool
        self._stages = (
            []
            if space.media is None
            else [(stage, tuple(parameters[number] for number in stage.parameters)) for stage in encoder_stages(space)]
        )

    def encode(self, encoding: Encoding, call: Call) -> None:
        """Launch the encoder; return without waiting.

        Raises:
            RuntimeError: the model has none.
            ValueError: the items do not fit the bucket or their pages, or there is no such bucket.
        """
        media = self._space.media
        if media is None:
            raise RuntimeError(f"the model has no encoder for {len(encoding.items)} items")
        if encoding.bucket is None:
            for one in encoding.items:
                self._write(one.item.patches, _targets(one, media.page_size), call)
            return
        if encoding.bucket not in media.buckets:
            raise ValueError(
                f"no encoder was planned for {encoding.bucket}; there are {', '.join(map(str, media.buckets))}"
            )
        room = EncoderRoom.of(media, encoding.bucket)
        self._run(encoding.bucket, *launch_of(media, encoding, room), call)

    def run_once(self, call: Call) -> None:
        """Call each program, on nothing."""
        media = self._space.media
        for bucket in () if media is None else media.buckets:
            assert media is not None
            self._run(bucket, *empty_launch(media, EncoderRoom.of(media, bucket)), call, once=True)
        if media is not None and media.takes_given:
            self._write(np.zeros((1, media.traits.width), np.float32), np.array([-1], np.int32), call)

    def _write(self, embeddings: NDArray[np.float32], targets: Int32s, call: Call) -> None:
        """Embeddings that are given, to the rows `targets` of the pool; those of -1 go nowhere."""
        assert self._space.media is not None
        nowhere = self._space.media.num_pages * self._space.media.page_size
        for first in range(0, len(targets), GIVEN_PER_LAUNCH):
            these = slice(first, first + GIVEN_PER_LAUNCH)
            to = np.full(GIVEN_PER_LAUNCH, nowhere, np.int32)
            rows = np.zeros((GIVEN_PER_LAUNCH, embeddings.shape[1]), np.float32)
            to[: len(targets[these])] = np.where(targets[these] < 0, nowhere, targets[these])
            rows[: len(embeddings[these])] = embeddings[these]
            given = (put(values, self._space.replicated) for values in (rows, to))
            self._pool.array = call(GIVEN_NAME, self._pool.array, *given)

    def _run(
        self,
        bucket: Bucket,
        patches: NDArray[np.float32],
        step: TowerStep,
        targets: Int32s,
        call: Call,
        *,
        once: bool = False,
    ) -> None:
        """`once`: of programs that serve several layers the first; what it gives stands for what is read behind others."""
        space, media = self._space, self._space.media
        assert media is not None
        given, on_device, to = (
            jax.tree.map(lambda values: put(values, space.replicated), tree) for tree in (patches, step, targets)
        )
        x: Any = None
        shared: Any = None
        tapped: list[Any] = []
        called: set[str] = set()
        for stage, parameters in self._stages:
            name = stage.program_name(bucket)
            if once and name in called:
                continue
            called.add(name)
            if stage.begins:
                x, shared = call(name, parameters, given, on_device)
            elif stage.layer is not None:
                x = call(name, parameters, x, shared, on_device)
            elif stage.keeps:
                tapped.append(call(name, x))
            else:
                tapped += [x] * (len(media.traits.taps) - len(tapped))
                self._pool.array = call(name, parameters, x, tuple(tapped), self._pool.array, on_device, to)


def launch_of(
    media: MediaSpace, encoding: Encoding, room: EncoderRoom
) -> tuple[NDArray[np.float32], TowerStep, Int32s]:
    """What the programs are given: `patches [N, P]` in their places, what the launch is, and where embeddings go `[M]`.

    Raises:
        ValueError: the items do not fit.
    """
    items, bucket = encoding.items, encoding.bucket
    assert bucket is not None
    grids = [ItemGrid(*one.item.grid, one.item.mosaic) for one in items]
    for one, grid in zip(items, grids, strict=True):
        if one.item.patches.shape != (grid.patches, media.traits.config.patch_values):
            raise ValueError(
                f"an item of {grid} patches of {media.traits.config.patch_values} numbers brought {one.item.patches.shape}"
            )
    rows, patches = sum(grid.frames for grid in grids), encoding.num_patches
    if rows > bucket.batch or patches > bucket.tokens:
        raise ValueError(f"{rows} rows with {patches} patches do not fit bucket {bucket} of the encoder")
    places = media.traits.tower.places(media.traits.config, grids)
    if len(places.taken) != sum(one.item.num_embeddings for one in items):
        counts = [one.item.num_embeddings for one in items]
        raise ValueError(f"the encoder makes {len(places.taken)} embeddings of items that are said to have {counts}")
    targets = np.full(room.embeddings, media.num_pages * media.page_size, np.int32)
    targets[: len(places.taken)] = np.concatenate([_targets(one, media.page_size) for one in items])
    used = len(places.order)
    places = padded(places, patches=room.places, rows=room.rows, windows=room.windows, embeddings=room.embeddings)
    given = np.zeros((room.places, media.traits.config.patch_values), np.float32)
    _fill(given, [one.item.patches for one in items], places.order)
    return given, _step(places, used), targets


def empty_launch(media: MediaSpace, room: EncoderRoom) -> tuple[NDArray[np.float32], TowerStep, Int32s]:
    """The same of no items."""
    places = Places(
        offsets=np.zeros(room.rows + 1, np.int32),
        windows=np.zeros(room.windows + 1, np.int32),
        positions=np.zeros((room.places, 2), np.int32),
        table=np.zeros((room.places, room.taps), np.int32),
        shares=np.zeros((room.places, room.taps), np.float32),
        taken=np.zeros((room.embeddings, room.block), np.int32),
        order=np.full(room.places, -1, np.int32),
        weights=np.zeros((room.embeddings, room.block), np.float32) if room.weighed else None,
    )
    targets = np.full(room.embeddings, media.num_pages * media.page_size, np.int32)
    return np.zeros((room.places, media.traits.config.patch_values), np.float32), _step(places, 0), targets


def _fill(given: NDArray[np.float32], patches: Sequence[NDArray[np.float32]], order: Int32s) -> None:
    """Copy the patches of items, counted through, to the places that want them; an `order` of -1 wants none.

    Each is copied once: they have megabytes, and the next step is launched behind this.
    """
    wanting = np.flatnonzero(order >= 0)
    wanted = order[wanting]
    first = 0
    for each in patches:
        mine = (wanted >= first) & (wanted < first + len(each))
        to, of = wanting[mine], wanted[mine] - first
        if len(to) and to[-1] - to[0] == len(to) - 1:
            np.take(each, of, axis=0, out=given[to[0] : to[-1] + 1], mode="clip")  # any other mode takes a copy first
        else:
            given[to] = each[of]
        first += len(each)


def _targets(one: ToEncode, page_size: int) -> Int32s:
    """The rows of the pool that an item's embeddings go to."""
    count = one.item.num_embeddings
    if len(one.pages) * page_size < count:
        raise ValueError(f"{len(one.pages)} pages of {page_size} do not hold the {count} embeddings of an item")
    rows = one.pages[:, None] * page_size + np.arange(page_size, dtype=np.int32)
    return rows.ravel()[:count].astype(np.int32)  # type: ignore[no-any-return]


def _step(places: Places, used: int) -> TowerStep:
    names = ("offsets", "windows", "positions", "table", "shares", "taken", "weights")
    return TowerStep(**{name: getattr(places, name) for name in names}, used=np.int32(used))  # type: ignore[arg-type]
