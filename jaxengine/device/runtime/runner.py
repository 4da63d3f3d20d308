"""The device half of a step: `Batch` in, compiled programs called, `StepResult` out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from buckets import Bucket
from jaxengine.contract.batch import (
    Align,
    Batch,
    Int32s,
    Masks,
    Move,
    Pending,
    Row,
    Rows,
    SlotState,
    Weights,
)
from jaxengine.contract.draft_costs import DraftCosts
from jaxengine.contract.media import Encoding
from jaxengine.contract.tiers import Tiers
from jaxengine.device.layers.cache import Cache
from jaxengine.device.layers.pooler import Pooled
from jaxengine.device.runtime.adapter_slots import AdapterSlots, ReadAdapter
from jaxengine.device.runtime.alignment import Aligner
from jaxengine.device.runtime.block_moves import Held
from jaxengine.device.runtime.drafter import Drafter
from jaxengine.device.runtime.drafting import draft_name, place_name
from jaxengine.device.runtime.encoder import EmbeddingPool, Encoder
from jaxengine.device.runtime.executables import Executables
from jaxengine.device.runtime.forward import Call, ForwardPass, Kept
from jaxengine.device.runtime.handover import Handover
from jaxengine.device.runtime.held_weights import HeldWeights
from jaxengine.device.runtime.host_store import HostStore
from jaxengine.device.runtime.inputs import FlatRows, KeptPlaces, PageTables, StepLayout, pad
from jaxengine.device.runtime.pending import Aligned, PendingElsewhere, PendingPooling, PendingStep
from jaxengine.device.runtime.program_times import ProgramTimes
from jaxengine.device.runtime.sampler import Sampler
from jaxengine.device.runtime.sampling_shapes import SampleShape
from jaxengine.device.runtime.slot_media import SlotsMedia
from jaxengine.device.runtime.slot_state import SlotTable, Write, begin_writes, mask_writes, sink_writes
from jaxengine.device.runtime.snapshots import StateSnapshots
from jaxengine.device.runtime.space import ProgramSpace
from jaxengine.device.runtime.state_structs import zeroed
from jaxengine.device.runtime.transfer import put
from jaxengine.device.sampling import SampleInputs, SampleOutputs, Slots, Variant
from jaxengine.device.tiers.outer_stores import OuterStores


@dataclass
class ModelRunner:
    """Owns the device state: parameters (a draft model's among them), the cache and the slots. Calls compiled programs only.

    `calibrate` finds out, of a runner that is warm, what has to be measured before the first step.
    """

    space: ProgramSpace
    executables: Executables
    weights: HeldWeights
    cache: Cache
    slots: Slots
    calibrate: Callable[[ModelRunner], None] | None = None
    read_adapter: ReadAdapter | None = None

    def __post_init__(self) -> None:
        self._store = HostStore(self.space)
        self._written: Callable[[Mapping[str, jax.Array]], None] | None = None
        self._snapshots = StateSnapshots(self.space)
        self._has_state = True
        self.draft_costs = DraftCosts()
        self._unmasked: tuple[int, Callable[[], None]] | None = None
        self._adapters = AdapterSlots(self.space, self.read_adapter)
        self._embeddings = EmbeddingPool(self.space)
        self._use_parameters()
        self._forget_state()

    @property
    def parameters(self) -> tuple[jax.Array, ...]:
        """The arrays of `weights`."""
        return self.weights.arrays

    def _use_parameters(self) -> None:
        self._pass = ForwardPass(self.space, self.parameters)
        if self._adapters.arrays:  # there are none before the first state, nor while the engine sleeps
            self._pass.adapt(self._adapters.arrays)
        self._sampler = Sampler(self.space, self._pass, self.executables)
        self._drafter = Drafter(self.space, self.parameters)
        self._encoder = Encoder(self.space, self.parameters, self._embeddings)
        self._aligner = Aligner(self.space, self.parameters)

    def _forget_state(self) -> None:
        """What is known of a cache and slots in which nothing is yet."""
        self._snapshots.allocate()
        self._adapters.allocate()
        self._embeddings.allocate()
        self._pass.adapt(self._adapters.arrays)
        self._handover = Handover(self.space, self.slots, self._call)
        num_slots = self.space.max_num_seqs + 1
        self._table = SlotTable(num_slots)
        self._media = SlotsMedia()
        self._page_tables = PageTables(
            num_slots,
            pages_per_row=self.space.pages_per_row,
            page_size=self.space.page_size,
            num_groups=self.space.cache.num_groups,
        )

    @property
    def max_in_flight(self) -> int:
        """A step that each mesh computes, and the next."""
        return len(self.space.views) + 1

    def launch(self, batch: Batch) -> Pending:
        """Launch moves of pages, the slots that begin, the forward pass and the sampling of one step; return without waiting.

        The sampling of a masked step is launched by `masks`, and so is what drafts behind it.

        Raises:
            ValueError: the rows do not fit the bucket or their pages, or are of more drafts than the device has.
            RuntimeError: the step before waits for its masks.
        """
        self._check_memory("before the next step")
        if self._unmasked is not None:
            raise RuntimeError(f"step {batch.number} was launched before step {self._unmasked[0]} was given its masks")
        space = self.space
        num_device_drafts = 0 if space.draft is None else space.num_drafts
        rows = FlatRows.of(batch.rows, num_slots=space.max_num_seqs + 1, num_drafts=num_device_drafts)
        kept = KeptPlaces.of(rows)
        self.move(batch.moves)
        self.cache = self._snapshots.restore(batch.restored, self.cache, self._call)
        self._begin(batch.begin)
        self._page_tables.write(batch.tables)
        order, num_sampled, variant = self._table.order(kept)
        adapters = self._table.adapters(rows)
        layout = space.layout(batch.bucket, self._page_tables.longest(rows), adapters=adapters is not None)
        planned = pad(
            layout,
            rows,
            kept,
            order,
            self._page_tables,
            num_sampled=num_sampled,
            adapters=adapters,
            media=self._media,
        )
        *before, buffer = self._put_everywhere(planned)
        if not batch.lengths_known:
            buffer = self._drafter.place(self._call, layout, rows, self.slots, buffer)
        last_token = self._handover.last_token(rows, self.slots)
        ended = self._forward(
            layout, (*before, buffer), last_token=last_token, before_last=lambda: self._handover.bring(self.slots)
        )
        self._snapshots.keep(batch.kept, self.cache, self._call)
        if not self._samples:
            if num_sampled:
                self._handover.keep(batch.number, kept.writes, self.slots)
            if batch.masked:
                self._unmasked = batch.number, lambda: None
            return PendingElsewhere(ended)
        if isinstance(ended, Pooled):
            pooling = PendingPooling(rows, ended)
            pooling.start_copies()
            return pooling
        hidden, fields, states = ended
        pending = PendingStep(
            kept, order, num_sampled, self._table.logprobs(kept), hidden, aligned=self._aligned(batch.rows, kept)
        )

        def sample() -> None:
            if num_sampled:
                pending.outputs = self._sample(
                    self._sampler.shape(num_sampled, variant, adapters=fields.adapters is not None), hidden, fields
                )
                self._handover.keep(batch.number, kept.writes, self.slots)
            if batch.drafting:
                drafts = self._draft(layout, buffer, states)
                pending.drafts = drafts if batch.masked else None
            pending.start_copies()

        if batch.masked:
            self._unmasked = batch.number, sample
        else:
            sample()
        return pending

    def _aligned(self, rows: Rows, kept: KeptPlaces) -> dict[int, Aligned]:
        """Launch what is wanted of rows that are aligned with their sound, by their numbers."""
        if not kept.pooled.any():
            return {}
        found = {}
        for number, want in enumerate(rows.wants):
            if isinstance(want, Align):
                row = rows[number]
                [(_, shown)] = self._media.of(np.array([row.slot], np.int32))
                assert row.tokens is not None
                assert shown.pages is not None
                assert self.cache.crossed is not None
                picture = self._aligner.align(want, row.tokens, shown.pages, self.cache.crossed, self._call)
                found[number] = Aligned(want, row.num_tokens, picture)
        return found

    def encode(self, encoding: Encoding) -> None:
        """Launch an encoder; return without waiting.

        Raises:
            RuntimeError: the model has none, or the device's memory was released.
            ValueError: the items do not fit the bucket or their pages.
        """
        self._check_memory("before items are encoded")
        self._encoding(lambda: self._encoder.encode(encoding, self._call))

    def _encoding(self, run: Callable[[], None]) -> None:
        """Run programs of the encoder, which write to the pool of embeddings, or to what layers read in the cache."""
        if self.space.crossed is None:
            run()
            return
        self._embeddings.array = self.cache.crossed
        run()
        self.cache = replace(self.cache, crossed=self._embeddings.array)
        self._embeddings.array = None

    def _check_memory(self, when: str) -> None:
        if not (self.weights.complete and self._has_state):
            raise RuntimeError(f"the device's memory was released; restore it {when}")

    @property
    def _samples(self) -> bool:
        """Whether steps end on this host."""
        return self.space.views[-1].here

    @property
    def tiers(self) -> Tiers:
        """The host's memory behind the pages."""
        return self._store

    def attach(self, stores: OuterStores, written: Callable[[Mapping[str, jax.Array]], None]) -> None:
        """Let pages be in these stores too, and tell of parameters that are replaced, whose pages are others."""
        self._store.attach(stores)
        self._written = written

    def move(self, moves: Sequence[Move]) -> None:
        """Launch moves of pages that no step brings; return without waiting."""
        if moves:
            self._take_back(self._store.move(moves, self._moved, self._call))

    @property
    def _moved(self) -> Sequence[Held]:
        """What moves are of, by pool."""
        return (*self.cache.pages, self._snapshots.arrays) if self.space.num_snapshots else self.cache.pages

    def _take_back(self, moved: Sequence[Held]) -> None:
        """The same, after moves."""
        num_pools = len(self.cache.pages)
        self.cache = replace(self.cache, pages=tuple(moved[:num_pools]))
        if self.space.num_snapshots:
            self._snapshots.arrays = moved[num_pools]

    def masks(self, number: int, masks: Mapping[int, Masks]) -> None:
        """Write the masks that step `number` has waited for, and launch its sampling.

        Raises:
            ValueError: it waits for none.
        """
        if self._unmasked is None or self._unmasked[0] != number:
            raise ValueError(f"step {number} waits for no masks")
        (_, sample), self._unmasked = self._unmasked, None
        self._write(mask_writes(masks, self.space))
        sample()

    def load_adapter(self, path: str) -> str:
        """Read an adapter into the host's memory, beside steps."""
        return self._adapters.load(path)

    def place_adapter(self, digest: str, slot: int) -> None:
        """Launch the writing of one to a slot; return without waiting."""
        self._adapters.place(digest, slot, self._call)
        self._pass.adapt(self._adapters.arrays)

    def drop_adapter(self, digest: str) -> None:
        """Forget one in the host's memory."""
        self._adapters.drop(digest)

    def forward(self, bucket: Bucket, rows: Sequence[Row], tables: Iterable[tuple[int, Int32s]]) -> None:
        """Write the keys and values of rows to their pages, and sample nothing."""
        self._page_tables.write(tables)
        flat = FlatRows.of(Rows(rows))
        kept = KeptPlaces.of(flat)
        order = np.arange(len(kept))
        layout = self.space.layout(bucket, self._page_tables.longest(flat))
        self._forward(layout, self._put_everywhere(pad(layout, flat, kept, order, self._page_tables, num_sampled=0)))

    @property
    def buckets(self) -> list[Bucket]:
        """Those whose programs are there."""
        return [bucket for bucket in self.space.grid.buckets if self._pass.exists(bucket, self.executables)]

    def prepare(self) -> dict[Bucket, float]:
        """Warm up, unless programs are to be compiled on demand, and measure what has to be measured."""
        seconds = self.warm_up() if len(self.executables) else {}
        if self.calibrate is not None:
            self.calibrate(self)
        return seconds

    def write(self, what: Weights) -> None:
        """Put others in the place of parameters, one after the other: what was there goes first, so memory never holds both.

        Steps that are under way go on with those they were launched with. Arrays that lie on the devices as the parameter does
        are used as they are, and stay their owner's: they are never deleted here.

        Raises:
            UnfitWeightsError: the model has no such parameters, they have other shapes, or of those dropped some are missing.
            RuntimeError: the weights are on the host.
        """
        written = self.weights.write(what.values)
        self._use_parameters()
        if self._written is not None:
            self._written(written)

    def release(self, *, drop_weights: bool = False) -> None:
        """Give the device's memory back; the host keeps a copy of the weights, or of what is not dropped with them.

        What was given back before stays so; weights on the host may still be dropped.

        Raises:
            RuntimeError: a step waits for its masks.
        """
        if self._unmasked is not None:
            raise RuntimeError("the device's memory is released while nothing runs")
        self.weights.release(drop=drop_weights)
        self._free_state()
        self._has_state = False

    def restore_weights(self) -> None:
        """Bring the weights back that the host keeps.

        Raises:
            RuntimeError: it keeps none.
        """
        self.weights.restore()
        if self.weights.complete:
            self._use_parameters()

    def restore_state(self) -> None:
        """Take the memory of the cache and the slots again: they are empty.

        Raises:
            RuntimeError: it was not released.
        """
        if self._has_state:
            raise RuntimeError("the device's memory was not released, so there is nothing to restore")
        self.cache, self.slots = allocate_state(self.space)
        self._has_state = True
        self._forget_state()

    def warm_up(self) -> dict[Bucket, float]:
        """Run every program that exists once on dummy rows, which write to the sinks only: compiled is not yet warm.

        Returns:
            The seconds of a step of each bucket that exists, without keys and values to read. Of layers that are alike one is
            timed.

        Raises:
            BundleError: a program of a required bundle does not run.
        """
        buckets = self.buckets
        states: dict[bool, Kept] = {}
        for layout in (layout for bucket in buckets for layout in self.space.layouts(bucket)):
            step = self._dummy(layout)
            state = self._forward(layout, step, self._call_first, only=0)
            if not isinstance(state, tuple):
                continue
            if self._samples:
                states[state[1].adapters is not None] = state
            if self.space.draft is not None:
                self._run_draft(layout, step[-1], state, self._call_first)
        self._handover.run_once(self.slots, self._call_first)
        self._take_back(self._store.run_once(self._moved, self._call_first))
        self.cache = self._snapshots.run_once(self.cache, self._call_first)
        self._adapters.run_once(self._call_first)
        self._encoding(lambda: self._encoder.run_once(self._call_first))
        self._aligner.run_once(self.cache.crossed, self._call_first)
        self._pass.adapt(self._adapters.arrays)
        self._write(sink_writes(self.space), self._call_first)
        for shape in self.space.sampling.shapes:
            if shape.adapters in states and self._sampler.exists(shape):
                self._sample(shape, *states[shape.adapters][:2], self._call_first)
        return self._timed_steps(buckets)

    def _timed_steps(self, buckets: Sequence[Bucket]) -> dict[Bucket, float]:
        """The seconds of a step of each bucket; note what drafts take.

        Of engines with drafts all is timed several times: how many drafts are worth it is decided by small differences.
        """
        times = ProgramTimes(self._call, on_threads=self.space.platform == "cpu" and jax.process_count() == 1)
        layouts = {bucket: self.space.layout(bucket) for bucket in buckets}
        for again in times.rounds() if self.space.num_drafts else (0,):
            state: Kept | Pooled | None = None
            for number, layout in enumerate(layouts.values()):
                # another layer each time: what a step reads is in no cache
                step = self._dummy(layout)
                state = self._forward(layout, step, times, only=1 + number + again)
                if self.space.draft is not None and isinstance(state, tuple):
                    self._run_draft(layout, step[-1], state, times)
            greedy = [
                shape for shape in self.space.sampling.shapes if shape.variant is Variant.GREEDY and not shape.adapters
            ]
            for shape in greedy:
                if self._samples and isinstance(state, tuple) and self._sampler.exists(shape):
                    self._sample(shape, *state[:2], times)
        least = times.least
        drafting = {bucket: layout for bucket, layout in layouts.items() if draft_name(layout) in least}
        self.draft_costs = DraftCosts(
            {bucket: least[place_name(layout)] + least[draft_name(layout)] for bucket, layout in drafting.items()},
            {shape.rows: least[shape.name] for shape in self.space.sampling.shapes if shape.name in least},
        )
        return {bucket: self._step_seconds(bucket, least) for bucket in buckets}

    def close(self) -> None:
        """Free the weights, the cache and the slots on the device."""
        self._store.close()
        self.weights.close()
        self._free_state()

    def _free_state(self) -> None:
        self._adapters.free()
        self._embeddings.free()
        for array in jax.tree.leaves((self.cache, self.slots, self._snapshots.arrays)):
            if not array.is_deleted():
                array.delete()

    def _call(self, name: str, *arguments: Any) -> Any:
        return self.executables[name](*arguments)

    def _call_first(self, name: str, *arguments: Any) -> Any:
        """Run a program for the first time, and wait. One that was loaded and does not run is compiled after all."""
        try:
            return jax.block_until_ready(self._call(name, *arguments))
        except Exception as error:
            if not self.executables.compile_again(name, error):
                raise
            # the call that failed may have consumed the arguments that are donated, which hold nothing yet
            whole = jax.tree.map(lambda value: zeroed(value)() if _is_deleted(value) else value, arguments)
            return jax.block_until_ready(self._call(name, *whole))

    def _forward(
        self,
        layout: StepLayout,
        buffers: Sequence[jax.Array],
        call: Call | None = None,
        *,
        last_token: jax.Array | None = None,
        only: int | None = None,
        before_last: Callable[[], None] | None = None,
    ) -> Kept | Pooled:
        last_token = self._handover.newest(self.slots) if last_token is None else last_token
        pool = self._embeddings.array
        ended, self.cache = self._pass.run(
            call or self._call, layout, self.cache, last_token, buffers, pool=pool, only=only, before_last=before_last
        )
        return ended

    def _sample(
        self, shape: SampleShape, hidden: jax.Array, kept: SampleInputs, call: Call | None = None
    ) -> SampleOutputs:
        outputs, self.slots = self._sampler.sample(call or self._call, shape, hidden, kept, self.slots)
        return outputs

    def _begin(self, states: Sequence[SlotState]) -> None:
        if states:
            self._table.begin(states)
            if self.space.media is not None:
                self._media.begin(states)
            self._write(begin_writes(states, self.space))

    def _write(self, writes: Iterable[Write], call: Call | None = None) -> None:
        for name, buffer in writes if self._samples else ():
            self.slots = (call or self._call)(name, self.slots, self._put(buffer))

    def _draft(
        self, layout: StepLayout, buffer: jax.Array, states: tuple[jax.Array, ...], call: Call | None = None
    ) -> jax.Array:
        drafts, self.slots, self.cache = self._drafter.draft(
            call or self._call, layout, states, self.slots, self.cache, buffer
        )
        return drafts

    def _run_draft(self, layout: StepLayout, buffer: jax.Array, state: Kept, call: Call) -> None:
        """What drafts need beside a step, once."""
        self._drafter.place_all(call, layout, self.slots, buffer)
        self._draft(layout, buffer, state[2], call)

    def _dummy(self, layout: StepLayout) -> Sequence[jax.Array]:
        """A step without rows, of which all kept places are sampled: they are the sink's. All places count as used."""
        buffer = np.zeros(layout.size, np.int32)
        layout.view(buffer, "count")[...] = self.space.kept
        layout.view(buffer, "used")[...] = layout.bucket.tokens
        return self._put_everywhere(buffer)

    def _step_seconds(self, bucket: Bucket, seconds: Mapping[str, float]) -> float:
        rows = self._sampler.shape(min(bucket.batch, self.space.kept), Variant.GREEDY)
        passing = sum(times * seconds[name] for name, times in self._pass.calls(self.space.layout(bucket)).items())
        layers_here = sum(len(view.layers) for view in self.space.views if view.here)
        passing *= len(self.space.parts.layers) / layers_here  # what other hosts have takes about as long
        return passing + seconds.get(rows.name, 0.0)  # nothing is sampled of a model without logits

    def _put(self, array: Any) -> jax.Array:
        return put(array, self.space.replicated)

    def _put_everywhere(self, array: Any) -> Sequence[jax.Array]:
        """The array on each mesh."""
        return [*(put(array, view.replicated) for view in self.space.views[:-1]), self._put(array)]


def allocate_state(space: ProgramSpace) -> tuple[Cache, Slots]:
    """A zeroed cache and zeroed slots, each shard made on its own device.

    The first time that this is called for a space it compiles: that belongs before the engine is ready.
    """
    return jax.block_until_ready(space.zeroed_state())


def _is_deleted(value: Any) -> bool:
    return isinstance(value, jax.Array) and value.is_deleted()
