"""What the links of a slice carry when its devices sum something up or exchange it, as far as its shape says it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from xla_cache.target import Target, targets

HOP_S = 1e-6
"""What a message takes from a chip to its neighbour, whatever its size: about (jax-ml.github.io/scaling-book)."""

HOST = (2, 2, 1)
"""Chips of a host along each axis."""

CLOSED = {2: 16, 3: 4}
"""An axis of a slice is closed to a ring from so many chips on, by the number of axes; of three all are, or none."""


@dataclass(frozen=True)
class Links:
    """Chips in a mesh, `extents` along each axis, and `bandwidth` of a link in one direction, in bytes/s.

    Along an axis that `wraps` the last chip is the first one's neighbour. Sums are taken as a bandwidth-optimal algorithm does:
    along one axis after the other and back, a part of the numbers in each order of the axes, so that all links work at once.
    """

    extents: tuple[int, ...]
    wraps: tuple[bool, ...]
    bandwidth: float

    @classmethod
    def of(cls, target: Target, devices: int) -> Links | None:
        """Those between the first `devices` of a slice; None where nothing is published, or a chip is several devices."""
        part = next(
            (one for one in targets() if one.chip is target.chip and one.num_devices == devices and one.topology), None
        )
        if part is None or target.chip is None or target.chip.link_bandwidth is None:
            return None
        if math.prod(part.extents) != devices:
            return None
        rings = tuple(extent % CLOSED[len(part.extents)] == 0 for extent in part.extents)
        wraps = rings if len(rings) == 2 else (all(rings),) * len(rings)
        return cls(part.extents, wraps, target.chip.link_bandwidth)

    @property
    def count(self) -> int:
        """Links between chips."""
        return sum(self._along(axis) for axis in range(len(self.extents)))

    @property
    def between_hosts(self) -> int:
        """Those that join chips of two hosts."""
        crossing = 0
        for axis, extent in enumerate(self.extents):
            planes = math.ceil(extent / HOST[axis])
            crossing += (planes if self._is_ring(axis) else planes - 1) * math.prod(self.extents) // extent
        return crossing

    @property
    def busiest(self) -> float:
        """Of what is summed up, the share that a link carries in each direction, where it carries most."""
        used = [axis for axis, extent in enumerate(self.extents) if extent > 1]
        shares = dict.fromkeys(used, 0.0)
        for first in range(len(used)):
            part = 1 / len(used)
            for axis in used[first:] + used[:first]:
                extent = self.extents[axis]
                shares[axis] += part * ((extent - 1) / extent if self._is_ring(axis) else 1.0)
                part /= extent
        return max(shares.values(), default=0.0)

    @property
    def crossing(self) -> float:
        """Of what each chip has for all others, how often a link carries as much in each direction, where it carries most.

        Half of everything crosses the middle of an axis.
        """
        return max((extent / (8 if ring else 4) for extent, ring in self._axes() if extent > 1), default=0.0)

    def sum_s(self, size: int) -> float:
        """Seconds for the sum of `size` bytes that each chip has: at least, by bytes or by hops.

        To scatter a sum and gather it again later is as much.
        """
        hops = sum(2 * (extent // 2 if ring else extent - 1) for extent, ring in self._axes())
        return max(self.busiest * size / self.bandwidth, hops * HOP_S)

    def exchange_s(self, size: int) -> float:
        """Seconds in which each chip sends every other one its part of the `size` bytes that it has: at least."""
        hops = sum(extent // 2 if ring else extent - 1 for extent, ring in self._axes())
        return max(self.crossing * size / self.bandwidth, hops * HOP_S)

    def permutation_s(self, size: int, pairs: Iterable[tuple[int, int]]) -> tuple[float, frozenset[tuple[int, int]]]:
        """Seconds in which every first chip of a pair sends `size` bytes to its second one, and the links that they take.

        A link is its two chips, numbered along the first axis first. What goes further than to a neighbour goes along one axis
        after the other.
        """
        loads: Counter[tuple[int, int]] = Counter()
        hops = 0
        for source, target in pairs:
            route = list(self._route(source, target))
            loads.update(route)
            hops = max(hops, len(route))
        return max(max(loads.values(), default=0) * size / self.bandwidth, hops * HOP_S), frozenset(loads)

    def _route(self, source: int, target: int) -> Iterator[tuple[int, int]]:
        stride = 1
        for axis, extent in enumerate(self.extents):
            ahead = (target // stride - source // stride) % extent
            back = extent - ahead
            forward = ahead <= back if self._is_ring(axis) else target // stride % extent > source // stride % extent
            for _ in range(ahead if forward else back if ahead else 0):
                place = source // stride % extent
                following = source + ((place + (1 if forward else -1)) % extent - place) * stride
                yield source, following
                source = following
            stride *= extent

    def _axes(self) -> Iterator[tuple[int, bool]]:
        return ((extent, self._is_ring(axis)) for axis, extent in enumerate(self.extents))

    def _is_ring(self, axis: int) -> bool:
        return self.wraps[axis] and self.extents[axis] > 2

    def _along(self, axis: int) -> int:
        extent = self.extents[axis]
        return (extent if self._is_ring(axis) else extent - 1) * math.prod(self.extents) // extent
