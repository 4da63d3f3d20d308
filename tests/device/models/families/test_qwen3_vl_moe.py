"""Experts of Qwen3-VL lie in checkpoints in two ways."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from jaxengine.device.models.families.qwen3_vl_moe import outer_first

CONFIG = SimpleNamespace(experts=SimpleNamespace(width=4, inner=3))


def test_experts_as_published_and_as_saved_again_are_the_same() -> None:
    for outer in (6, 4):  # gate and up, and down
        saved = np.arange(24.0).reshape(outer, -1)[:, : 4 if outer == 6 else 3]
        for tensor in (saved, saved.T):
            np.testing.assert_array_equal(outer_first(tensor, CONFIG, ()), saved)
