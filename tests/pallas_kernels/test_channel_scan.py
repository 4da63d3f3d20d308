"""Scans of channels by themselves: every backend against the definition, alone, in company and cut."""

from __future__ import annotations

import itertools
from contextlib import nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pallas_kernels import channel_scan
from pallas_kernels.channel_scan import OP
from pallas_kernels.check import pool_moves
from pallas_kernels.dispatch import KernelUnsupported
from pallas_kernels.testing import CHANNEL_CASES, RecurrenceCase
from tests.pallas_kernels.simulation import checked_tpu
from tests.quick import QUICK, rare_but, slow_but
from tests.targets.tpu import devices


def by_hand(case: RecurrenceCase) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Token by token, in float64."""
    x, steps, rates, inward, outward, states = (np.asarray(a, np.float64) for a in case.channel_inputs()[:6])
    slots, starts, offsets = (np.asarray(a) for a in case.channel_inputs()[6:])
    out, states = np.zeros(x.shape), states.copy()
    for row, (slot, count) in enumerate(zip(slots, case.rows, strict=True)):
        if count and starts[row] == 0:
            states[slot] = 0
        for place in range(offsets[row], offsets[row] + count):
            step, taken = (a.reshape(len(rates), 1, -1) for a in (steps[place], steps[place] * x[place]))
            states[slot] = np.exp(step * rates) * states[slot] + taken * inward[place][:, None]
            out[place] = (states[slot] * outward[place][:, None]).sum(1).ravel()
    return out, states


@pytest.mark.parametrize("backend", OP.backends)
@pytest.mark.parametrize(
    "case", slow_but(CHANNEL_CASES, [case for case in CHANNEL_CASES if case.name == "mixed"]), ids=str
)
def test_a_backend_agrees_with_the_definition(case: RecurrenceCase, backend: str) -> None:
    run = jax.jit(lambda *arrays: channel_scan(*arrays, backend=backend), compiler_options=QUICK)
    with checked_tpu(cores=2) if backend == "tpu" else nullcontext():
        try:
            results = [np.asarray(result) for result in run(*case.channel_inputs())]
        except KernelUnsupported as refused:
            pytest.skip(str(refused))
    for found, wanted in zip(results, by_hand(case), strict=True):
        assert (found.shape, found.dtype) == (wanted.shape, jnp.float32)
        atol = case.tolerance * max(1, np.abs(wanted).max(initial=0, where=np.isfinite(wanted)))
        np.testing.assert_allclose(found, wanted, rtol=0, atol=atol)


def test_company_and_cuts_change_no_bit_on_a_cpu() -> None:
    run = jax.jit(lambda *arrays: channel_scan(*arrays, backend="cpu"))
    rows = (1, 70, 1, 9, 1)
    many = RecurrenceCase(name="many", reason="", rows=rows, padding=11, size=64).channel_inputs()
    out, states = run(*many)
    for row, (begin, end) in enumerate(itertools.pairwise(np.asarray(many.offsets))):
        own, found = many.states, []
        for first, last in itertools.pairwise(sorted({begin, min(begin + 33, end), end})):
            mine = {name: array[first:last] for name, array in many._asdict().items() if len(array) == len(out)}
            mine |= {"slots": many.slots[row : row + 1], "starts": many.starts[row : row + 1] + (first - begin)}
            mine |= {"offsets": jnp.asarray([0, last - first], jnp.int32), "states": own}
            part, own = run(*(many._asdict() | mine).values())
            found.append(part)
        np.testing.assert_array_equal(np.concatenate(found), out[begin:end])
        np.testing.assert_array_equal(own[many.slots[row]], states[many.slots[row]])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": jnp.zeros((2, 32))}, "N .places. differs"),
        ({"rates": jnp.zeros((1, 12, 8))}, "channels differs"),
        ({"inward": jnp.zeros((1, 3))}, "S .state. differs"),
        ({"states": jnp.zeros((3, 2, 12, 16))}, "must be .P, T, S, L. of rates"),
        ({"backend": "gpu"}, "no backend 'gpu'"),
    ],
)
def test_what_does_not_fit_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        channel_scan(**CHANNEL_CASES[0].channel_inputs()._asdict() | changes)


LAYERS = {"Jamba-1.5-mini": (8192, 16), "Falcon-Mamba-7B": (8192, 16), "Mamba-130M": (1536, 16)}


@pytest.mark.tpu_compile
@pytest.mark.slow
@pytest.mark.parametrize(
    "layer", rare_but(itertools.product(LAYERS, ["v5e", "v6e"]), {("Jamba-1.5-mini", "v6e")}), ids=" ".join
)
def test_a_tpu_compiler_takes_the_sizes_of_published_models(layer: tuple[str, str]) -> None:
    """And leaves all states where they are, but those of the rows."""
    model, target = layer
    channels, size = LAYERS[model]
    rows, places, tiles = 8, 256, channels // 128
    kept: dict[str, tuple[tuple[int, ...], Any]] = {
        "states": ((4 * rows, tiles, size, 128), jnp.float32),
        "x": ((places, channels), jnp.bfloat16),
        "steps": ((places, channels), jnp.float32),
        "rates": ((tiles, size, 128), jnp.float32),
        **dict.fromkeys(("inward", "outward"), ((places, size), jnp.bfloat16)),
        **dict.fromkeys(("slots", "starts"), ((rows,), jnp.int32)),
        "offsets": ((rows + 1,), jnp.int32),
    }
    mesh = Mesh(np.asarray(devices(target, count=1)), ("tensor",))
    whole = NamedSharding(mesh, PartitionSpec())
    structs = {name: jax.ShapeDtypeStruct(*given, sharding=whole) for name, given in kept.items()}

    def call(states: Any, arrays: dict[str, Any]) -> Any:
        return channel_scan(states=states, platform="tpu", **arrays)

    with jax.set_mesh(mesh):
        traced = jax.jit(call, donate_argnums=0).trace(structs.pop("states"), structs)
        compiled = traced.lower(lowering_platforms=("tpu",)).compile()
    assert compiled.as_text().count("tpu_custom_call") == 2
    assert pool_moves(compiled, kept["states"][0], itemsize=4) == []
