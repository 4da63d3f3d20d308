"""The device half of a step: `Batch` in, compiled programs called, `StepResult` out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from buckets import StepShape
from jaxengine.batch import Batch, Bitmask, Row, RowLogprobs, RowSampling, StepResult
from jaxengine.runtime.executables import Executables
from jaxengine.runtime.forward import Call, ForwardPass
from jaxengine.runtime.inputs import pad
from jaxengine.runtime.programs import COPIES_PER_LAUNCH, COPY_NAME
from jaxengine.runtime.sampling_inputs import choose_shape, fill
from jaxengine.runtime.space import ProgramSpace, SampleShape


@dataclass(frozen=True)
class Launch:
    """One forward pass under way: its sampled rows and their hidden states `[R, E]` on the device."""

    rows: list[RowSampling]
    positions: list[int]
    hidden: jax.Array


@dataclass(frozen=True)
class LaunchedStep:
    """The launches of one step, in the order in which their rows are reported."""

    launches: tuple[Launch, ...]


@dataclass(frozen=True)
class PendingStep:
    """Sampling under way: per launch its rows and the device's outputs."""

    parts: tuple[tuple[list[RowSampling], Any], ...]

    def wait(self) -> StepResult:
        """Copy tokens, and log probabilities where asked for, to the host."""
        tokens: list[Any] = []
        logprobs: list[RowLogprobs | None] = []
        for rows, outputs in self.parts:
            tokens.append(np.asarray(outputs.tokens)[: len(rows)])
            logprobs += _row_logprobs(rows, outputs)
        return StepResult(tokens=np.concatenate(tokens) if tokens else np.zeros(0, np.int32), logprobs=tuple(logprobs))


