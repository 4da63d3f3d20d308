"""Selective scans and gated delta rules: every backend against the definition, alone and in company."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import gated_delta, selective_scan
from pallas_kernels.gated_delta import OP as DELTA
from pallas_kernels.gated_delta.xla import unit_triangle_inverse
from pallas_kernels.selective_scan import OP as SCAN
from pallas_kernels.testing import RECURRENCE_CASES, RecurrenceCase
from tests.device.tpu import devices
from tests.quick import QUICK, slow_but

QUICK_CASES = RECURRENCE_CASES[1:2]


def scan_by_hand(case: RecurrenceCase) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Token by token, head by head, in float64."""
    x, steps, rates, inward, outward, states, offsets = (np.asarray(a, np.float64) for a in case.scan_inputs())
    states, out = states.copy(), np.zeros(x.shape)
    for row, count in enumerate(case.rows):
        for place in range(int(offsets[row]), int(offsets[row]) + count):
            for head in range(case.heads):
                group = head // (case.heads // case.shared)
                step = steps[place, head]
                states[row, head] *= np.exp(step * rates[head])
                states[row, head] += step * np.outer(x[place, head], inward[place, group])
                out[place, head] = states[row, head] @ outward[place, group]
    return out, states


def delta_by_hand(case: RecurrenceCase) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Token by token, head by head, in float64."""
    q, k, v, decays, rates, states, offsets = (np.asarray(a, np.float64) for a in case.delta_inputs())
    states, out = states.copy(), np.zeros(v.shape)
    for row, count in enumerate(case.rows):
        for place in range(int(offsets[row]), int(offsets[row]) + count):
            for head in range(case.heads):
                shared = head // (case.heads // case.shared)
                key, state = k[place, shared], states[row, head] * np.exp(decays[place, head]).reshape(-1, 1)
                states[row, head] = state + rates[place, head] * np.outer(key, v[place, head] - key @ state)
                out[place, head] = q[place, shared] @ states[row, head]
    return out, states


OPS = {
    "scan": (selective_scan, RecurrenceCase.scan_inputs, scan_by_hand),
    "delta": (gated_delta, RecurrenceCase.delta_inputs, delta_by_hand),
}


@pytest.mark.parametrize("backend", [name for name in SCAN.backends if name in DELTA.backends])
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("case", slow_but(RECURRENCE_CASES, QUICK_CASES), ids=str)
def test_a_backend_agrees_with_the_definition(case: RecurrenceCase, op: str, backend: str) -> None:
    function, inputs, by_hand = OPS[op]
    run = jax.jit(lambda *arrays: function(*arrays, backend=backend), compiler_options=QUICK)
    for found, expected in zip(run(*inputs(case)), by_hand(case), strict=True):
        assert (found.shape, found.dtype) == (expected.shape, jnp.float32)
        np.testing.assert_allclose(found, expected, rtol=0, atol=case.tolerance * max(1, np.abs(expected).max()))


@pytest.mark.parametrize(("op", "by_channel"), [("scan", False), ("delta", False), ("delta", True)])
def test_a_row_is_the_same_to_the_last_bit_in_any_company(op: str, by_channel: bool) -> None:
    """On the CPU, in steps of any size; rows of one token and longer ones."""
    function, inputs, _ = OPS[op]
    run = jax.jit(lambda *arrays: function(*arrays, backend="xla"))
    rows = (1, 70, 1, 9, 1, 1, 1, 1, 1)
    many = inputs(RecurrenceCase(name="many", reason="", rows=rows, padding=11, by_channel=by_channel))
    out, states = run(*many)
    offsets = np.asarray(many.offsets)
    for row, (begin, end) in enumerate(itertools.pairwise(offsets)):
        mine = {name: array[begin:end] for name, array in many._asdict().items() if len(array) == len(out)}
        mine |= {"states": many.states[row : row + 1], "offsets": jnp.asarray([0, end - begin], jnp.int32)}
        alone, state = run(*(many._asdict() | mine).values())
        np.testing.assert_array_equal(alone, out[begin:end])
        np.testing.assert_array_equal(state[0], states[row])


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("cut", [1, 40, 64, 139])
def test_cuts_change_the_last_bits_at_most(op: str, cut: int) -> None:
    function, inputs, _ = OPS[op]
    run = jax.jit(lambda *arrays: function(*arrays, backend="xla"), compiler_options=QUICK)
    arguments = inputs(RecurrenceCase(name="whole", reason="", rows=(140,)))
    whole, last = run(*arguments)
    states, found = arguments.states, []
    for begin, end in ((0, cut), (cut, 140)):
        part = {name: array[begin:end] for name, array in arguments._asdict().items() if len(array) == 140}
        part |= {"states": states, "offsets": jnp.asarray([0, end - begin], jnp.int32)}
        out, states = run(*(arguments._asdict() | part).values())
        found.append(out)
    np.testing.assert_allclose(np.concatenate(found), whole, rtol=0, atol=1e-5 * np.abs(whole).max())
    np.testing.assert_allclose(states, last, rtol=0, atol=1e-5 * np.abs(last).max())


def test_the_inverse_of_a_triangle() -> None:
    """What is on the diagonal and above it does not matter; ones below are the worst that keys can be."""
    matrix = np.random.default_rng(0).normal(size=(3, 64, 64)) * 0.2
    matrix[0] = 1.0
    inverse = unit_triangle_inverse(jnp.asarray(matrix, jnp.float32))
    expected = np.linalg.inv(np.tril(matrix, -1) + np.eye(64))
    np.testing.assert_allclose(inverse, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("op", "changes", "message"),
    [
        ("scan", {"steps": jnp.zeros((2, 4))}, "N .places. differs"),
        ("scan", {"rates": jnp.zeros(3)}, "heads differs"),
        ("scan", {"inward": jnp.zeros((1, 3, 12)), "outward": jnp.zeros((1, 3, 12))}, "cannot share 3 groups"),
        ("scan", {"offsets": jnp.zeros(3, jnp.int32)}, "offsets must be int32"),
        ("delta", {"k": jnp.zeros((1, 2, 11))}, "H .head size. differs"),
        ("delta", {"states": jnp.zeros((1, 4, 12, 8), jnp.bfloat16)}, "states must be float32"),
        ("delta", {"backend": "tpu"}, "no backend 'tpu'"),
    ],
)
def test_what_does_not_fit_is_named(op: str, changes: dict[str, Any], message: str) -> None:
    function, inputs, _ = OPS[op]
    with pytest.raises(ValueError, match=message):
        function(**inputs(RECURRENCE_CASES[0])._asdict() | changes)


@pytest.mark.tpu_compile
@pytest.mark.slow
@pytest.mark.parametrize(("rows", "places"), [(64, 64), (8, 1024)])
@pytest.mark.parametrize("op", OPS)
def test_a_tpu_compiler_takes_the_sizes_of_published_models(op: str, rows: int, places: int) -> None:
    """Granite-4-H-small and Qwen3-Next-80B, whole layers."""
    [device] = devices("v6e", count=1)
    here = jax.sharding.SingleDeviceSharding(device)
    shapes: dict[str, tuple[tuple[int, ...], Any]] = {
        "states": ((rows, 128, 64, 128) if op == "scan" else (rows, 32, 128, 128), jnp.float32),
        "offsets": ((rows + 1,), jnp.int32),
    }
    if op == "scan":
        shapes |= {"x": ((places, 128, 64), jnp.bfloat16), "steps": ((places, 128), jnp.float32)}
        shapes |= {"rates": ((128,), jnp.float32)}
        shapes |= dict.fromkeys(("inward", "outward"), ((places, 1, 128), jnp.bfloat16))
    else:
        shapes |= dict.fromkeys(("q", "k"), ((places, 16, 128), jnp.bfloat16))
        shapes |= {"v": ((places, 32, 128), jnp.bfloat16)}
        shapes |= dict.fromkeys(("decays", "rates"), ((places, 32), jnp.float32))
    structs = {name: jax.ShapeDtypeStruct(shape, dtype, sharding=here) for name, (shape, dtype) in shapes.items()}
    names, structs = zip(*structs.items(), strict=True)
    function = OPS[op][0]

    def call(*arrays: Any) -> Any:
        return function(**dict(zip(names, arrays, strict=True)), platform="tpu")

    compiled = jax.jit(call).trace(*structs).lower(lowering_platforms=("tpu",)).compile()
    state = structs[0].size * 4
    assert compiled.memory_analysis().temp_size_in_bytes < 2 * state + 2**28
