"""From what a model's layers keep to one pool: cache groups, and the place of each layer in it.

Layers that see equally far back form a group: a sequence holds one list of pages for all of them. The pool has `lanes`, each as
long as there are pages, and a group's layers lie in lanes of their own; a page id is a page of one group in all lanes. Groups
are of one size, so that any page serves any of them: where few layers see everything and many see a window, as in Gemma 3, the
many are cut into several groups of the size of the few, and what does not divide leaves a lane of the last one empty. (vLLM's
hybrid cache manager divides in the same way.)

    layers   w w w w w F w w w w w F        F sees everything, w a window
    groups   A A B B C 0 C D D E E 0        two lanes
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxengine.kvcache.windows import longest_sequence, pages_held
from jaxengine.models.interface import Paged, PerSlot


@dataclass(frozen=True, kw_only=True)
class CacheLayout:
    """`keeps` of each group (None: everything), and of each layer its `(group, lane)`.

    `num_kv_heads` counts repeats for meshes with more chips than KV heads. `states` are what is kept by slot; of a layer that
    does, the place is `(0, its number among its like)`.
    """

    num_kv_heads: int
    head_dim: int
    keeps: tuple[int | None, ...]
    places: tuple[tuple[int, int], ...]
    lanes: int
    states: tuple[PerSlot, ...] = ()

    @property
    def has_windows(self) -> bool:
        return any(keep is not None for keep in self.keeps)

    def pages_held(self, num_tokens: int, *, page_size: int, ahead: int) -> int:
        """The most pages that a sequence of so many tokens holds; steps have up to `ahead` tokens."""
        return pages_held(self.keeps, num_tokens, page_size=page_size, ahead=ahead)

    def longest_sequence(self, num_pages: int, *, page_size: int, ahead: int, most: int) -> int:
        """The tokens, up to `most`, of the longest sequence that so many pages hold, the sink not among them."""
        return longest_sequence(self.keeps, num_pages, page_size=page_size, ahead=ahead, most=most)


def lay_out(cache: Sequence[Paged | PerSlot], *, max_model_len: int) -> CacheLayout:
    """Divide what a model keeps into groups of one size. A window that no sequence outgrows is none.

    Raises:
        ValueError: pages of different shapes, or layers that are not numbered from 0.
    """
    pages = [kept for kept in cache if isinstance(kept, Paged)]
    states = tuple(kept for kept in cache if isinstance(kept, PerSlot))
    if len({(paged.num_kv_heads, paged.head_dim) for paged in pages}) != 1:
        raise ValueError(f"the layers of a model must keep heads of one shape, and some must, got {cache}")
    kinds: dict[int | None, list[int]] = {}
    for paged in pages:
        keep = None if paged.keep is None or paged.keep >= max_model_len else paged.keep
        kinds.setdefault(keep, []).extend(paged.layers)
    size = min(map(len, kinds.values()))
    places: dict[int, tuple[int, int]] = {}
    keeps: list[int | None] = []
    for keep, layers in sorted(kinds.items(), key=lambda kind: (kind[0] is not None, kind[1])):
        for begin in range(0, len(layers), size):
            group = len(keeps)
            keeps.append(keep)
            for lane, layer in enumerate(sorted(layers)[begin : begin + size]):
                places[layer] = (group, lane)
    for kept in states:
        places |= {layer: (0, lane) for lane, layer in enumerate(kept.layers)}
    if sorted(places) != list(range(len(places))):
        raise ValueError(f"layers must be numbered from 0, got {sorted(places)}")
    return CacheLayout(
        num_kv_heads=pages[0].num_kv_heads,
        head_dim=pages[0].head_dim,
        keeps=tuple(keeps),
        places=tuple(places[layer] for layer in range(len(places))),
        lanes=size,
        states=states,
    )
