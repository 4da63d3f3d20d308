"""Every backend of `adapter_product` on every case, and rows that do not depend on the rows beside them."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import KernelUnsupported, adapter_product
from pallas_kernels.adapter_product import OP
from pallas_kernels.testing import ADAPTER_CASES, AdapterCase
from pallas_kernels.testing.adapters import adapter_rows
from tests.quick import at_once, slow_but

BACKENDS = [name for name in OP.backends if name != "reference"]


@pytest.mark.parametrize("case", slow_but(ADAPTER_CASES, ADAPTER_CASES[::2]), ids=str)
def test_every_backend_adds_alike(case: AdapterCase) -> None:
    arguments = case.arguments()
    expected = np.asarray(at_once(adapter_product, *arguments, **case.options, backend="reference"), np.float32)
    base, adapted = np.asarray(arguments[0], np.float32), np.asarray([adapter is not None for adapter in case.rows])
    supporting = [name for name in BACKENDS if OP.supports(name, *arguments, **case.options) is None]
    assert supporting
    for chosen in (*({"platform": name} for name in ("cpu", "tpu")), *({"backend": name} for name in supporting)):
        multiply = functools.partial(adapter_product, **case.options, precision=jax.lax.Precision.HIGHEST, **chosen)
        found = np.asarray(jax.jit(multiply)(*arguments), np.float32)
        tolerance = 0.1 if "bfloat16" in (case.base, case.dtype) else 2e-4
        np.testing.assert_allclose(found, expected, atol=tolerance, rtol=1e-2 if tolerance == 0.1 else 1e-5)
        np.testing.assert_array_equal(found[~adapted], base[~adapted])


def test_the_definition_is_two_products_for_each_row() -> None:
    case = ADAPTER_CASES[0]
    base, x, inward, outward, rows = case.arguments()
    found = adapter_product(base, x, inward, outward, rows, **case.options, backend="reference")
    for row, adapter in enumerate(case.rows):
        own = (
            0.0 if adapter is None else np.asarray(x[row]) @ np.asarray(inward[adapter]) @ np.asarray(outward[adapter])
        )
        np.testing.assert_allclose(found[row], np.asarray(base[row]) + own, atol=2e-4, rtol=1e-5)


def test_on_a_cpu_a_row_is_the_same_in_any_company() -> None:
    case = next(case for case in ADAPTER_CASES if case.name == "many rows" and not case.by_rank)
    base, x, inward, outward, rows = case.arguments()
    multiply = jax.jit(functools.partial(adapter_product, **case.options, platform="cpu"))
    together = multiply(base, x, inward, outward, rows)
    for row in (0, 36, 37, 40):
        alone = multiply(base[row, None], x[row, None], inward, outward, adapter_rows((case.rows[row],), case.count))
        np.testing.assert_array_equal(alone[0], together[row])


def test_what_does_not_fit_is_named() -> None:
    base, x, inward, outward, rows = ADAPTER_CASES[0].arguments()
    with pytest.raises(ValueError, match=r"R \(rank\)"):
        adapter_product(base, x, inward[..., :4], outward, rows, by_rank=False)
    with pytest.raises(ValueError, match=r"I \(inputs\)"):
        adapter_product(base, x[:, :7], inward, outward, rows, by_rank=False)
    with pytest.raises(KernelUnsupported, match=r"wide.*lie by inputs"):
        adapter_product(base, x, inward, outward, rows, by_rank=False, backend="wide")
    assert rows.adapters.dtype == jnp.int32
