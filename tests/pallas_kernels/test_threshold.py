"""From which value on a row weighs enough: the definition by sorting, and what all backends leave alike."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import KernelUnsupported, threshold
from pallas_kernels.native import COPY, THRESHOLD, calling, registered_name

SIZE = 4099  # blocks whose largest values are compared, and a few values behind them
ROWS = {
    "normal": lambda generator: generator.normal(0, 3, SIZE),
    "ties": lambda generator: np.round(generator.normal(0, 1, SIZE), 1),
    "one value": lambda generator: np.full(SIZE, -2.5),
    "masked": lambda generator: np.where(generator.random(SIZE) < 0.99, -np.inf, generator.normal(0, 3, SIZE)),
    "nothing": lambda generator: np.full(SIZE, -np.inf),
    "wide": lambda generator: generator.normal(0, 1e30, SIZE),
    "too small": lambda generator: generator.choice([-1e-40, 0.0, 1e-39, 2e-38, -2e-38], SIZE),
}
TARGETS = (1, 2, 50, 1000, SIZE - 1, SIZE)
FLOORS = (-np.inf, 0.5)


@pytest.mark.parametrize("weighed", [False, True])
def test_a_threshold_is_the_least_value_that_is_needed(native: str, weighed: bool) -> None:
    generator = np.random.default_rng(0)
    kinds = [(kind, target, floor) for kind in ROWS for target in TARGETS for floor in FLOORS]
    values = np.stack([ROWS[kind](generator) for kind, _, _ in kinds]).astype(np.float32)
    targets = np.array([target for _, target, _ in kinds], np.int32)
    floors = np.array([floor for _, _, floor in kinds], np.float32)
    weights = None
    if weighed:  # as probabilities are: those of larger values are larger, and far from the best they are none
        finite = np.where(np.isfinite(values), values, -1e30)
        weights = np.round(np.exp2(np.maximum(finite - finite.max(1, keepdims=True), -40)) * 2**18).astype(np.int32)
        totals = np.where(values >= floors[:, None], weights, 0).sum(1)
        targets = np.clip(targets * (totals // SIZE), 1, np.maximum(totals, 1)).astype(np.int32)
    active = np.arange(len(kinds)) % 11 != 10
    seen = []
    for name in (None, native):
        with calling(name):
            function = jax.jit(
                lambda values, weights: threshold(
                    values,
                    weights,
                    floor=jnp.asarray(floors),
                    best=values.max(axis=1),
                    target=jnp.asarray(targets),
                    active=jnp.asarray(active),
                    platform="cpu",
                )
            )
            found = np.asarray(function(values, weights))
        # compared as devices do: what is too small for a normal number is 0
        plain = np.where(np.abs(values) < np.finfo(np.float32).tiny, 0, values)
        seen.append(plain >= found[:, None])
    np.testing.assert_array_equal(*seen)
    for kept, row, floor, target, of, acts in zip(
        seen[0], plain, floors, targets, np.ones_like(values) if weights is None else weights, active, strict=True
    ):
        from_floor = row >= floor
        if not acts or of[from_floor].sum() < target:
            np.testing.assert_array_equal(kept, from_floor)
            continue
        assert of[kept].sum() >= target
        assert of[row > row[kept].min()].sum() < target


def test_what_does_not_fit_is_named(native: str) -> None:
    values = jnp.zeros((2, 8))
    row = jnp.zeros(2)
    given = {"floor": row, "best": row, "target": jnp.ones(2, jnp.int32), "active": row == 0}
    with pytest.raises(ValueError, match=r"axis V \(values\) differs: 8 in values, 7 in weights"):
        threshold(values, jnp.zeros((2, 7), jnp.int32), **given)
    with pytest.raises(ValueError, match="target must be int32"):
        threshold(values, None, **{**given, "target": row})
    with pytest.raises(KernelUnsupported, match="no library is registered"):
        threshold(values, None, **given, backend="native")
    with calling(native), pytest.raises(KernelUnsupported, match="rows are cut over vocab"):
        threshold(values, None, **given, axis=("vocab",), backend="native")
    call = jax.ffi.ffi_call(registered_name(THRESHOLD, native), jax.ShapeDtypeStruct((3,), jnp.float32))
    with pytest.raises(jax.errors.JaxRuntimeError, match="extents of values"):
        jax.block_until_ready(call(values, jnp.zeros((0, 0), jnp.int32), row, jnp.ones(2, jnp.int32)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda given: given[:-1], "fewer arguments"),
        (lambda given: (*given, given[0]), "more arguments"),
        (lambda given: (given[0][0], *given[1:]), "of another type or has other axes"),
        (lambda given: (given[0].astype(jnp.int32), *given[1:]), "of another type or has other axes"),
    ],
    ids=["fewer", "more", "axes", "type"],
)
def test_a_call_that_is_not_the_functions_is_refused(native: str, change, message) -> None:
    given = (jnp.zeros((2, 8)), jnp.zeros((0, 0), jnp.int32), jnp.zeros(2), jnp.ones(2, jnp.int32))
    call = jax.ffi.ffi_call(registered_name(THRESHOLD, native), jax.ShapeDtypeStruct((2,), jnp.float32))
    jax.block_until_ready(call(*given))
    with pytest.raises(jax.errors.JaxRuntimeError, match=message):
        jax.block_until_ready(call(*change(given)))


def test_a_call_of_a_layer_that_does_not_fit_is_refused(native: str) -> None:
    call = jax.ffi.ffi_call(registered_name(COPY, native), [jax.ShapeDtypeStruct((4,), jnp.float32)])
    for numbers, message in (([0, -1], "a number for each argument"), ([1], "has no address")):
        with pytest.raises(jax.errors.JaxRuntimeError, match=message):
            jax.block_until_ready(call(jnp.zeros((1, 8), jnp.uint8), jnp.ones(4), of_layer=np.array(numbers, np.int64)))
    arrays = jnp.arange(4.0), jnp.arange(4.0, 8.0)
    addresses = np.array([array.unsafe_buffer_pointer() for array in arrays], np.uintp).view(np.uint8).reshape(2, 8)
    [second] = call(addresses, arrays[0], of_layer=np.array([1], np.int64))
    assert second.tolist() == [4.0, 5.0, 6.0, 7.0]
