"""The state on the devices, and the launching of programs on it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax

from jaxengine.contract.arrays import Int32s
from jaxengine.contract.batch import Move, SlotSnapshot
from jaxengine.contract.media import Encoding
from jaxengine.contract.rows import Align
from jaxengine.device.layers.cache import Cache
from jaxengine.device.layers.pooler import Pooled
from jaxengine.device.runtime.adapter_slots import AdapterSlots, ReadAdapter
from jaxengine.device.runtime.alignment import Aligner
from jaxengine.device.runtime.block_moves import Held
from jaxengine.device.runtime.drafter import Drafter
from jaxengine.device.runtime.encoder import EmbeddingPool, Encoder
from jaxengine.device.runtime.executables import Executables
from jaxengine.device.runtime.forward import Call, ForwardPass
from jaxengine.device.runtime.forward_programs import Kept
from jaxengine.device.runtime.handover import Handover
from jaxengine.device.runtime.held_weights import HeldWeights
from jaxengine.device.runtime.host_store import HostStore
from jaxengine.device.runtime.inputs import FlatRows, StepLayout
from jaxengine.device.runtime.sampler import Sampler
from jaxengine.device.runtime.sampling_shapes import SampleShape
from jaxengine.device.runtime.slot_state import Write
from jaxengine.device.runtime.snapshots import StateSnapshots
from jaxengine.device.runtime.space import ProgramSpace
from jaxengine.device.runtime.transfer import put
from jaxengine.device.sampling import SampleInputs, SampleOutputs, Slots


@dataclass
class Launcher:
    """Owns the device state: parameters (a draft model's among them), the cache, the slots and what lies beside them.

    Calls compiled programs only, through the `call` that a method is given or its own, and waits for none.
    """

    space: ProgramSpace
    executables: Executables
    weights: HeldWeights
    cache: Cache
    slots: Slots
    read_adapter: ReadAdapter | None = None

    def __post_init__(self) -> None:
        self.store = HostStore(self.space)
        self.snapshots = StateSnapshots(self.space)
        self.adapters = AdapterSlots(self.space, self.read_adapter)
        self.embeddings = EmbeddingPool(self.space)
        self.use_parameters()
        self._begin_empty()

    def call(self, name: str, *arguments: Any) -> Any:
        """Launch a program."""
        return self.executables[name](*arguments)

    def use_parameters(self) -> None:
        """Go on with `weights` as they are now."""
        arrays = self.weights.arrays
        self.passing = ForwardPass(self.space, arrays)
        if self.adapters.arrays:  # there are none before the first state, nor while the engine sleeps
            self.adapt()
        self.sampler = Sampler(self.space, self.passing, self.executables)
        self.drafter = Drafter(self.space, arrays)
        self.encoder = Encoder(self.space, arrays, self.embeddings)
        self.aligner = Aligner(self.space, arrays)

    def adapt(self) -> None:
        """Go on with adapters as they are now."""
        self.passing.adapt(self.adapters.arrays)

    def allocate(self) -> None:
        """Take the memory of the cache, the slots and what lies beside them: they are empty."""
        self.cache, self.slots = allocate_state(self.space)
        self._begin_empty()

    def _begin_empty(self) -> None:
        self.snapshots.allocate()
        self.adapters.allocate()
        self.embeddings.allocate()
        self.adapt()
        self.handover = Handover(self.space, self.slots, self.call)

    def free(self) -> None:
        """Give the memory of the cache, the slots and what lies beside them back."""
        self.adapters.free()
        self.embeddings.free()
        for array in jax.tree.leaves((self.cache, self.slots, self.snapshots.arrays)):
            if not array.is_deleted():
                array.delete()

    @property
    def samples(self) -> bool:
        """Whether steps end on this host."""
        return self.space.views[-1].here

    def forward(
        self,
        layout: StepLayout,
        buffers: Sequence[jax.Array],
        rows: FlatRows | None = None,
        call: Call | None = None,
        *,
        only: int | None = None,
    ) -> Kept | Pooled:
        """The forward pass of a step, as `ForwardPass.run` has it; of `rows` the device may know the first token alone."""
        handover = self.handover
        ended, self.cache = self.passing.run(
            call or self.call,
            layout,
            self.cache,
            handover.newest(self.slots) if rows is None else handover.last_token(rows, self.slots),
            buffers,
            pool=self.embeddings.array,
            only=only,
            before_last=None if rows is None else lambda: handover.bring(self.slots),
        )
        return ended

    def sample(
        self, shape: SampleShape, hidden: jax.Array, kept: SampleInputs, call: Call | None = None
    ) -> SampleOutputs:
        """Sample the first rows of `hidden [K, E]`."""
        outputs, self.slots = self.sampler.sample(call or self.call, shape, hidden, kept, self.slots)
        return outputs

    def write(self, writes: Iterable[Write], call: Call | None = None) -> None:
        """Write to the slots, where steps end here."""
        for name, buffer in writes if self.samples else ():
            self.slots = (call or self.call)(name, self.slots, self.put(buffer))

    def hand_over(self, number: int, sampled: Int32s) -> None:
        """Step `number` has sampled tokens of these slots."""
        self.handover.keep(number, sampled, self.slots)

    def place_drafts(self, layout: StepLayout, rows: FlatRows, buffer: jax.Array) -> jax.Array:
        """The buffer with rows of tokens that the device has where their sequences end."""
        return self.drafter.place(self.call, layout, rows, self.slots, buffer)

    def draft(
        self, layout: StepLayout, buffer: jax.Array, states: tuple[jax.Array, ...], call: Call | None = None
    ) -> jax.Array:
        """Draft behind a step that was sampled."""
        drafts, self.slots, self.cache = self.drafter.draft(
            call or self.call, layout, states, self.slots, self.cache, buffer
        )
        return drafts

    def move(self, moves: Sequence[Move]) -> None:
        """Move pages between the devices and the host's memory."""
        if moves:
            self._take_back(self.store.move(moves, self._moved, self.call))

    def restore_states(self, what: Sequence[SlotSnapshot]) -> None:
        """Bring snapshots of recurrent layers' states to slots."""
        self.cache = self.snapshots.restore(what, self.cache, self.call)

    def keep_states(self, what: Sequence[SlotSnapshot]) -> None:
        """Make snapshots of slots."""
        self.snapshots.keep(what, self.cache, self.call)

    def align(self, want: Align, tokens: Sequence[int], pages: Int32s) -> jax.Array:
        """Align tokens with the sound that is in these pages, as `Aligner.align` has it."""
        assert self.cache.crossed is not None
        return self.aligner.align(want, tokens, pages, self.cache.crossed, self.call)

    def encode(self, encoding: Encoding) -> None:
        """Run an encoder."""
        self._encoding(lambda: self.encoder.encode(encoding, self.call))

    def run_others_once(self, call: Call) -> None:
        """Call each program that no step has to have, on the sinks."""
        self.handover.run_once(self.slots, call)
        self._take_back(self.store.run_once(self._moved, call))
        self.cache = self.snapshots.run_once(self.cache, call)
        self.adapters.run_once(call)
        self._encoding(lambda: self.encoder.run_once(call))
        self.aligner.run_once(self.cache.crossed, call)
        self.adapt()

    def put(self, array: Any) -> jax.Array:
        """The array on the last mesh."""
        return put(array, self.space.replicated)

    def put_everywhere(self, array: Any) -> Sequence[jax.Array]:
        """The array on each mesh."""
        return [*(put(array, view.replicated) for view in self.space.views[:-1]), self.put(array)]

    def _encoding(self, run: Callable[[], None]) -> None:
        """Run programs of the encoder, which write to the pool of embeddings, or to what layers read in the cache."""
        if self.space.crossed is None:
            run()
            return
        self.embeddings.array = self.cache.crossed
        run()
        self.cache = replace(self.cache, crossed=self.embeddings.array)
        self.embeddings.array = None

    @property
    def _moved(self) -> Sequence[Held]:
        """What moves are of, by pool."""
        return (*self.cache.pages, self.snapshots.arrays) if self.space.num_snapshots else self.cache.pages

    def _take_back(self, moved: Sequence[Held]) -> None:
        """The same, after moves."""
        num_pools = len(self.cache.pages)
        self.cache = replace(self.cache, pages=tuple(moved[:num_pools]))
        if self.space.num_snapshots:
            self.snapshots.arrays = moved[num_pools]


def allocate_state(space: ProgramSpace, link: Callable[[bytes], None] | None = None) -> tuple[Cache, Slots]:
    """A zeroed cache and zeroed slots, each shard made on its own device.

    The first time that this is called for a space it compiles: that belongs before the engine is ready. `link` registers what
    the programs call, as `ProgramCache.link`.
    """
    if link is not None:
        for lowered in space.empty_state.lowered:
            link(lowered.as_text().encode())
    return jax.block_until_ready(space.empty_state.cache_and_slots())
