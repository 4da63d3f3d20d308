"""Runs a model the way the engine does: rows, pages, padding, chunked prompts, then decode one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxengine.layers.attention import AttentionInputs, RowBlock
from jaxengine.layers.sharding import kv_sharding, tensor_mesh
from jaxengine.models.hf import read_config
from jaxengine.models.parameters import abstract_model, merge
from jaxengine.models.registry import resolve
from pallas_kernels import kv_storage_dtype
from tests.models.place import place


@dataclass
class Row:
    """New tokens of one sequence, and the pages it has."""

    tokens: Sequence[int]
    start: int
    pages: Sequence[int]


class PagedModel:
    """A model with its weights and a page pool."""

    def __init__(
        self,
        hf_config: Mapping[str, Any],
        tensors: Mapping[str, np.ndarray],
        *,
        dtype: Any = jnp.float32,
        devices: int = 1,
        page_size: int = 4,
        num_pages: int = 96,
        backend: str = "auto",
    ) -> None:
        model_class = resolve(hf_config)
        self.config = read_config(model_class, hf_config, tensor_parallel_size=devices)
        self.mesh = None if devices == 1 else tensor_mesh(jax.devices()[:devices])
        self.graph, self.structs = abstract_model(model_class, self.config, dtype=dtype, mesh=self.mesh, platform="cpu")
        self.arrays = place(model_class, self.config, tensors, self.structs)
        self.page_size, self.num_pages, self.backend = page_size, num_pages, backend
        cache = self.config.cache
        shape = (cache.num_layers * num_pages, page_size, 2 * cache.num_kv_heads, cache.head_dim)
        pages = jnp.zeros(shape, kv_storage_dtype(dtype, platform="cpu"))
        self.kv_pages = pages if self.mesh is None else jax.device_put(pages, kv_sharding(self.mesh))
        self._forward = jax.jit(self._run, donate_argnums=1)

    def step(self, *blocks: Sequence[Row], seqs: Sequence[int], batches: Sequence[int]) -> list[np.ndarray]:
        """Run rows padded to buckets; return float32 logits `[tokens, V]` of each row, in order."""
        flat: dict[str, list[np.ndarray]] = {"tokens": [], "positions": [], "slots": []}
        padded, places, offset = [], [], 0
        for rows, seq, batch in zip(blocks, seqs, batches, strict=True):
            width = max(len(row.pages) for row in rows) if rows else 1
            table, starts, lengths = (
                np.zeros((batch, width), np.int32),
                np.zeros(batch, np.int32),
                np.zeros(batch, np.int32),
            )
            tokens, positions, slots = (np.zeros((batch, seq), np.int32) for _ in range(3))
            for i, row in enumerate(rows):
                count = len(row.tokens)
                at = np.arange(row.start, row.start + count)
                table[i, : len(row.pages)], starts[i], lengths[i] = row.pages, row.start, count
                tokens[i, :count], positions[i, :count] = row.tokens, at
                slots[i, :count] = np.asarray(row.pages)[at // self.page_size] * self.page_size + at % self.page_size
                places.append(slice(offset + i * seq, offset + i * seq + count))
            offset += batch * seq
            padded.append(RowBlock(page_table=table, starts=starts, lengths=lengths, seq=seq))
            for name, array in (("tokens", tokens), ("positions", positions), ("slots", slots)):
                flat[name].append(array.reshape(-1))
        tokens, positions, slots = (np.concatenate(arrays) for arrays in flat.values())
        attention = AttentionInputs(
            blocks=tuple(padded),
            slots=slots,
            num_pages=self.num_pages,
            page_size=self.page_size,
            backend=self.backend,
        )
        logits, self.kv_pages = self._forward(self.arrays, self.kv_pages, tokens, positions, attention)
        logits = np.asarray(logits)
        return [logits[where] for where in places]

    def logits(self, prompts: Sequence[Sequence[int]], *, seq: int) -> list[np.ndarray]:
        """Logits `[tokens, V]` of whole prompts, cut into rows of `seq` places, all in one step."""
        rows, owners = [], []
        for index, (prompt, pages) in enumerate(zip(prompts, self.allot([len(p) for p in prompts]), strict=True)):
            for start in range(0, len(prompt), seq):
                rows.append(Row(prompt[start : start + seq], start, pages))
                owners.append(index)
        results = self.step(rows, seqs=[seq], batches=[len(rows) + 1])
        return [
            np.concatenate([r for r, owner in zip(results, owners, strict=True) if owner == i])
            for i in range(len(prompts))
        ]

    def allot(self, lengths: Sequence[int]) -> list[list[int]]:
        """Scattered, disjoint pages for sequences of these lengths; page 0 is the sink."""
        free = list(np.random.default_rng(7).permutation(np.arange(1, self.num_pages)))
        return [[int(free.pop()) for _ in range(-(-length // self.page_size))] for length in lengths]

    def greedy(self, prompts: Sequence[Sequence[int]], count: int, *, seq: int) -> list[list[int]]:
        """`count` greedy tokens after each prompt: chunked prefill in steps of one chunk each, then decode, rows together."""
        pages = self.allot([len(prompt) + count for prompt in prompts])
        outputs: list[list[int]] = [[] for _ in prompts]
        done = [0] * len(prompts)
        while any(len(output) < count for output in outputs):
            prefill = [i for i, prompt in enumerate(prompts) if done[i] < len(prompt)]
            decode = [i for i in range(len(prompts)) if outputs[i] and len(outputs[i]) < count]
            chunks = [Row(prompts[i][done[i] : done[i] + seq], done[i], pages[i]) for i in prefill]
            singles = [Row([outputs[i][-1]], len(prompts[i]) + len(outputs[i]) - 1, pages[i]) for i in decode]
            # The shapes stay the same over the run, so that each model compiles two programs.
            results = (
                self.step(chunks, singles, seqs=[seq, 1], batches=[len(prompts)] * 2)
                if prefill
                else self.step(singles, seqs=[1], batches=[len(prompts) + 1])
            )
            for i, row, result in zip([*prefill, *decode], [*chunks, *singles], results, strict=True):
                if row in chunks:
                    done[i] += len(row.tokens)
                if done[i] == len(prompts[i]):
                    outputs[i].append(int(result[-1].argmax()))
        return outputs

    def _run(self, arrays: Any, kv_pages: Any, tokens: Any, positions: Any, attention: AttentionInputs) -> Any:
        model = merge(self.graph, arrays)
        hidden, kv_pages = model(tokens, positions, kv_pages, attention)
        return model.logits(hidden), kv_pages
