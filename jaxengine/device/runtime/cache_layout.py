"""From what a model's layers keep to pools of pages and arrays by slot, and where in them each layer finds what is its.

Layers whose pages have one shape share a pool. Those of them that see equally far back form a group: a sequence holds one list
of pages for all of them. The pool has `lanes`, each as long as there are pages, and a group's layers lie in lanes of their own;
a page id is a page of one group in all lanes. The groups of a pool are of one size, so that any page serves any of them: where
few layers see everything and many see a window, as in Gemma 3, the many are cut into several groups of the size of the few, and
what does not divide leaves a lane of the last one empty. (vLLM's hybrid cache manager divides in the same way.)

    layers   w w w w w F w w w w w F        F sees everything, w a window
    groups   A A B B C 0 C D D E E 0        two lanes

A layer that reads what another keeps has the index of the other.

Keys of an indexer have a pool of their own, laid out likewise.

Were the heads of F larger than those of w, as in Gemma 4, there would be two pools: one of two lanes for group 0, one of ten
for the only group of w. `device/runtime/memory.py` says how many pages each gets.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from jaxengine.contract.cache_traits import CacheTraits
from jaxengine.contract.windows import pages_held
from jaxengine.device.layers.keeps import CacheIndex, IndexKeys, Keeps, Paged, PageIndex, PerSlot, Reads, State, Takes
from jaxengine.errors import ConfigError

Kind = TypeVar("Kind")


@dataclass(frozen=True, kw_only=True)
class PoolLayout:
    """Pages of one shape: the `windows` of each group in the pool (None: everything), and how many layers a group has.

    `heads`, `key`, `value` and `dtype` are as in `Paged`. `by_mesh` are the lanes that each mesh of a pipeline has.
    """

    heads: int
    key: int
    value: int
    dtype: Any = None
    windows: tuple[int | None, ...]
    lanes: int
    by_mesh: tuple[int, ...] = ()

    @property
    def latent(self) -> bool:
        """As in `Paged`."""
        return self.value == 0


ACCOUNT = PoolLayout(heads=1, key=1, value=0, windows=(1,), lanes=1)
"""Where no layer keeps pages: a sequence holds the few of a window of one token, which nothing is written to, so that who counts
pages need not know."""


@dataclass(frozen=True, kw_only=True)
class StateLayout:
    """An array by slot, `[layers, slots, ...]`; `by_mesh` are the layers of it that each mesh of a pipeline has."""

    state: State
    layers: int
    by_mesh: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CacheLayout:
    """The pools, the states, and of each layer where it finds what it keeps. Groups are numbered through the pools."""

    pools: tuple[PoolLayout, ...]
    indices: tuple[CacheIndex, ...]
    states: tuple[StateLayout, ...] = ()

    @property
    def num_groups(self) -> int:
        return sum(len(pool.windows) for pool in self.pools)

    def of_mesh(self, number: int) -> CacheLayout:
        """What one mesh of a pipeline has. Lanes and states are numbered there: the indices are the same."""
        pools = (replace(pool, lanes=pool.by_mesh[number]) if pool.by_mesh else pool for pool in self.pools)
        states = (replace(state, layers=state.by_mesh[number]) for state in self.states if state.by_mesh[number])
        return replace(self, pools=tuple(pools), states=tuple(states))

    def pages_held(self, num_tokens: int, *, page_size: int, ahead: int) -> tuple[int, ...]:
        """The most pages of each pool that a sequence of so many tokens holds; steps have up to `ahead` tokens."""
        return tuple(pages_held(pool.windows, num_tokens, page_size=page_size, ahead=ahead) for pool in self.pools)


def cache_traits(cache: Sequence[Keeps]) -> CacheTraits:
    """What follows for scheduling: of a state there is the latest only, which a row goes on from."""
    cuts = [kept.cut for kept in itertools.chain.from_iterable(cache) if isinstance(kept, PerSlot)]
    return CacheTraits(rewinds=not cuts, cut=math.lcm(*cuts))


def lay_out(cache: Sequence[Keeps], *, max_model_len: int, stages: Sequence[range] = ()) -> CacheLayout:
    """Divide what the layers of a model keep into pools, and these into groups of one size.

    A window that no sequence outgrows is none. The first pool is one with layers that see everything, where there are such.

    Where the layers are those of several `stages`, a page is a page of its group in the lanes of all of them, and each has as
    many lanes as it needs for its own layers.

    Raises:
        ConfigError: keys and values of one layer differ in size, or a layer reads or takes what is another stage's.
        ValueError: a layer declares pages twice, reads a layer that has none, or a state under another's name.
    """
    shapes = _by_shape(cache, max_model_len)
    everywhere = range(len(cache))
    pools: list[PoolLayout] = []
    of_layer: dict[int, CacheIndex] = {}
    num_groups = 0
    for shape, kinds in sorted(shapes.items(), key=lambda item: (None not in item[1], _order(item[0]))):
        size = min(map(len, kinds.values()))
        counts = {window: -(-len(layers) // size) for window, layers in kinds.items()}
        lanes = tuple(
            max(-(-len(_within(layers, stage)) // counts[window]) for window, layers in kinds.items())
            for stage in stages or (everywhere,)
        )
        windows: list[int | None] = []
        for window, layers in sorted(kinds.items(), key=lambda kind: (kind[0] is not None, kind[1])):
            for stage, there in zip(stages or (everywhere,), lanes, strict=True):
                for place, layer in enumerate(_within(layers, stage)):
                    group = num_groups + len(windows) + place // there
                    of_layer[layer] = CacheIndex(len(pools), group, place % there)
            windows += [window] * counts[window]
        num_groups += len(windows)
        pools.append(
            PoolLayout(
                heads=shape.heads,
                key=shape.key,
                value=shape.value,
                dtype=shape.dtype,
                windows=tuple(windows),
                lanes=sum(lanes),
                by_mesh=lanes if stages else (),
            )
        )
    _let_read(of_layer, cache, stages)
    of_keys: dict[int, PageIndex] = {}
    for kept, owners in _index_keys(cache).items():
        by_stage = [_within(owners, stage) for stage in stages or (everywhere,)]
        of_keys |= {
            layer: PageIndex(len(pools), num_groups, lane) for there in by_stage for lane, layer in enumerate(there)
        }
        num_groups += 1
        pools.append(
            PoolLayout(
                heads=1,
                key=kept.size,
                value=0,
                dtype=kept.dtype,
                windows=(None,),
                lanes=len(owners),
                by_mesh=tuple(map(len, by_stage)) if stages else (),
            )
        )
    states, numbers = _number_states(cache, stages)
    indices = tuple(
        of_layer.get(layer, CacheIndex())._replace(state=number, keys=of_keys.get(layer))
        for layer, number in enumerate(numbers)
    )
    return CacheLayout(pools=tuple(pools) or (ACCOUNT,), indices=indices, states=states)


def _by_shape(cache: Sequence[Keeps], max_model_len: int) -> dict[Paged, dict[int | None, list[int]]]:
    """The layers that keep pages, by the shape of these and then by window."""
    shapes: dict[Paged, dict[int | None, list[int]]] = {}
    for layer, keeps in enumerate(cache):
        for paged in _only(keeps, Paged, layer):
            if paged.value not in (0, paged.key):
                raise ConfigError(
                    f"layer {layer} of this model has keys of {paged.key} numbers a head and values of {paged.value}: pages hold "
                    "such of one size, or latent vectors. A family whose values are smaller pads them"
                )
            window = None if paged.window is None or paged.window >= max_model_len else paged.window
            shapes.setdefault(replace(paged, window=None), {}).setdefault(window, []).append(layer)
    return shapes


def _let_read(of_layer: dict[int, CacheIndex], cache: Sequence[Keeps], stages: Sequence[range]) -> None:
    """Let layers without pages of their own find those that they read; refuse what another stage keeps or hands on."""
    for layer, keeps in enumerate(cache):
        for source in _only(keeps, Reads, layer):
            if source.layer not in of_layer:
                raise ValueError(f"layer {layer} reads what layer {source.layer} keeps, which has no pages")
            if any((layer in stage) != (source.layer in stage) for stage in stages):
                raise ConfigError(
                    f"layer {layer} of this model reads what layer {source.layer} keeps, in another stage: give a "
                    "pipeline_layer_partition that has them in one, or use tensor_parallel_size"
                )
            of_layer[layer] = of_layer[source.layer]
    for stage in stages:
        if any(isinstance(kept, Takes) for kept in cache[stage.start]):
            raise ConfigError(
                f"layer {stage.start} of this model attends to what layer {stage.start - 1} hands on, in another stage: give a "
                "pipeline_layer_partition that has them in one, or use tensor_parallel_size"
            )


def _index_keys(cache: Sequence[Keeps]) -> dict[IndexKeys, list[int]]:
    """Which layers keep keys of which shape."""
    found: dict[IndexKeys, list[int]] = {}
    for layer, keeps in enumerate(cache):
        for kept in _only(keeps, IndexKeys, layer):
            found.setdefault(kept, []).append(layer)
    return found


def _within(layers: Sequence[int], stage: range) -> list[int]:
    return [layer for layer in layers if layer in stage]


def _number_states(cache: Sequence[Keeps], stages: Sequence[range]) -> tuple[tuple[StateLayout, ...], list[int]]:
    """The arrays by slot, and of each layer its number among those of its stage that keep the like."""
    owners: dict[PerSlot, list[int]] = {}
    for layer, keeps in enumerate(cache):
        for kept in _only(keeps, PerSlot, layer):
            owners.setdefault(kept, []).append(layer)
    numbers = [0] * len(cache)
    for layers in owners.values():
        for stage in stages or (range(len(cache)),):
            for number, layer in enumerate(_within(layers, stage)):
                numbers[layer] = number
    states = tuple(
        StateLayout(state=state, layers=len(layers), by_mesh=tuple(len(_within(layers, stage)) for stage in stages))
        for kept, layers in owners.items()
        for state in kept.states
    )
    names = [layout.state.name for layout in states]
    if len(set(names)) < len(names):
        raise ValueError(f"layers that keep different states give them different names, got {names}")
    return states, numbers


def _only(keeps: Keeps, kind: type[Kind], layer: int) -> list[Kind]:
    """What a layer declares of a kind: nothing, or one."""
    found: list[Kind] = [kept for kept in keeps if isinstance(kept, kind)]
    if len(found) > 1:
        raise ValueError(f"layer {layer} declares {kind.__name__} {len(found)} times")
    return found


def _order(paged: Paged) -> tuple[int, int, bool, str]:
    return paged.heads, paged.key, paged.latent, str(paged.dtype)
