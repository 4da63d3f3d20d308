"""Which experts a token goes to, and how much each of them counts, by the router's scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp

from pallas_kernels import mean_last


@dataclass(frozen=True, kw_only=True)
class Routing:
    """The `chosen` best of `count` experts.

    An expert's share is the softmax of all scores, or with `sigmoid` that of its own score alone. A token's weights are the
    shares of its experts, with `normalised` over their sum, which counts as `floor` at least; then times `scale`.

    With `corrected` there is a number of each expert that is added to its share while experts are chosen, and only then. Where
    `groups` are more than one, experts of the `chosen_groups` best groups can be chosen; a group is as good as its `group_best`
    best experts together.
    """

    count: int
    chosen: int
    normalised: bool
    sigmoid: bool = False
    corrected: bool = False
    groups: int = 1
    chosen_groups: int = 1
    group_best: int = 1
    floor: float = 0.0
    scale: float = 1.0

    def __call__(
        self, scores: jax.Array, correction: jax.Array | None, *, platform: str
    ) -> tuple[jax.Array, jax.Array]:
        """Float32 `scores [N, count]` -> weights, float32, and numbers of each token's experts, `[N, chosen]`, the best first."""
        if self.sigmoid:
            shares, whole = jax.nn.sigmoid(scores), jnp.ones((), scores.dtype)
        else:
            shares = jnp.exp(scores - scores.max(axis=-1, keepdims=True))
            whole = self.count * mean_last(shares, platform=platform)
        if correction is None and self.groups == 1:
            experts = _best(scores, self.chosen, platform)
        else:
            better = shares / whole if correction is None else shares / whole + correction
            experts = _best(self._within_groups(better, platform), self.chosen, platform)
        weights = _taken(shares, experts, platform)
        if self.normalised:
            total = sum((weights[:, [rank]] for rank in range(self.chosen)), start=jnp.float32(0))
            whole = jnp.maximum(total, self.floor * whole) if self.floor else total
        weights = weights / whole
        return weights if self.scale == 1.0 else weights * self.scale, experts

    def _within_groups(self, better: jax.Array, platform: str) -> jax.Array:
        """`[N, count]` with nothing left of groups that are not chosen."""
        if self.groups == 1:
            return better
        grouped = better.reshape(better.shape[0], self.groups, -1)
        best = _taken(grouped, _best(grouped, self.group_best, platform), platform)
        worth = sum((best[..., rank] for rank in range(self.group_best)), start=jnp.float32(0))
        groups = _best(worth, self.chosen_groups, platform)
        open_groups = (groups[:, :, None] == jnp.arange(self.groups)).any(axis=1)
        return jnp.where(open_groups[..., None], grouped, -jnp.inf).reshape(better.shape)


def _best(scores: jax.Array, chosen: int, platform: str) -> jax.Array:
    """Where the `chosen` largest of the last axis are, the largest first. A TPU would sort all of them."""
    if platform != "tpu":
        return jax.lax.top_k(scores, chosen)[1]
    found, left = [], scores
    for _ in range(chosen):
        found.append(left.argmax(axis=-1, keepdims=True))
        left = jnp.where(jnp.arange(left.shape[-1]) == found[-1], -jnp.inf, left)
    return jnp.concatenate(found, axis=-1).astype(jnp.int32)


def _taken(shares: jax.Array, experts: jax.Array, platform: str) -> jax.Array:
    """Of `shares [..., count]` those of `experts [..., chosen]`. A TPU would take one after the other.

    One rank after the other lies as the scores do, with tokens next to each other; all at once would be laid out anew.
    """
    if platform != "tpu":
        return jnp.take_along_axis(shares, experts, axis=-1)
    numbers = jnp.arange(shares.shape[-1])
    own = (numbers == experts[..., [rank]] for rank in range(experts.shape[-1]))
    return jnp.stack([jnp.where(of_rank, shares, 0.0).sum(axis=-1) for of_rank in own], axis=-1)


@dataclass(frozen=True, kw_only=True)
class SparseMixer:
    """Phi-MoE's two experts of `count` (Sparsemixer-v2, arXiv:2409.12136, as it is outside of training).

    First the best one, then the best of the others. The weight of each is its softmax among those that were left then and whose
    scores lie within twice `jitter` of it, as a share of the larger of the two in magnitude; the two weights need not sum to one.
    """

    count: int
    jitter: float
    chosen: ClassVar[int] = 2
    corrected: ClassVar[bool] = False

    def __call__(
        self, scores: jax.Array, correction: jax.Array | None, *, platform: str
    ) -> tuple[jax.Array, jax.Array]:
        """As `Routing`; there is no `correction`."""
        left, weights, experts = scores, [], []
        for _ in range(self.chosen):
            best = left.max(axis=-1, keepdims=True)
            expert = left.argmax(axis=-1, keepdims=True)
            far = (best - scores) / jnp.maximum(jnp.abs(scores), best) > 2 * self.jitter  # not where both are 0
            shares = jnp.where(far, 0.0, jnp.exp(left - best))
            weights.append(1 / (self.count * mean_last(shares, platform=platform)))
            experts.append(expert)
            left = jnp.where(jnp.arange(self.count) == expert, -jnp.inf, left)
        return jnp.concatenate(weights, axis=-1), jnp.concatenate(experts, axis=-1)
