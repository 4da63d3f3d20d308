"""Runs a draft by itself: one sequence in scattered pages, all of its places first and then guess after guess."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxengine.device.layers.cache import Cache
from jaxengine.device.layers.schemes.by_path import PLAIN
from jaxengine.device.layers.sharding import ONE_DEVICE
from jaxengine.device.layers.stack import run_layers
from jaxengine.device.layers.step import Step
from jaxengine.device.models.drafts.interface import DraftRows
from jaxengine.device.models.parameters import abstract_model, merge
from jaxengine.device.runtime.cache_layout import lay_out
from jaxengine.device.weights.loader import load
from jaxengine.device.weights.rules import Rule
from pallas_kernels import kv_page_shape, latent_page_shape
from tests.device.models.place import InMemory

PAGE, NUM_PAGES = 4, 12
PAGES = [7, 2, 9, 4, 11, 1]


class Guesser:
    """A draft with weights. `shared` are tensors by the draft's own paths."""

    def __init__(
        self,
        draft_class: Any,
        config: Any,
        tensors: Mapping[str, np.ndarray],
        shared: Mapping[str, np.ndarray],
    ) -> None:
        self.graph, self.parameters = abstract_model(
            draft_class, config, dtype=jnp.float32, layout=ONE_DEVICE, platform="cpu"
        )
        own = {path: struct for path, struct in self.parameters.items() if not path.startswith(draft_class.SHARED)}
        arrays = load(InMemory(tensors), PLAIN.table(draft_class.rules(config)), own, config)
        assert {path for path in self.parameters if path.startswith(draft_class.SHARED)} == set(shared)
        arrays = {**arrays, **{path: jnp.asarray(tensor) for path, tensor in shared.items()}}
        self.model: Any = merge(self.graph, [arrays[path] for path in self.parameters])
        self.layout = lay_out(self.model.cache, max_model_len=PAGE * len(PAGES))
        self.cache = Cache(tuple(self._pages(pool) for pool in self.layout.pools), {})

    def _pages(self, pool: Any) -> jnp.ndarray:
        page = kv_page_shape(PAGE, pool.heads, pool.key, platform="cpu", shards=1, dtype=jnp.float32)
        page = latent_page_shape(PAGE, pool.key, platform="cpu") if pool.latent else page
        return jnp.full((pool.lanes * NUM_PAGES, *page), 7.0, jnp.float32)  # what is not written must not be read

    def step(self, start: int, count: int) -> Step:
        """A row of so many tokens from this position on."""
        groups = self.layout.num_groups
        positions = np.arange(start, start + count, dtype=np.int32)
        mapping = np.array(PAGES, np.int32)[positions // PAGE] * PAGE + positions % PAGE
        return Step(
            jnp.asarray(positions),
            page_table=jnp.tile(jnp.array(PAGES, jnp.int32), (groups, 1, 1)),
            offsets=jnp.array([0, count], jnp.int32),
            starts=jnp.array([start], jnp.int32),
            slot_mapping=jnp.tile(jnp.asarray(mapping), (groups, 1)),
            row_slots=jnp.array([1], jnp.int32),
            used=jnp.int32(count),
            indices=self.layout.indices,
            num_pages=(NUM_PAGES,) * len(self.layout.pools),
            page_size=PAGE,
            attention_backend="auto",
        )

    def guess(self, tokens: Sequence[int], states: np.ndarray, count: int) -> tuple[list[int], np.ndarray]:
        """So many guesses, and their logits `[count, V]`, of a draft that guesses one token after the other."""
        model, length, found, logits = self.model, len(tokens), [], []
        x = self._pass(np.array(tokens), model.take_in(jnp.asarray(states)), self.step(0, length))
        for number in range(count):
            hidden, handed = model.end(x[-1:])
            logits.append(np.asarray(model.logits(hidden))[0])
            found.append(int(logits[-1].argmax()))
            x = self._pass(np.array(found[-1:]), handed, self.step(length + number, 1))
        return found, np.stack(logits)

    def _pass(self, tokens: np.ndarray, states: Any, step: Step) -> Any:
        x, shared = self.model.begin(jnp.asarray(tokens, jnp.int32), states, step.positions)
        x, self.cache = run_layers(self.model.layers, x, self.cache, step.sharing(shared))
        return x

    def guess_block(self, tokens: Sequence[int], states: np.ndarray, count: int) -> np.ndarray:
        """Logits `[count, V]` of guesses made at once behind `tokens`, of which all but the last have states."""
        length = len(states)
        step = self.step(0, length)
        one = jnp.array([length], jnp.int32)
        given = DraftRows(
            tokens=jnp.array(tokens[:length], jnp.int32),
            states=self.model.take_in(jnp.asarray(states)),
            step=step,
            last=one - 1,
            sampled=jnp.array(tokens[length:], jnp.int32),
            positions=one,
            rows=lambda starts, size: self.step(length, size),
        )
        logits, self.cache = self.model.draft(given, self.cache, count)
        return np.asarray(logits)[0]


def of_target(rows: Sequence[Any], paths: tuple[str, ...], tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The target's embedding, head and norm by path, of a checkpoint's tensors."""
    sources = {row.target: row.source for row in rows if isinstance(row, Rule) and row.target.startswith(paths)}
    found = {}
    for target, source in sources.items():
        for name in (source.replace("[model.]", "model.").replace("[backbone.]", "backbone."),):
            if name in tensors:
                found[target] = tensors[name]
    return found
