"""Frequencies against a definition written from the papers' formulas, one wavelength at a time."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
import pytest

from jaxengine.device.layers.rotary import DynamicScaling, LinearScaling, Llama3Scaling, Rope, YarnScaling
from pallas_kernels import rotate


def plain(theta: float, head_dim: int) -> list[float]:
    return [theta ** -(2 * i / head_dim) for i in range(head_dim // 2)]


def test_plain_frequencies():
    np.testing.assert_allclose(Rope(theta=1e4, head_dim=8).frequencies(), plain(1e4, 8), rtol=1e-6)


def test_linear_scaling_stretches_all():
    rope = Rope(theta=1e4, head_dim=8, scaling=LinearScaling(factor=4.0))
    np.testing.assert_allclose(rope.frequencies(), np.divide(plain(1e4, 8), 4), rtol=1e-6)


def test_llama3_scaling_by_wavelength():
    scaling = Llama3Scaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_positions=8192)
    found = Rope(theta=5e5, head_dim=128, scaling=scaling).frequencies()
    kinds = set()
    for frequency, scaled in zip(plain(5e5, 128), found, strict=True):
        wavelength = 2 * math.pi / frequency
        if wavelength < 8192 / 4:
            kinds.add("kept")
            expected = frequency
        elif wavelength > 8192:
            kinds.add("stretched")
            expected = frequency / 8
        else:
            kinds.add("blended")
            smooth = (8192 / wavelength - 1) / 3
            expected = (1 - smooth) * frequency / 8 + smooth * frequency
        assert scaled == pytest.approx(expected, rel=1e-6)
    assert kinds == {"kept", "stretched", "blended"}


def test_dynamic_scaling_is_a_larger_base():
    scaling = DynamicScaling(factor=4.0, original_max_positions=2048, served_positions=8192)
    found = Rope(theta=1e4, head_dim=64, scaling=scaling).frequencies()
    np.testing.assert_allclose(found, plain(1e4 * 13.0 ** (64 / 62), 64), rtol=1e-6)
    within = DynamicScaling(factor=4.0, original_max_positions=2048, served_positions=512)
    np.testing.assert_allclose(Rope(theta=1e4, head_dim=64, scaling=within).frequencies(), plain(1e4, 64), rtol=1e-6)


def test_yarn_keeps_the_fast_and_stretches_the_slow():
    scaling = YarnScaling(
        factor=4.0, beta_fast=32.0, beta_slow=1.0, original_max_positions=4096, theta=1e4, truncate=True
    )
    ratio = Rope(theta=1e4, head_dim=64, scaling=scaling).frequencies() / np.array(plain(1e4, 64))
    assert ratio[0] == pytest.approx(1.0)
    assert ratio[-1] == pytest.approx(0.25)
    assert np.all(np.diff(ratio) <= 1e-6)


def test_rotation_depends_on_the_distance_alone():
    """The score of a query and a key is the same wherever the pair stands."""
    rope = Rope(theta=1e4, head_dim=16)
    query, key = np.random.default_rng(0).normal(size=(2, 1, 1, 16)).astype(np.float32)

    def score(at: int, distance: int) -> float:
        turned = [
            rotate(jnp.asarray(x), *rope.angles(jnp.asarray([p]))) for x, p in ((query, at), (key, at - distance))
        ]
        return float((turned[0] * turned[1]).sum())

    assert score(5, 3) == pytest.approx(score(105, 3), rel=1e-4)
    assert score(5, 3) != pytest.approx(score(5, 4), rel=1e-2)


def test_magnitude_scales_sines_and_cosines():
    rope = Rope(theta=1e4, head_dim=4, magnitude=1.5)
    cos, sin = rope.angles(jnp.asarray([0, 3]))
    np.testing.assert_allclose(cos**2 + sin**2, 2.25, rtol=1e-6)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("turned", [None, 4])
def test_channels_are_brought_to_where_those_that_turn_together_are_half_a_head_apart(turned, interleaved):
    """Each pair of a checkpoint's head turned by hand, the others as they were; scaled ones too."""
    rope = Rope(theta=100.0, head_dim=12, magnitude=1.5, rotary_dim=turned, interleaved=interleaved)
    width = turned or 12
    head = np.random.default_rng(0).normal(size=12)
    expected = head.copy()
    for pair in range(width // 2):
        one, other = (2 * pair, 2 * pair + 1) if interleaved else (pair, pair + width // 2)
        angle = 7 * 100.0 ** (-2 * pair / width)
        expected[one] = 1.5 * (head[one] * math.cos(angle) - head[other] * math.sin(angle))
        expected[other] = 1.5 * (head[other] * math.cos(angle) + head[one] * math.sin(angle))
    order = rope.order()
    turning = rotate(jnp.asarray(head[order], jnp.float32)[None, None], *rope.angles(jnp.asarray([7])))
    np.testing.assert_allclose(turning[0, 0], expected[order], rtol=1e-5, atol=1e-6)
