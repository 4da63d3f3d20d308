"""What a step has to read and to multiply at the least, and how long a device needs for it."""

from __future__ import annotations

from dataclasses import dataclass

from jaxengine.device.layers.keeps import IndexKeys, Paged
from jaxengine.startup.model_plan import ModelPlan
from jaxengine.startup.roofline import Roofline, Speed


@dataclass(frozen=True)
class Work:
    """What a model must read and multiply at the least. `token_bytes` are of a token's keys and values in all layers.

    Where tokens attend to `chosen` others only, `index_bytes` of all are read beside the keys and values of these.
    """

    roofline: Roofline
    token_bytes: int
    pair_flops: int  # of attention, for a query and a position in all layers
    chosen: int | None = None
    index_bytes: int = 0

    @classmethod
    def of(cls, plan: ModelPlan, speed: Speed) -> Work:
        config = plan.config
        paged = [kept for keeps in plan.graph.cache for kept in keeps if isinstance(kept, Paged)]
        kept = sum(kept.heads * (kept.key + kept.value) for kept in paged)
        pair_flops = 4 * config.num_layers * config.num_heads * config.head_dim
        keys = [kept for keeps in plan.graph.cache for kept in keeps if isinstance(kept, IndexKeys)]
        return cls(
            plan.roofline(speed),
            kept * plan.dtype.itemsize,
            pair_flops,
            chosen=min((each.count for each in keys), default=None),
            index_bytes=sum(each.size * each.dtype.itemsize for each in keys),
        )

    def decode_floor(self, count: int, context: int) -> float:
        """Seconds of a step of `count` rows with `context` positions each."""
        attended = context if self.chosen is None else min(context, self.chosen)
        read = count * (attended * self.token_bytes + context * self.index_bytes)
        kept = read / self.roofline.speed.memory_bandwidth
        return self.roofline.floor(count, sampling=False)[0] + self.roofline.floor(count, sampling=True)[0] + kept

    def prefill_floor(self, count: int, length: int) -> float:
        """Seconds for `count` whole prompts of `length` tokens."""
        dense = length if self.chosen is None else min(length, self.chosen)
        pairs = count * (dense * (dense + 1) / 2 + (length - dense) * dense)
        attending = pairs * self.pair_flops / self.roofline.speed.matrix_flops
        products = self.roofline.floor(count * length, sampling=False)[0] + self.roofline.floor(count, sampling=True)[0]
        return products + attending