@dataclass
class ModelRunner:
    """Owns the device state: parameters and the KV pool. Calls compiled programs only."""

    space: ProgramSpace
    executables: Executables
    parameters: tuple[jax.Array, ...]
    kv_pages: jax.Array

    def __post_init__(self) -> None:
        self._pass = ForwardPass(self.space, self.parameters)

    def forward(self, batch: Batch) -> LaunchedStep:
        """Launch page copies, then the forward pass: one launch where the pair of buckets was planned, else two."""
        self._copy_pages(batch.copies)
        whole = StepShape(batch.prefill_bucket, batch.decode_bucket)
        if self._pass.exists(whole, self.executables):
            return LaunchedStep((self._launch(whole, batch.prefill, batch.decode),))
        return LaunchedStep(
            (
                self._launch(StepShape(batch.prefill_bucket, None), batch.prefill, ()),
                self._launch(StepShape(None, batch.decode_bucket), (), batch.decode),
            )
        )

    def sample(self, batch: Batch, hidden: LaunchedStep, masks: Mapping[int, Bitmask]) -> PendingStep:
        """Launch sampling for every launch that has rows to sample."""
        launches = _masked(hidden.launches, masks) if masks else hidden.launches
        return PendingStep(tuple((launch.rows, self._sample(launch)) for launch in launches if launch.rows))

    def warm_up(self) -> None:
        """Run every program that exists once on dummy rows, which write to the sink page only: compiled is not yet warm.

        Raises:
            BundleError: a program of a required bundle does not run.
        """
        states: dict[int, jax.Array] = {}
        for shape in self.space.grid.shapes:
            if self._pass.exists(shape, self.executables):
                buffer = np.zeros(self.space.layout(shape).size, np.int32)
                hidden = self._forward(shape, buffer, self._call_first, once=True)
                states[hidden.shape[0]] = hidden
        for sample in self.space.sample_shapes:
            if sample.name in self.executables and sample.rows in states:
                inputs = fill(sample, [], [], vocab_size=self.space.vocab_size)
                self._run_sample(states[sample.rows], sample, inputs, self._call_first)
        self._copy_pages(((0, 0),), self._call_first)

    def _call(self, name: str, *arguments: Any) -> Any:
        return self.executables[name](*arguments)

    def _call_first(self, name: str, *arguments: Any) -> Any:
        """Run a program for the first time, and wait. One that was loaded and does not run is compiled after all."""
        try:
            return jax.block_until_ready(self._call(name, *arguments))
        except Exception as error:
            if not self.executables.compile_again(name, error):
                raise
            # the call that failed may have consumed the pool, the one argument that is donated
            whole = (allocate_kv_pages(self.space) if _is_deleted(value) else value for value in arguments)
            return jax.block_until_ready(self._call(name, *whole))

    def close(self) -> None:
        """Free the weights and the KV pool on the device."""
        for array in (*self.parameters, self.kv_pages):
            if not array.is_deleted():
                array.delete()
        self.parameters = ()

    def _launch(self, shape: StepShape, prefill: Sequence[Row], decode: Sequence[Row]) -> Launch:
        hidden = self._forward(shape, pad(self.space.layout(shape), prefill, decode))
        sampled = [row for row in (*prefill, *decode) if row.sampling is not None]
        return Launch(
            rows=[row.sampling for row in sampled if row.sampling is not None],
            positions=[row.start + len(row.tokens) for row in sampled],
            hidden=hidden,
        )

    def _forward(self, shape: StepShape, buffer: Any, call: Call | None = None, *, once: bool = False) -> jax.Array:
        hidden, self.kv_pages = self._pass.run(call or self._call, shape, self.kv_pages, self._put(buffer), once=once)
        return hidden

    def _sample(self, launch: Launch) -> Any:
        shape = choose_shape(launch.rows, num_rows=launch.hidden.shape[0], max_history=self.space.max_model_len)
        inputs = fill(shape, launch.rows, launch.positions, vocab_size=self.space.vocab_size)
        return self._run_sample(launch.hidden, shape, inputs)

    def _run_sample(self, hidden: jax.Array, shape: SampleShape, inputs: Any, call: Call | None = None) -> Any:
        return (call or self._call)(shape.name, self._pass.outer, hidden, jax.tree.map(self._put, inputs))

    def _copy_pages(self, copies: Sequence[tuple[int, int]], call: Call | None = None) -> None:
        for i in range(0, len(copies), COPIES_PER_LAUNCH):
            pairs = np.zeros((2, COPIES_PER_LAUNCH), np.int32)
            chunk = copies[i : i + COPIES_PER_LAUNCH]
            pairs[:, : len(chunk)] = np.asarray(chunk, np.int32).T
            self.kv_pages = (call or self._call)(COPY_NAME, self.kv_pages, self._put(pairs[0]), self._put(pairs[1]))

    def _put(self, array: Any) -> jax.Array:
        return jax.device_put(array, self.space.replicated)


def _masked(launches: Sequence[Launch], masks: Mapping[int, Bitmask]) -> list[Launch]:
    """The launches with masks in the rows that they number, across all launches."""
    numbers = count()
    return [
        replace(launch, rows=[replace(row, allowed=masks.get(next(numbers), row.allowed)) for row in launch.rows])
        for launch in launches
    ]


def allocate_kv_pages(space: ProgramSpace) -> jax.Array:
    """A zeroed KV pool, each shard made on its own device. This compiles: it belongs before the engine is ready."""
    struct = space.kv_pages
    zeros = jax.jit(lambda: jnp.zeros(struct.shape, struct.dtype), out_shardings=struct.sharding)
    return jax.block_until_ready(zeros())


def _is_deleted(value: Any) -> bool:
    return isinstance(value, jax.Array) and value.is_deleted()


def _row_logprobs(rows: Sequence[RowSampling], outputs: Any) -> list[RowLogprobs | None]:
    if all(row.spec.num_logprobs is None and row.target is None for row in rows):
        return [None] * len(rows)
    logprob, rank = np.asarray(outputs.logprob), np.asarray(outputs.rank)
    top_ids, top_logprobs = np.asarray(outputs.top_ids), np.asarray(outputs.top_logprobs)
    return [
        None
        if row.spec.num_logprobs is None and row.target is None
        else RowLogprobs(float(logprob[i]), int(rank[i]), top_ids[i], top_logprobs[i])
        for i, row in enumerate(rows)
    ]
