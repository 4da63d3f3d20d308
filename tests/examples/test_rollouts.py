"""The example that trains by rollouts: answers get better."""

from __future__ import annotations

import numpy as np
import pytest

from examples.rollouts import advantages, reward, train


def test_an_answer_is_right_or_not_and_compared_with_those_beside_it() -> None:
    assert [reward(text, 7) for text in ("3 + 4 = 7", "3 + 4 = 8", "seven", "7 and then 70")] == [1, 0, 0, 0]
    found = advantages(np.array([[1.0, 0, 0, 1], [1, 1, 1, 1]]))
    assert found[0].tolist() == pytest.approx([1, -1, -1, 1], abs=1e-3)
    assert not found[1].any(), "what all do is no better than the others"


@pytest.mark.rare  # CI runs the example itself
def test_the_reward_goes_up(capsys: pytest.CaptureFixture[str]) -> None:
    rewards = train(10)
    assert np.mean(rewards[-4:]) > np.mean(rewards[:2]) + 0.1
    assert "made with weights after step 8" in capsys.readouterr().out
