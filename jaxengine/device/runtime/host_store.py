"""Pages and snapshots of states that leave the device for the host's memory and come back, and the blocks that they lie in."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from threading import BoundedSemaphore, Event
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from jaxengine.contract.batch import FromHost, Move, ToHost
from jaxengine.contract.tiers import Ask, Cancel, Ended, Load, Save, Stage, Staged, TierTraffic, Transfer
from jaxengine.device.runtime.block_moves import Held, all_moved, launches_underway, part_of, sharding_of
from jaxengine.device.runtime.space import ProgramSpace
from jaxengine.device.runtime.transfer import put
from jaxengine.device.tiers.arena import Arena
from jaxengine.device.tiers.news import News
from jaxengine.device.tiers.outer_stores import OuterStores
from jaxengine.device.tiers.outer_transfers import OuterTransfers
from jaxengine.device.tiers.worker import Worker
from jaxengine.device.weights.placement import Bounds, bounds_of

TIMES = 3
"""How often the way to the device is measured before the first step; the shortest time counts."""
POLL_S = 0.05
"""How often whoever waits for a copy looks whether another has failed."""


@dataclass(eq=False)
class Chunk:
    """Blocks that one launch takes, on their way to the device; `left` are the moves that are still to be made of it."""

    pool: int
    moves: tuple[FromHost, ...]
    left: set[FromHost]
    blocks: Held | None = None
    begun: bool = False
    done: Event = field(default_factory=Event)


class HostStore:
    """Blocks of each pool in the host's memory, as many as `space.host_blocks`. It is the `Tiers` of a runner.

    The loop launches programs and puts tasks in line; a thread copies. It does one task after the other, so a block is read
    before what was asked for later gets into it.
    """

    def __init__(self, space: ProgramSpace) -> None:
        self._space = space
        self._moved = all_moved(space)
        self._news = News()
        self._worker = Worker("host blocks", self._news.fail)
        counts = space.host_blocks or (0,) * len(self._moved)
        self._arenas = [
            Arena(pool, count, moved.parts) for pool, (count, moved) in enumerate(zip(counts, self._moved, strict=True))
        ]
        self._launches = launches_underway(space)
        self._leaving = BoundedSemaphore(self._launches)
        self._waiting: deque[Chunk] = deque()
        self._num_begun = 0
        self._chunks: dict[FromHost, Chunk] = {}
        self.block_s: Sequence[float] = ()
        self._outer: OuterTransfers | None = None

    def move(self, moves: Sequence[Move], held: Sequence[Held], call: Callable[..., Any]) -> Sequence[Held]:
        """Launch the moves of a step: first all that leave the device, then those that come back. `call` runs a program by name.

        What the device has of each pool is `held`; what it has afterwards is returned.

        What was not staged before is waited for.

        Raises:
            ValueError: there is no store, no such block in it, or nothing in the block.
        """
        for move in moves:
            most = self._arenas[move.pool].num_blocks
            if not 0 <= move.block < most:
                raise ValueError(
                    f"block {move.block} is not among the {most} that the host was planned to keep of a pool"
                )
        for pool, arena in enumerate(self._arenas):
            for part in self._by_launch(pool, [move for move in moves if isinstance(move, ToHost)]):
                self._leaving.acquire()
                taken = call(self._moved[pool].names[0], held[pool], self._ids(pool, [move.page for move in part]))
                parts = {
                    part_of(number, bounds_of(shard.index, array.shape)): shard.data
                    for number, array in enumerate(jax.tree.leaves(taken))
                    for shard in array.addressable_shards
                }
                for array in parts.values():
                    array.copy_to_host_async()
                blocks = [move.block for move in part]
                self._worker.submit(partial(self._keep, arena, parts, blocks, self._moved[pool].lanes))
        back = [move for move in moves if isinstance(move, FromHost)]
        self._stage([move for move in back if move not in self._chunks])
        while back:
            chunk = self._chunks[back[0]]
            places = {move: place for place, move in enumerate(chunk.moves)}
            part = [move for move in back if move in places]
            held = self._write(chunk, {places[move]: move.page for move in part}, held, call)
            back = [move for move in back if move not in places]
            self._let_go(part)
        return held

    def begin(self, transfers: Sequence[Transfer]) -> None:
        """As in `Tiers`."""
        for transfer in transfers:
            match transfer:
                case Stage(moves):
                    self._stage(moves)
                case Cancel(moves):
                    self._let_go([move for move in moves if move in self._chunks])
                case Ask():
                    self._outer_transfers.ask(transfer)
                case Load():
                    self._outer_transfers.load(transfer)
                case Save():
                    self._outer_transfers.save(transfer)

    def attach(self, stores: OuterStores) -> None:
        """From now on these are behind the blocks; they are closed with this."""
        self._outer = OuterTransfers(stores, self._arenas, self._worker, self._news)

    @property
    def _outer_transfers(self) -> OuterTransfers:
        if self._outer is None:
            raise ValueError("there are no outer stores behind the host's blocks")
        return self._outer

    def ended(self) -> Sequence[Ended]:
        """As in `Tiers`.

        Raises:
            Exception: a copy has failed.
        """
        return self._news.take()

    def wait(self, timeout_s: float) -> None:
        """As in `Tiers`."""
        self._news.wait(timeout_s)

    @property
    def traffic(self) -> dict[str, TierTraffic]:
        """As in `Tiers`."""
        return self._news.traffic

    def run_once(self, held: Sequence[Held], call: Callable[..., Any]) -> Sequence[Held]:
        """Run every program once, on the sink, and measure how long blocks take to the device."""
        after, block_s = list(held), []
        for pool, moved in enumerate(self._moved if self._space.host_blocks else ()):
            ids = self._ids(pool, ())
            blocks = call(moved.names[0], after[pool], ids)
            after[pool] = call(moved.names[1], after[pool], ids, blocks)
            block_s.append(min(self._time(pool) for _ in range(TIMES)) / moved.count)
        self.block_s = tuple(block_s)
        return after

    def _time(self, pool: int) -> float:
        """Seconds that zeros for one launch take to the device, with the copy that gathers blocks."""
        begun = time.perf_counter()
        jax.block_until_ready(self._put(pool, lambda bounds, out: np.copyto(out, np.zeros_like(out))))
        return time.perf_counter() - begun

    def close(self) -> None:
        """End the threads, and let go of the outer stores."""
        self._worker.close()
        if self._outer is not None:
            self._outer.close()
            self._worker.close()  # of what has come from them meanwhile

    def _stage(self, moves: Sequence[FromHost]) -> None:
        """Bring blocks to the device, as few launches at a time as it has room for."""
        for pool in range(len(self._arenas)):
            for part in self._by_launch(pool, moves):
                chunk = Chunk(pool, tuple(part), set(part))
                self._waiting.append(chunk)
                self._chunks |= dict.fromkeys(part, chunk)
        self._begin_more()

    def _begin_more(self) -> None:
        while self._waiting and self._num_begun < self._launches:
            chunk = self._waiting.popleft()
            if chunk.left and not chunk.begun:
                self._begin(chunk)

    def _begin(self, chunk: Chunk) -> None:
        chunk.begun = True
        self._num_begun += 1
        self._worker.submit(partial(self._bring, chunk))

    def _let_go(self, moves: Sequence[FromHost]) -> None:
        """These moves were made, or will not be."""
        for move in moves:
            chunk = self._chunks.pop(move)
            chunk.left.discard(move)
            if not chunk.left and chunk.begun:
                self._num_begun -= 1
        self._begin_more()

    def _write(
        self, chunk: Chunk, pages: Mapping[int, int], held: Sequence[Held], call: Callable[..., Any]
    ) -> Sequence[Held]:
        """Write these places of a chunk to pages."""
        if not chunk.begun:
            self._begin(chunk)  # others that were staged may take the room until they are written
        while not chunk.done.wait(POLL_S):
            self._news.raise_failure()
        assert chunk.blocks is not None
        pool = chunk.pool
        ids = self._ids(pool, [pages.get(place, 0) for place in range(len(chunk.moves))])
        written = list(held)
        written[pool] = call(self._moved[pool].names[1], written[pool], ids, chunk.blocks)
        if len(pages) == len(chunk.moves):
            chunk.blocks = None
        return written

    def _by_launch(self, pool: int, moves: Sequence[Any]) -> Iterator[Sequence[Any]]:
        """Those of this pool, as many together as one launch takes."""
        own, count = [move for move in moves if move.pool == pool], self._moved[pool].count
        return (own[i : i + count] for i in range(0, len(own), count))

    def _ids(self, pool: int, pages: Sequence[int]) -> jax.Array:
        ids = np.zeros(self._moved[pool].count, np.int32)
        ids[: len(pages)] = pages
        return put(ids, self._space.replicated)

    def _keep(self, arena: Arena, parts: Mapping[Bounds, jax.Array], blocks: Sequence[int], lanes: int) -> None:
        """On the thread: copy pages that have left the device to their blocks."""
        try:
            jax.block_until_ready(list(parts.values()))
            begun = time.perf_counter()
            rows = {bounds: np.asarray(part) for bounds, part in parts.items()}
            for place, block in enumerate(blocks):
                arena.write(block, {bounds: part[place * lanes : (place + 1) * lanes] for bounds, part in rows.items()})
        finally:
            self._leaving.release()
        self._news.count("device to host", len(blocks) * arena.block_bytes, time.perf_counter() - begun)

    def _bring(self, chunk: Chunk) -> None:
        """On the thread: copy a chunk to the device, side by side as the program that scatters it takes it."""
        if not chunk.left:
            return  # cancelled meanwhile
        arena, begun = self._arenas[chunk.pool], time.perf_counter()
        blocks = [move.block for move in chunk.moves]
        chunk.blocks = jax.block_until_ready(self._put(chunk.pool, partial(arena.gather, blocks)))
        chunk.done.set()
        self._news.count("host to device", len(blocks) * arena.block_bytes, time.perf_counter() - begun)
        self._news.tell(Staged(chunk.moves))

    def _put(self, pool: int, fill: Callable[[Bounds, NDArray[Any]], None]) -> Held:
        """What one launch takes of a pool, on the devices: `fill` is given each part, `[pages, lanes, ...]`, and its bounds."""
        moved = self._moved[pool]

        def put_array(number: int, struct: jax.ShapeDtypeStruct) -> jax.Array:
            def part(index: tuple[slice, ...] | None) -> NDArray[Any]:
                bounds = bounds_of(index or (), struct.shape)
                out = np.zeros([high - low for low, high in bounds], struct.dtype)
                fill(part_of(number, bounds), out.reshape(moved.count, moved.lanes, *out.shape[1:]))
                return out

            return jax.make_array_from_callback(struct.shape, sharding_of(struct), part)

        arrays = [put_array(number, struct) for number, struct in enumerate(moved.arrays)]
        return jax.tree.unflatten(jax.tree.structure(moved.structs), arrays)
