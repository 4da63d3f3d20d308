"""Values added up by where they belong."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import scatter_add, scattered_rows
from pallas_kernels.scatter_add import OP


@pytest.mark.parametrize("backend", OP.backends)
def test_values_of_one_place_add_up_and_those_beyond_the_width_are_dropped(backend: str) -> None:
    places, values = jnp.asarray([0, 4, 5, 0]), np.random.default_rng(0).integers(1, 9, (2, 4))
    found = scatter_add(places, jnp.asarray(values, jnp.int32), width=5, backend=backend)
    expected = np.zeros((2, 5), np.int32)
    expected[:, 0], expected[:, 4] = values[:, 0] + values[:, 3], values[:, 1]
    np.testing.assert_array_equal(found, expected)


def test_on_a_tpu_an_array_that_is_scattered_into_has_a_million_elements() -> None:
    assert [scattered_rows(5, 128, platform=platform) for platform in ("cpu", "gpu", "tpu")] == [5, 5, 8192]
    assert scattered_rows(257, 151_936, platform="tpu") == 257


def test_arguments_that_do_not_fit_name_the_axis() -> None:
    with pytest.raises(ValueError, match=r"axis L \(values\) differs: 3 in places, 4 in values"):
        scatter_add(jnp.arange(3), jnp.ones((2, 4)), width=5)
