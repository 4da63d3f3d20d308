"""Every backend of `rotate` turns each pair of channels like a complex number."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import rotate
from pallas_kernels.rotate import OP


@pytest.mark.parametrize("backend", OP.backends)
@pytest.mark.parametrize(("tokens", "dtype"), [(1, "float32"), (12, "bfloat16"), (16, "float32"), (16, "bfloat16")])
def test_pairs_of_channels_turn_by_their_angle(tokens: int, dtype: str, backend: str) -> None:
    rng = np.random.default_rng(0)
    angles = rng.uniform(0, 2 * np.pi, size=(tokens, 1, 4))
    x = jnp.asarray(rng.normal(size=(tokens, 3, 8)), dtype)
    cos, sin = (jnp.asarray(part(angles), jnp.float32) for part in (np.cos, np.sin))
    found = rotate(x, cos, sin, backend=backend)
    pairs = np.asarray(x, np.float64)
    turned = (pairs[..., :4] + 1j * pairs[..., 4:]) * np.exp(1j * angles)
    assert found.dtype == x.dtype
    tolerance = 1e-2 if dtype == "bfloat16" else 1e-6
    expected = np.concatenate([turned.real, turned.imag], axis=-1)
    np.testing.assert_allclose(np.asarray(found, np.float64), expected, rtol=tolerance, atol=tolerance)


def test_arguments_that_do_not_fit_name_the_axis() -> None:
    with pytest.raises(ValueError, match=r"axis H \(head size\) differs: 8 in x, 6 in cos, 6 in sin"):
        rotate(jnp.ones((2, 3, 8)), jnp.ones((2, 1, 3)), jnp.ones((2, 1, 3)))
