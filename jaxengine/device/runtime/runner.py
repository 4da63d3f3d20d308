"""The device half of a step: `Batch` in, compiled programs called, `StepResult` out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from buckets import Bucket
from jaxengine.contract.arrays import Int32s, Masks
from jaxengine.contract.batch import Batch, Move, SlotState
from jaxengine.contract.draft_costs import DraftCosts
from jaxengine.contract.media import Encoding
from jaxengine.contract.rows import Align, Row, Rows
from jaxengine.contract.runner import Pending, Weights
from jaxengine.contract.tiers import Tiers
from jaxengine.device.layers.cache import Cache
from jaxengine.device.layers.pooler import Pooled
from jaxengine.device.runtime.adapter_slots import ReadAdapter
from jaxengine.device.runtime.executables import Executables
from jaxengine.device.runtime.held_weights import HeldWeights
from jaxengine.device.runtime.inputs import FlatRows, KeptPlaces, PageTables, StepLayout, pad
from jaxengine.device.runtime.launcher import Launcher
from jaxengine.device.runtime.pending import Aligned, PendingElsewhere, PendingPooling, PendingStep
from jaxengine.device.runtime.slot_media import SlotsMedia
from jaxengine.device.runtime.slot_state import SlotTable, begin_writes, mask_writes
from jaxengine.device.runtime.space import ProgramSpace
from jaxengine.device.runtime.warm_up import existing_buckets, time_steps, warm_up
from jaxengine.device.sampling import SampleInputs, Slots, Variant
from jaxengine.device.tiers.outer_stores import OuterStores


class _Planned(NamedTuple):
    """A step as the device is told of it, in a buffer for each mesh: `num_sampled` of its kept places are sampled, in `order`."""

    kept: KeptPlaces
    order: NDArray[np.intp]
    num_sampled: int
    variant: Variant
    layout: StepLayout
    buffers: tuple[jax.Array, ...]


class ModelRunner:
    """Turns batches into launches on the device state, and knows of each slot what goes into their buffers."""

    def __init__(
        self,
        space: ProgramSpace,
        executables: Executables,
        weights: HeldWeights,
        cache: Cache,
        slots: Slots,
        calibrate: Callable[[ModelRunner], None] | None = None,
        read_adapter: ReadAdapter | None = None,
    ) -> None:
        """`calibrate` finds out, of a runner that is warm, what has to be measured before the first step."""
        self.space, self.executables, self.weights = space, executables, weights
        self.launcher = Launcher(space, executables, weights, cache, slots, read_adapter)
        self.draft_costs = DraftCosts()
        self._calibrate = calibrate
        self._written: Callable[[Mapping[str, jax.Array]], None] | None = None
        self._has_state = True
        self._unmasked: tuple[int, Callable[[], None]] | None = None
        self._forget_state()

    @property
    def parameters(self) -> tuple[jax.Array, ...]:
        """The arrays of `weights`."""
        return self.weights.arrays

    @property
    def cache(self) -> Cache:
        """As the steps that were launched leave it."""
        return self.launcher.cache

    @property
    def slots(self) -> Slots:
        """As the steps that were launched leave them."""
        return self.launcher.slots

    def _forget_state(self) -> None:
        """What is known of a cache and slots in which nothing is yet."""
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
        launcher = self.launcher
        num_device_drafts = 0 if self.space.draft is None else self.space.num_drafts
        rows = FlatRows.of(batch.rows, num_slots=self.space.max_num_seqs + 1, num_drafts=num_device_drafts)
        launcher.move(batch.moves)
        launcher.restore_states(batch.restored)
        self._begin(batch.begin)
        self._page_tables.write(batch.tables)
        step = self._planned(batch, rows)
        ended = launcher.forward(step.layout, step.buffers, rows)
        launcher.keep_states(batch.kept)
        if not launcher.samples:
            if step.num_sampled:
                launcher.hand_over(batch.number, step.kept.writes)
            if batch.masked:
                self._unmasked = batch.number, lambda: None
            return PendingElsewhere(ended)
        if isinstance(ended, Pooled):
            pooling = PendingPooling(rows, ended)
            pooling.start_copies()
            return pooling
        return self._sampled(batch, step, *ended)

    def _planned(self, batch: Batch, rows: FlatRows) -> _Planned:
        """What the device is told of a step, as its slots and their pages are now."""
        kept = KeptPlaces.of(rows)
        order, num_sampled, variant = self._table.order(kept)
        adapters = self._table.adapters(rows)
        layout = self.space.layout(batch.bucket, self._page_tables.longest(rows), adapters=adapters is not None)
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
        *before, buffer = self.launcher.put_everywhere(planned)
        if not batch.lengths_known:
            buffer = self.launcher.place_drafts(layout, rows, buffer)
        return _Planned(kept, order, num_sampled, variant, layout, (*before, buffer))

    def _sampled(
        self, batch: Batch, step: _Planned, hidden: jax.Array, fields: SampleInputs, states: tuple[jax.Array, ...]
    ) -> PendingStep:
        """Launch the sampling of a step, and what drafts behind it, or let `masks` do so."""
        launcher, kept = self.launcher, step.kept
        pending = PendingStep(
            kept,
            step.order,
            step.num_sampled,
            self._table.logprobs(kept),
            hidden,
            aligned=self._aligned(batch.rows, kept),
        )

        def sample() -> None:
            if step.num_sampled:
                shape = launcher.sampler.shape(step.num_sampled, step.variant, adapters=fields.adapters is not None)
                pending.outputs = launcher.sample(shape, hidden, fields)
                launcher.hand_over(batch.number, kept.writes)
            if batch.drafting:
                drafts = launcher.draft(step.layout, step.buffers[-1], states)
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
                picture = self.launcher.align(want, row.tokens, shown.pages)
                found[number] = Aligned(want, row.num_tokens, picture)
        return found

    def encode(self, encoding: Encoding) -> None:
        """Launch an encoder; return without waiting.

        Raises:
            RuntimeError: the model has none, or the device's memory was released.
            ValueError: the items do not fit the bucket or their pages.
        """
        self._check_memory("before items are encoded")
        self.launcher.encode(encoding)

    def _check_memory(self, when: str) -> None:
        if not (self.weights.complete and self._has_state):
            raise RuntimeError(f"the device's memory was released; restore it {when}")

    @property
    def tiers(self) -> Tiers:
        """The host's memory behind the pages."""
        return self.launcher.store

    def attach(self, stores: OuterStores, written: Callable[[Mapping[str, jax.Array]], None]) -> None:
        """Let pages be in these stores too, and tell of parameters that are replaced, whose pages are others."""
        self.launcher.store.attach(stores)
        self._written = written

    def move(self, moves: Sequence[Move]) -> None:
        """Launch moves of pages that no step brings; return without waiting."""
        self.launcher.move(moves)

    def masks(self, number: int, masks: Mapping[int, Masks]) -> None:
        """Write the masks that step `number` has waited for, and launch its sampling.

        Raises:
            ValueError: it waits for none.
        """
        if self._unmasked is None or self._unmasked[0] != number:
            raise ValueError(f"step {number} waits for no masks")
        (_, sample), self._unmasked = self._unmasked, None
        self.launcher.write(mask_writes(masks, self.space))
        sample()

    def load_adapter(self, path: str) -> str:
        """Read an adapter into the host's memory, beside steps."""
        return self.launcher.adapters.load(path)

    def place_adapter(self, digest: str, slot: int) -> None:
        """Launch the writing of one to a slot; return without waiting."""
        self.launcher.adapters.place(digest, slot, self.launcher.call)
        self.launcher.adapt()

    def drop_adapter(self, digest: str) -> None:
        """Forget one in the host's memory."""
        self.launcher.adapters.drop(digest)

    def forward(self, bucket: Bucket, rows: Sequence[Row], tables: Iterable[tuple[int, Int32s]]) -> None:
        """Write the keys and values of rows to their pages, and sample nothing."""
        self._page_tables.write(tables)
        flat = FlatRows.of(Rows(rows))
        kept = KeptPlaces.of(flat)
        order = np.arange(len(kept))
        layout = self.space.layout(bucket, self._page_tables.longest(flat))
        planned = pad(layout, flat, kept, order, self._page_tables, num_sampled=0)
        self.launcher.forward(layout, self.launcher.put_everywhere(planned))

    @property
    def buckets(self) -> Sequence[Bucket]:
        """Those whose programs are there."""
        return existing_buckets(self.launcher)

    def prepare(self) -> Mapping[Bucket, float]:
        """Warm up, unless programs are to be compiled on demand, and measure what has to be measured.

        Returns:
            The seconds of a step of each bucket (`StepTimes`).

        Raises:
            BundleError: a program of a required bundle does not run.
        """
        seconds: Mapping[Bucket, float] = {}
        if len(self.executables):
            warm_up(self.launcher)
            times = time_steps(self.launcher)
            seconds, self.draft_costs = times.seconds, times.drafts
        if self._calibrate is not None:
            self._calibrate(self)
        return seconds

    def write(self, what: Weights) -> None:
        """Put others in the place of parameters, one after the other: what was there goes first, so memory never holds both.

        Steps that are under way go on with those they were launched with. Arrays that lie on the devices as the parameter does
        are used as they are, and stay their owner's: they are never deleted here.

        Raises:
            UnfitWeightsError: the model has no such parameters, they have other shapes, or of those dropped some are missing.
            RuntimeError: the weights are on the host.
        """
        self.launcher.passing.wait()
        written = self.weights.write(what.values)
        self.launcher.use_parameters()
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
        self.launcher.passing.wait()
        self.weights.release(drop=drop_weights)
        self.launcher.free()
        self._has_state = False

    def restore_weights(self) -> None:
        """Bring the weights back that the host keeps.

        Raises:
            RuntimeError: it keeps none.
        """
        self.weights.restore()
        if self.weights.complete:
            self.launcher.use_parameters()

    def restore_state(self) -> None:
        """Take the memory of the cache and the slots again: they are empty.

        Raises:
            RuntimeError: it was not released.
        """
        if self._has_state:
            raise RuntimeError("the device's memory was not released, so there is nothing to restore")
        self.launcher.allocate()
        self._has_state = True
        self._forget_state()

    def close(self) -> None:
        """Free the weights, the cache and the slots on the device."""
        self.launcher.store.close()
        self.launcher.passing.wait()
        self.weights.close()
        self.launcher.free()

    def _begin(self, states: Sequence[SlotState]) -> None:
        if states:
            self._table.begin(states)
            if self.space.media is not None:
                self._media.begin(states)
            self.launcher.write(begin_writes(states, self.space))
