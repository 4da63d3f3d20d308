"""Generalised delta rules: every backend against the definition, alone, in company and cut."""

from __future__ import annotations

import itertools
from contextlib import nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pallas_kernels import generalised_delta
from pallas_kernels.check import pool_moves
from pallas_kernels.dispatch import KernelUnsupported
from pallas_kernels.generalised_delta import OP
from pallas_kernels.testing import GENERALISED_CASES, RecurrenceCase
from tests.pallas_kernels.simulation import checked_tpu
from tests.quick import QUICK, rare_but, slow_but
from tests.targets.tpu import devices

OFTEN = [case for case in GENERALISED_CASES if case.name == "mixed"]


def by_hand(case: RecurrenceCase) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Token by token, in float64, by the matrix that a state is multiplied with."""
    q, k, v, decays, removed, rates, states = (np.asarray(a, np.float64) for a in case.generalised_inputs()[:7])
    slots, starts, offsets = (np.asarray(a) for a in case.generalised_inputs()[7:])
    tiled = (len(states), case.heads // case.tiles, case.state, case.tiles, case.size)
    states = states.reshape(tiled).swapaxes(2, 3).reshape(len(states), case.heads, case.state, case.size)
    out = np.zeros(v.shape)
    for row, (slot, count) in enumerate(zip(slots, case.rows, strict=True)):
        if count and starts[row] == 0:
            states[slot] = 0
        for place, head in itertools.product(range(offsets[row], offsets[row] + count), range(case.heads)):
            gone = np.outer(rates[place, head] * removed[place, head], removed[place, head])
            kept = np.diag(np.exp(decays[place, head])) - gone
            states[slot, head] = kept @ states[slot, head] + np.outer(k[place, head], v[place, head])
            out[place, head] = q[place, head] @ states[slot, head]
    side_by_side = states.reshape(*tiled[:2], case.tiles, case.state, case.size).swapaxes(2, 3)
    return out, side_by_side.reshape(*tiled[:3], -1)


@pytest.mark.parametrize("backend", OP.backends)
@pytest.mark.parametrize("case", slow_but(GENERALISED_CASES, OFTEN), ids=str)
def test_a_backend_agrees_with_the_definition(case: RecurrenceCase, backend: str) -> None:
    highest = jax.lax.Precision.HIGHEST
    run = jax.jit(
        lambda *arrays: generalised_delta(*arrays, precision=highest, backend=backend), compiler_options=QUICK
    )
    with checked_tpu() if backend == "tpu" else nullcontext():
        try:
            results = [np.asarray(result) for result in run(*case.generalised_inputs())]
        except KernelUnsupported as refused:
            pytest.skip(str(refused))
    for found, wanted in zip(results, by_hand(case), strict=True):
        assert (found.shape, found.dtype) == (wanted.shape, jnp.float32)
        atol = case.tolerance * max(1, np.abs(wanted).max(initial=0, where=np.isfinite(wanted)))
        np.testing.assert_allclose(found, wanted, rtol=0, atol=atol)


def test_company_and_cuts_change_no_bit_on_a_cpu() -> None:
    run = jax.jit(lambda *arrays: generalised_delta(*arrays, backend="cpu"))
    rows = (1, 70, 1, 9, 1)
    many = RecurrenceCase(name="many", reason="", rows=rows, padding=11, size=16, state=16).generalised_inputs()
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
        ({"rates": jnp.zeros((2, 4, 12))}, "N .places. differs"),
        ({"removed": jnp.zeros((1, 3, 12))}, "heads differs"),
        ({"decays": jnp.zeros((1, 4, 8))}, "H .head size. differs"),
        ({"v": jnp.zeros((1, 4, 9))}, "heads times V differs"),
        ({"states": jnp.zeros((3, 4, 12, 8), jnp.bfloat16)}, "states must be float32"),
        ({"backend": "gpu"}, "no backend 'gpu'"),
    ],
)
def test_what_does_not_fit_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        generalised_delta(**GENERALISED_CASES[0].generalised_inputs()._asdict() | changes)


HEADS = {"RWKV-7-World-0.1B": 12, "RWKV-7-World-2.9B": 40}


@pytest.mark.tpu_compile
@pytest.mark.slow
@pytest.mark.parametrize(
    "layer", rare_but(itertools.product(HEADS, ["v5e", "v6e"]), {("RWKV-7-World-2.9B", "v6e")}), ids=" ".join
)
def test_a_tpu_compiler_takes_the_sizes_of_published_models(layer: tuple[str, str]) -> None:
    """And leaves all states where they are, but those of the rows."""
    model, target = layer
    rows, places, heads, size = 32, 256, HEADS[model], 64
    keyed = (places, heads, size)
    kept: dict[str, tuple[tuple[int, ...], Any]] = {
        "states": ((8 * rows + 1, heads // 2, size, 2 * size), jnp.float32),
        **dict.fromkeys(("q", "k", "v", "removed"), (keyed, jnp.bfloat16)),
        **dict.fromkeys(("decays", "rates"), (keyed, jnp.float32)),
        **dict.fromkeys(("slots", "starts"), ((rows,), jnp.int32)),
        "offsets": ((rows + 1,), jnp.int32),
    }
    mesh = Mesh(np.asarray(devices(target, count=1)), ("tensor",))
    whole = NamedSharding(mesh, PartitionSpec())
    structs = {name: jax.ShapeDtypeStruct(*given, sharding=whole) for name, given in kept.items()}

    def call(states: Any, arrays: dict[str, Any]) -> Any:
        return generalised_delta(states=states, platform="tpu", **arrays)

    with jax.set_mesh(mesh):
        traced = jax.jit(call, donate_argnums=0).trace(structs.pop("states"), structs)
        compiled = traced.lower(lowering_platforms=("tpu",)).compile()
    assert compiled.as_text().count("tpu_custom_call") == 1
    assert pool_moves(compiled, kept["states"][0], itemsize=4) == []
