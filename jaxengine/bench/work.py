"""What a step has to read and to multiply at the least, and how long a device needs for it."""

from __future__ import annotations

from dataclasses import dataclass

from jaxengine.device.layers.keeps import Paged
from jaxengine.startup.model_plan import ModelPlan
from jaxengine.startup.roofline import Roofline, Speed


@dataclass(frozen=True)
class Work:
    """What a model must read and multiply at the least. `token_bytes` are of a token's keys and values in all layers."""

    roofline: Roofline
    token_bytes: int
    pair_flops: int  # of attention, for a query and a position in all layers

    @classmethod
    def of(cls, plan: ModelPlan, speed: Speed) -> Work:
        config = plan.config
        paged = [kept for keeps in plan.graph.cache for kept in keeps if isinstance(kept, Paged)]
        kept = sum(kept.heads * (kept.key + kept.value) for kept in paged)
        pair_flops = 4 * config.num_layers * config.num_heads * config.head_dim
        return cls(plan.roofline(speed), kept * plan.dtype.itemsize, pair_flops)

    def decode_floor(self, count: int, context: int) -> float:
        """Seconds of a step of `count` rows with `context` positions each."""
        kept = count * context * self.token_bytes / self.roofline.speed.memory_bandwidth
        return self.roofline.floor(count, sampling=False)[0] + self.roofline.floor(count, sampling=True)[0] + kept

    def prefill_floor(self, count: int, length: int) -> float:
        """Seconds for `count` whole prompts of `length` tokens."""
        pairs = count * length * (length + 1) / 2
        attending = pairs * self.pair_flops / self.roofline.speed.matrix_flops
        products = self.roofline.floor(count * length, sampling=False)[0] + self.roofline.floor(count, sampling=True)[0]
        return products + attending
