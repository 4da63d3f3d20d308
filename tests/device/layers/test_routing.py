"""Which experts tokens go to, and their weights, against each family's rule written out in float64."""

from __future__ import annotations

import numpy as np
import pytest

from jaxengine.device.layers.routing import Routing, SparseMixer
from tests.quick import at_once

COUNT = 12
SCORES = np.random.default_rng(0).normal(size=(9, COUNT))
CORRECTION = np.random.default_rng(1).normal(size=COUNT) / 2


def by_hand(routing: Routing, scores: np.ndarray, correction: np.ndarray | None) -> list[dict[int, float]]:
    """Of each token, its experts and their weights."""
    found = []
    for token in scores:
        shares = 1 / (1 + np.exp(-token)) if routing.sigmoid else np.exp(token) / np.exp(token).sum()
        better = shares if correction is None else shares + correction
        size = COUNT // routing.groups
        groups = [better[g * size : (g + 1) * size] for g in range(routing.groups)]
        worth = [sorted(group)[-routing.group_best :] for group in groups]
        open_groups = np.argsort([-sum(best) for best in worth])[: routing.chosen_groups]
        allowed = [expert for expert in range(COUNT) if routing.groups == 1 or expert // size in open_groups]
        chosen = sorted(allowed, key=lambda expert: -better[expert])[: routing.chosen]
        total = max(shares[chosen].sum(), routing.floor) if routing.normalised else 1.0
        found.append({expert: routing.scale * shares[expert] / total for expert in chosen})
    return found


@pytest.mark.parametrize("platform", ["cpu", "tpu"])
@pytest.mark.parametrize(
    ("routing", "corrected"),
    [
        (Routing(count=COUNT, chosen=3, normalised=True), False),
        (Routing(count=COUNT, chosen=3, normalised=False, scale=1.5), False),
        (Routing(count=COUNT, chosen=4, normalised=False, groups=4, chosen_groups=2), False),
        (Routing(count=COUNT, chosen=3, normalised=True, sigmoid=True, corrected=True), True),
        (
            Routing(
                count=COUNT,
                chosen=4,
                normalised=True,
                sigmoid=True,
                corrected=True,
                groups=3,
                chosen_groups=2,
                group_best=2,
                scale=2.5,
            ),
            True,
        ),
        (Routing(count=COUNT, chosen=2, normalised=True, corrected=True, floor=0.5), True),
    ],
)
def test_experts_and_weights_are_those_of_the_rule(routing: Routing, corrected: bool, platform: str) -> None:
    correction = CORRECTION if corrected else None
    given = None if correction is None else correction.astype(np.float32)
    weights, experts = map(np.asarray, at_once(routing, SCORES.astype(np.float32), given, platform=platform))
    for row, expected in enumerate(by_hand(routing, SCORES, correction)):
        found = dict(zip(experts[row].tolist(), weights[row].tolist(), strict=True))
        assert found == pytest.approx(expected, rel=1e-5)


def test_the_sparse_mixer_takes_the_best_and_then_the_best_of_the_others() -> None:
    """The second's weight is among those that lie near it, which the first no longer is; both are 1 where nothing lies near."""
    scores = np.array([[1.0, 0.9, 0.85, -2.0], [3.0, 1.0, 0.9, 0.1], [0.0, 0.0, -1.0, 0.0], [-1.0, -1.2, -1.3, -9.0]])
    near = [[(0, 1, 2), (1, 2)], [(0,), (1, 2)], [(0, 1, 3), (1, 3)], [(0, 1, 2), (1, 2)]]
    mixer = SparseMixer(count=4, jitter=0.12)
    weights, experts = at_once(mixer, scores.astype(np.float32), None, platform="cpu")
    assert experts.tolist() == [[0, 1]] * 4
    for token, found, sets in zip(np.exp(scores), np.asarray(weights), near, strict=True):
        expected = [token[best] / token[list(others)].sum() for best, others in zip((0, 1), sets, strict=True)]
        assert found == pytest.approx(expected, rel=1e-5)
