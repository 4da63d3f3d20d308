"""From what a model's layers keep to pools of pages: cache groups, and the place of each layer in them.

Layers whose pages have one shape share a pool. Those of them that see equally far back form a group: a sequence holds one list
of pages for all of them. The pool has `lanes`, each as long as there are pages, and a group's layers lie in lanes of their own;
a page id is a page of one group in all lanes. The groups of a pool are of one size, so that any page serves any of them: where
few layers see everything and many see a window, as in Gemma 3, the many are cut into several groups of the size of the few, and
what does not divide leaves a lane of the last one empty. (vLLM's hybrid cache manager divides in the same way.)

    layers   w w w w w F w w w w w F        F sees everything, w a window
    groups   A A B B C 0 C D D E E 0        two lanes

A layer that reads what another keeps has the place of the other.

Were the heads of F larger than those of w, as in Gemma 4, there would be two pools: one of two lanes for group 0, one of ten
for the only group of w. `device/runtime/memory.py` says how many pages each gets.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from jaxengine.contract.batch import CacheTraits
from jaxengine.contract.windows import pages_held
from jaxengine.device.models.interface import Kept, Nothing, Paged, PerSlot


@dataclass(frozen=True, kw_only=True)
class PoolLayout:
    """Pages of one shape: `keeps` of each group in the pool (None: everything), and how many layers a group has.

    `num_kv_heads` counts repeats for meshes with more chips than KV heads. `latent` is as in `Paged`.
    """

    num_kv_heads: int
    head_dim: int
    keeps: tuple[int | None, ...]
    lanes: int
    latent: bool = False


@dataclass(frozen=True, kw_only=True)
class CacheLayout:
    """The pools, and of each layer its `(pool, group, lane)`. Groups are numbered through the pools.

    `states` are what is kept by slot; of a layer that does, the place is `(0, 0, its number among its like)`. One that keeps
    nothing has a place that it does not use.
    """

    pools: tuple[PoolLayout, ...]
    places: tuple[tuple[int, int, int], ...]
    states: tuple[PerSlot, ...] = ()

    @property
    def num_groups(self) -> int:
        return sum(len(pool.keeps) for pool in self.pools)

    def pages_held(self, num_tokens: int, *, page_size: int, ahead: int) -> tuple[int, ...]:
        """The most pages of each pool that a sequence of so many tokens holds; steps have up to `ahead` tokens."""
        return tuple(pages_held(pool.keeps, num_tokens, page_size=page_size, ahead=ahead) for pool in self.pools)


def cache_traits(cache: Sequence[Kept]) -> CacheTraits:
    """What follows for scheduling: of a state there is the latest only, which a row goes on from."""
    cuts = [kept.cut for kept in cache if isinstance(kept, PerSlot)]
    return CacheTraits(shares_prefix=not cuts, rewinds=not cuts, cut=math.lcm(*cuts))


def lay_out(cache: Sequence[Kept], *, max_model_len: int) -> CacheLayout:
    """Divide what a model keeps into pools, and these into groups of one size. A window that no sequence outgrows is none.

    The first pool is one with layers that see everything, where there are such. Where no layer keeps pages there is a pool all
    the same, of the declared shape, in which a sequence holds the few pages of a window of one token: nothing is written to them,
    and who counts pages need not know.

    Raises:
        ValueError: nothing declares pages, or layers are not numbered from 0, each in one of the declarations.
    """
    pages = [kept for kept in cache if isinstance(kept, Paged)]
    states = tuple(kept for kept in cache if isinstance(kept, PerSlot))
    if not pages:
        raise ValueError(f"a model must declare pages, of no layer if none keeps any, got {cache}")
    shapes: dict[tuple[int, int, bool], dict[int | None, list[int]]] = {}
    for paged in pages:
        keep = None if paged.keep is None or paged.keep >= max_model_len else paged.keep
        shape = paged.num_kv_heads, paged.head_dim, paged.latent
        if paged.layers:
            shapes.setdefault(shape, {}).setdefault(keep, []).extend(paged.layers)
    pools: list[PoolLayout] = []
    places: dict[int, tuple[int, int, int]] = {}
    num_groups = 0
    for (num_kv_heads, head_dim, latent), kinds in sorted(
        shapes.items(), key=lambda shape: (None not in shape[1], shape[0])
    ):
        size = min(map(len, kinds.values()))
        keeps: list[int | None] = []
        for keep, layers in sorted(kinds.items(), key=lambda kind: (kind[0] is not None, kind[1])):
            for begin in range(0, len(layers), size):
                for lane, layer in enumerate(sorted(layers)[begin : begin + size]):
                    places[layer] = (len(pools), num_groups + len(keeps), lane)
                keeps.append(keep)
        num_groups += len(keeps)
        pools.append(
            PoolLayout(num_kv_heads=num_kv_heads, head_dim=head_dim, keeps=tuple(keeps), lanes=size, latent=latent)
        )
    if not pools:
        pools.append(PoolLayout(num_kv_heads=pages[0].num_kv_heads, head_dim=pages[0].head_dim, keeps=(1,), lanes=1))
    places |= {layer: places[other] for paged in pages for layer, other in paged.readers}
    for kept in states:
        places |= {layer: (0, 0, lane) for lane, layer in enumerate(kept.layers)}
    places |= {layer: (0, 0, 0) for kept in cache if isinstance(kept, Nothing) for layer in kept.layers}
    if sorted(places) != list(range(len(places))):
        raise ValueError(f"layers must be numbered from 0, got {sorted(places)}")
    return CacheLayout(pools=tuple(pools), places=tuple(places[layer] for layer in range(len(places))), states=states)
