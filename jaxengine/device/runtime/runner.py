"""The device half of a step: `Batch` in, compiled programs called, `StepResult` out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from buckets import Bucket
from jaxengine.contract.batch import Batch, Bitmask, Int32s, Row, RowLogprobs, Rows, SlotState, StepResult, Weights
from jaxengine.device.layers.cache import Cache
from jaxengine.device.runtime.executables import Executables
from jaxengine.device.runtime.forward import Call, ForwardPass
from jaxengine.device.runtime.host_store import HostStore
from jaxengine.device.runtime.inputs import FlatRows, KeptPlaces, PageTables, pad
from jaxengine.device.runtime.slot_state import SlotTable, Write, begin_writes, mask_writes, sink_writes
from jaxengine.device.runtime.space import ProgramSpace, SampleShape, zeroed
from jaxengine.device.runtime.transfer import put
from jaxengine.device.sampling import SampleInputs, SampleOutputs, Slots, Variant
from jaxengine.device.weights.placement import HostCopy
from jaxengine.device.weights.placement import place as placed


@dataclass
class PendingStep:
    """A step under way: its kept places, the order in which `num_sampled` of them are sampled, and the device's outputs.

    `outputs` are there when the sampling has been launched. `hidden [K, E]` is copied to the host where places are pooled.
    """

    kept: KeptPlaces
    order: NDArray[np.intp]
    num_sampled: int
    logprobs: NDArray[np.bool_]
    hidden: jax.Array
    outputs: SampleOutputs | None = None

    def start_copies(self) -> None:
        """Let the device send what is asked for as soon as it is there."""
        for array in self._asked_for():
            array.copy_to_host_async()

    def wait(self) -> StepResult:
        """Copy tokens, and what else was asked for, to the host.

        Raises:
            RuntimeError: the step waits for its masks.
        """
        count, outputs = len(self.kept), self.outputs
        if outputs is None and self.num_sampled:
            raise RuntimeError("a step was waited for before it was given its masks")
        back = np.empty(count, np.intp)
        back[self.order] = np.arange(count)
        if outputs is None:
            jax.block_until_ready(self.hidden)
            tokens = np.zeros(count, np.int32)
        else:
            tokens = np.asarray(outputs.tokens)[np.minimum(back, outputs.tokens.shape[0] - 1)]
        return StepResult(tokens=tokens, logprobs=self._row_logprobs(back), embeddings=self._embeddings(back))

    def _asked_for(self) -> Iterable[jax.Array]:
        if self.outputs is not None:
            yield from jax.tree.leaves(self.outputs) if self.logprobs.any() else [self.outputs.tokens]
        if self.kept.pooled.any():
            yield self.hidden

    def _row_logprobs(self, back: NDArray[np.intp]) -> tuple[RowLogprobs | None, ...]:
        if self.outputs is None or not self.logprobs.any():
            return (None,) * len(self.kept)
        logprob, rank = np.asarray(self.outputs.logprob), np.asarray(self.outputs.rank)
        top_ids, top_logprobs = np.asarray(self.outputs.top_ids), np.asarray(self.outputs.top_logprobs)
        return tuple(
            RowLogprobs(float(logprob[row]), int(rank[row]), top_ids[row], top_logprobs[row]) if asked else None
            for row, asked in zip(back.tolist(), self.logprobs.tolist(), strict=True)
        )

    def _embeddings(self, back: NDArray[np.intp]) -> tuple[NDArray[np.float32], ...]:
        if not self.kept.pooled.any():
            return ()
        hidden = np.asarray(self.hidden)
        return tuple(hidden[back[place]].astype(np.float32) for place in np.flatnonzero(self.kept.pooled))


@dataclass
class ModelRunner:
    """Owns the device state: parameters, the cache and the slots. Calls compiled programs only.

    `calibrate` finds out, of a runner that is warm, what has to be measured before the first step.
    """

    space: ProgramSpace
    executables: Executables
    parameters: tuple[jax.Array, ...]
    cache: Cache
    slots: Slots
    calibrate: Callable[[ModelRunner], None] | None = None

    def __post_init__(self) -> None:
        self._store = HostStore(self.space)
        self._weights: list[HostCopy] = []
        self._unmasked: tuple[int, Callable[[], None]] | None = None
        self._begin_empty()

    def _begin_empty(self) -> None:
        """What is known of a cache and slots in which nothing is yet."""
        self._pass = ForwardPass(self.space, self.parameters)
        num_slots = self.space.max_num_seqs + 1
        self._table = SlotTable(num_slots)
        self._page_tables = PageTables(
            num_slots,
            pages_per_row=self.space.pages_per_row,
            page_size=self.space.page_size,
            num_groups=self.space.cache.num_groups,
        )

    @property
    def max_in_flight(self) -> int:
        """One step that the device computes, and the next."""
        return 2

    def launch(self, batch: Batch) -> PendingStep:
        """Launch moves of pages, the slots that begin, the forward pass and the sampling of one step; return without waiting.

        The sampling of a masked step is launched by `masks`.

        A slot with penalties samples one token a row: what it would count depends on which drafts were right.

        Raises:
            ValueError: the rows do not fit the bucket or their pages, or are of drafts that the device should have.
            RuntimeError: the step before waits for its masks.
        """
        if self._weights:
            raise RuntimeError("the device's memory was released; restore it before the next step")
        if self._unmasked is not None:
            raise RuntimeError(f"step {batch.number} was launched before step {self._unmasked[0]} was given its masks")
        rows = FlatRows.of(batch.rows)
        kept = KeptPlaces.of(rows)
        self.cache = self._store.move(batch.moves, self.cache, self._call)
        self._begin(batch.begin)
        self._page_tables.write(batch.tables)
        order, num_sampled, variant = self._table.order(kept)
        layout = self.space.layout(batch.bucket)
        buffer = pad(layout, rows, kept, order, self._page_tables, num_sampled=num_sampled)
        hidden, fields = self._forward(batch.bucket, buffer)
        pending = PendingStep(kept, order, num_sampled, self._table.logprobs(kept), hidden)

        def sample() -> None:
            if num_sampled:
                pending.outputs = self._sample(self._sample_shape(num_sampled, variant), hidden, fields)
            pending.start_copies()

        if batch.masked:
            self._unmasked = batch.number, sample
        else:
            sample()
        return pending

    def masks(self, number: int, masks: Mapping[int, Bitmask]) -> None:
        """Write the masks that step `number` has waited for, and launch its sampling.

        Raises:
            ValueError: it waits for none.
        """
        if self._unmasked is None or self._unmasked[0] != number:
            raise ValueError(f"step {number} waits for no masks")
        (_, sample), self._unmasked = self._unmasked, None
        self._write(mask_writes(masks))
        sample()

    def forward(self, bucket: Bucket, rows: Sequence[Row], tables: Iterable[tuple[int, Int32s]]) -> None:
        """Write the keys and values of rows to their pages, and sample nothing."""
        self._page_tables.write(tables)
        flat = FlatRows.of(Rows(rows))
        kept = KeptPlaces.of(flat)
        order = np.arange(len(kept))
        self._forward(bucket, pad(self.space.layout(bucket), flat, kept, order, self._page_tables, num_sampled=0))

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
        """Put others in the place of parameters. Steps that are under way go on with those they were launched with.

        Raises:
            ValueError: the model has no such parameters, or they have other shapes.
        """
        structs, values = self.space.parameters, what.values
        for path, value in values.items():
            if path not in structs or structs[path].shape != value.shape:
                has = f"of shape {structs[path].shape}" if path in structs else "not among the model's"
                raise ValueError(f"{path} of shape {value.shape} cannot be written: the parameter is {has}")
        self.parameters = tuple(
            placed(values[path], structs[path]) if path in values else array
            for path, array in zip(structs, self.parameters, strict=True)
        )
        self._pass = ForwardPass(self.space, self.parameters)

    def release(self) -> None:
        """Give the device's memory back; the host keeps a copy of the weights.

        Raises:
            RuntimeError: a step waits for its masks, or the memory was released before.
        """
        if self._unmasked is not None or self._weights:
            raise RuntimeError("the device's memory is released once, and while nothing runs")
        self._weights = [HostCopy.of(array) for array in self.parameters]
        self._free()

    def restore(self) -> None:
        """Bring the weights back, beside a cache and slots that are empty.

        Raises:
            RuntimeError: the memory was not released.
        """
        if not self._weights:
            raise RuntimeError("the device's memory was not released, so there is nothing to restore")
        weights, self._weights = self._weights[::-1], []
        self.parameters = tuple(placed(weights.pop(), struct) for struct in self.space.parameters.values())
        self.cache, self.slots = allocate_state(self.space)
        self._begin_empty()

    def warm_up(self) -> dict[Bucket, float]:
        """Run every program that exists once on dummy rows, which write to the sinks only: compiled is not yet warm.

        Returns:
            The seconds of a step of each bucket that exists, without keys and values to read. Of layers that are alike one is
            timed.

        Raises:
            BundleError: a program of a required bundle does not run.
        """
        buckets, state = self.buckets, None
        for bucket in buckets:
            state = self._forward(bucket, self._dummy(bucket), self._call_first, only=0)
        self.cache = self._store.run_once(self.cache, self._call_first)
        for name, buffer in sink_writes(self.space):
            self.slots = self._call_first(name, self.slots, self._put(buffer))
        seconds: dict[str, float] = {}

        def timed(name: str, *arguments: Any) -> Any:
            begun = time.perf_counter()
            result = jax.block_until_ready(self._call(name, *arguments))
            seconds[name] = time.perf_counter() - begun
            return result

        for shape in self.space.sample_shapes:
            if state is not None and shape.name in self.executables:
                self._sample(shape, *state, self._call_first)
                if shape.variant is Variant.GREEDY:
                    self._sample(shape, *state, timed)
        for number, bucket in enumerate(buckets):
            # another layer each time: what a step reads is in no cache
            self._forward(bucket, self._dummy(bucket), timed, only=1 + number)
        return {bucket: self._step_seconds(bucket, seconds) for bucket in buckets}

    def close(self) -> None:
        """Free the weights, the cache and the slots on the device."""
        self._weights = []
        self._free()
        self.parameters = ()

    def _free(self) -> None:
        for array in (*self.parameters, *jax.tree.leaves((self.cache, self.slots))):
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
        self, bucket: Bucket, buffer: Any, call: Call | None = None, *, only: int | None = None
    ) -> tuple[jax.Array, SampleInputs]:
        hidden, kept, self.cache = self._pass.run(
            call or self._call, bucket, self.cache, self.slots.last_token, self._put(buffer), only=only
        )
        return hidden, kept

    def _sample_shape(self, num_rows: int, variant: Variant) -> SampleShape:
        """The smallest program that there is; the largest always is."""
        shapes = (SampleShape(rows, variant) for rows in self.space.row_counts if rows >= num_rows)
        found = next((shape for shape in shapes if shape.name in self.executables), None)
        return found or SampleShape(self.space.kept, variant)

    def _sample(
        self, shape: SampleShape, hidden: jax.Array, kept: SampleInputs, call: Call | None = None
    ) -> SampleOutputs:
        outputs: SampleOutputs
        outputs, self.slots = (call or self._call)(shape.name, self._pass.outer, hidden, kept, self.slots)
        return outputs

    def _begin(self, states: Sequence[SlotState]) -> None:
        if states:
            self._table.begin(states)
            self._write(begin_writes(states, self.space))

    def _write(self, writes: Iterable[Write]) -> None:
        for name, buffer in writes:
            self.slots = self._call(name, self.slots, self._put(buffer))

    def _dummy(self, bucket: Bucket) -> Any:
        """A step without rows, of which all kept places are sampled: they are the sink's."""
        layout = self.space.layout(bucket)
        buffer = np.zeros(layout.size, np.int32)
        layout.view(buffer, "count")[...] = self.space.kept
        return buffer

    def _step_seconds(self, bucket: Bucket, seconds: Mapping[str, float]) -> float:
        rows = self._sample_shape(min(bucket.batch, self.space.kept), Variant.GREEDY)
        passing = sum(times * seconds[name] for name, times in self._pass.calls(bucket).items())
        return passing + seconds.get(rows.name, 0.0)  # nothing is sampled of a model without logits

    def _put(self, array: Any) -> jax.Array:
        return put(array, self.space.replicated)


def allocate_state(space: ProgramSpace) -> tuple[Cache, Slots]:
    """A zeroed cache and zeroed slots, each shard made on its own device.

    The first time that this is called for a space it compiles: that belongs before the engine is ready.
    """
    return jax.block_until_ready(space.zeroed_state())


def _is_deleted(value: Any) -> bool:
    return isinstance(value, jax.Array) and value.is_deleted()
