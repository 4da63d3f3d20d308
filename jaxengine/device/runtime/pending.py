"""Steps that are under way: what is asked of each, and how it comes to the host."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from jaxengine.contract.batch import RowLogprobs, StepResult
from jaxengine.contract.rows import Align, Pool, Want
from jaxengine.device.layers.pooler import Pooled
from jaxengine.device.runtime.inputs import FlatRows, KeptPlaces
from jaxengine.device.sampling import SampleOutputs


@dataclass(frozen=True)
class Aligned:
    """What an `Align` row wants, in `picture [M, S]`; the row has `num_tokens`."""

    want: Align
    num_tokens: int
    picture: jax.Array

    def on_host(self) -> NDArray[np.float32]:
        """The part of it that is meant, `[tokens, frames]`."""
        whole = np.asarray(self.picture)
        return np.array(whole[self.want.first : self.num_tokens, : self.want.frames])


@dataclass
class PendingStep:
    """A step under way: its kept places, the order in which `num_sampled` of them are sampled, and the device's outputs.

    `outputs` are there when the sampling has been launched. `hidden [K, E]` is copied to the host where places are pooled.
    `drafts [B, k]` are those of each row, where they are asked for. `aligned` are the rows, by their numbers, of texts that are
    aligned with their sounds.
    """

    kept: KeptPlaces
    order: NDArray[np.intp]
    num_sampled: int
    logprobs: NDArray[np.bool_]
    hidden: jax.Array
    outputs: SampleOutputs | None = None
    drafts: jax.Array | None = None
    aligned: Mapping[int, Aligned] = field(default_factory=dict)

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
        drafts = None if self.drafts is None else np.asarray(self.drafts)
        return StepResult(tokens=tokens, logprobs=self._row_logprobs(back), pooled=self._hidden(back), drafts=drafts)

    def _asked_for(self) -> Iterable[jax.Array]:
        if self.outputs is not None:
            yield from jax.tree.leaves(self.outputs) if self.logprobs.any() else [self.outputs.tokens]
        if self.kept.pooled.any():
            yield self.hidden
        for of_row in self.aligned.values():
            yield of_row.picture
        if self.drafts is not None:
            yield self.drafts

    def _row_logprobs(self, back: NDArray[np.intp]) -> tuple[RowLogprobs | None, ...]:
        if self.outputs is None or not self.logprobs.any():
            return (None,) * len(self.kept)
        logprob, rank = np.asarray(self.outputs.logprob), np.asarray(self.outputs.rank)
        top_ids, top_logprobs = np.asarray(self.outputs.top_ids), np.asarray(self.outputs.top_logprobs)
        return tuple(
            RowLogprobs(float(logprob[row]), int(rank[row]), top_ids[row], top_logprobs[row]) if asked else None
            for row, asked in zip(back.tolist(), self.logprobs.tolist(), strict=True)
        )

    def _hidden(self, back: NDArray[np.intp]) -> tuple[NDArray[np.float32], ...]:
        if not self.kept.pooled.any():
            return ()
        hidden, found = np.asarray(self.hidden), []
        for place in np.flatnonzero(self.kept.pooled):
            of_row = self.aligned.get(int(self.kept.rows[place]))
            found.append(hidden[back[place]].astype(np.float32) if of_row is None else of_row.on_host())
        return tuple(found)


@dataclass
class PendingElsewhere:
    """A step under way that ends on another host; `part` is what leaves this one."""

    part: Any

    def wait(self) -> StepResult:
        """Until this host has done its part: there is nothing to copy."""
        jax.block_until_ready(self.part)
        return StepResult(np.zeros(0, np.int32), (), ())


@dataclass
class PendingPooling:
    """A step under way of a model that pools: what its rows want, and the places between which they lie."""

    rows: FlatRows
    outputs: Pooled

    def start_copies(self) -> None:
        """Let the device send what is asked for as soon as it is there."""
        for array in (self.outputs.rows, self.outputs.places):
            if any(self._source(want) is array for want in self.rows.wants):
                array.copy_to_host_async()

    def wait(self) -> StepResult:
        """Copy what is asked for to the host."""
        jax.block_until_ready(self.outputs.rows)
        ends = np.cumsum(self.rows.counts)
        pooled = []
        for row, (want, end, count) in enumerate(zip(self.rows.wants, ends, self.rows.counts, strict=True)):
            if isinstance(want, Pool):
                found = np.asarray(self._source(want))
                pooled.append(np.array(found[end - count : end] if want.each else found[row]))
        return StepResult(np.zeros(len(pooled), np.int32), (None,) * len(pooled), tuple(pooled))

    def _source(self, want: Want) -> jax.Array | None:
        return None if not isinstance(want, Pool) else self.outputs.places if want.each else self.outputs.rows
