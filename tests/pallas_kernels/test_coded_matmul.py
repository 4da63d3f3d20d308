"""Matrices in 12 bits a number: any comes back to the last bit, and products have those of the plain matrix."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray

from jaxengine.startup.native_libraries import CODED_NEEDS
from pallas_kernels import coded_matmul, coded_rows, coded_shape, matmul
from pallas_kernels.coded_matmul.coding import SOURCE, Coder
from pallas_kernels.coded_matmul.reference import MOST_OTHERS, decoded
from pallas_kernels.native import FOLDER, calling
from tests.quick import at_once, slow_but
from xla_cache.library import Recipe, find_compiler, obtain_library

pairs = pytest.mark.skipif(not find_compiler().macros >= CODED_NEEDS, reason="no AVX-512 here")


@pytest.fixture(scope="module")
def coder(tmp_path_factory: pytest.TempPathFactory) -> Coder:
    directory: Path = tmp_path_factory.mktemp("coder")
    directory.chmod(0o700)
    return Coder(obtain_library(FOLDER / SOURCE, directory, Recipe.of(FOLDER)).symbols)


def bits(outputs: int, inputs: int) -> NDArray[np.uint16]:
    """Rows as models have them, and those that are not: of any bits, equal ones, and with some, or too many, far from others."""
    random = np.random.default_rng(inputs)
    found = np.asarray(jnp.asarray(random.normal(size=(outputs, inputs)) * 0.02, jnp.bfloat16)).view(np.uint16).copy()
    found[0] = random.integers(0, 1 << 16, inputs)
    found[1] = 0x3F80
    found[2] = 0
    found[3, :5] = 1, 0x8000, 0x7F80, 0xFF80, 0x7FC1  # a denormal, minus zero, infinities, no number
    for row, count in ((4, MOST_OTHERS), (5, MOST_OTHERS + 1)):
        found[row] = 0x3C00 + (np.arange(inputs) % 16 << 8)
        found[row, inputs - count :] = (0xC0 + np.arange(count)) << 8
    return found


def sums(found: jax.Array) -> NDArray[np.uint32]:
    """Their bits, of any NaN the same: which of several NaN a sum of floats becomes, compilers choose."""
    values = np.asarray(found)
    return np.where(np.isnan(values), np.float32("nan"), values).view(np.uint32)


def coded(coder: Coder, plain: NDArray[np.uint16]) -> NDArray[np.uint16]:
    shape = coded_shape(*plain.shape)
    assert shape is not None
    found = np.empty(shape, np.uint16)
    coder.code(plain[:7], found, 0), coder.code(plain[7:], found, 7)
    return found


@pytest.mark.parametrize("inputs", slow_but([128, 896, 1664, 3072], {128, 1664}))
def test_any_matrix_comes_back(coder: Coder, inputs: int) -> None:
    plain = bits(70, inputs)
    kept = coded(coder, plain)
    np.testing.assert_array_equal(np.asarray(decoded(jnp.asarray(kept))).view(np.uint16), plain)
    np.testing.assert_array_equal(coder.decode(kept), plain)


def test_what_does_not_fit_is_refused(coder: Coder) -> None:
    assert coded_shape(64, 100) is None
    with pytest.raises(ValueError, match="do not fit"):
        coder.code(bits(8, 128), np.empty((7, 160), np.uint16), 0)
    with pytest.raises(ValueError, match="no matrix"):
        coder.decode(np.empty((7, 100), np.uint16))


@pairs
@pytest.mark.parametrize("inputs", slow_but([128, 1664, 4864], {128, 1664}))
def test_products_have_the_bits_of_the_plain_matrix(native: str, coder: Coder, inputs: int) -> None:
    """Of one row to several tasks of them; 1,664 and 4,864 inputs are cut into blocks in the middle of a piece."""
    plain = bits(70, inputs)
    matrix, kept = jnp.asarray(plain.view(jnp.bfloat16)), jnp.asarray(coded(coder, plain))
    x = jnp.asarray(np.random.default_rng(1).normal(size=(200, inputs)), jnp.bfloat16)
    with calling(native):
        for rows in (*range(1, 20), 31, 200):

            def both(x: jax.Array, rows: int = rows) -> list[jax.Array]:
                return [matmul(x[:rows], matrix, platform="cpu"), *coded_matmul(x[:rows], [kept], platform="cpu")]

            whole, found = at_once(both, x)
            np.testing.assert_array_equal(sums(found), sums(whole))
        taken = jax.jit(lambda numbers: coded_rows(numbers, kept, platform="cpu"))(jnp.arange(-1, 71, dtype=jnp.int32))
    np.testing.assert_array_equal(np.asarray(taken).view(np.uint16), plain[np.clip(np.arange(-1, 71), 0, 69)])
