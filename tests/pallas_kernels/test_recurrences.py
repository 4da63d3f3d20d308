"""Selective scans and gated delta rules: every backend against the definition, alone and in company."""

from __future__ import annotations

import itertools
from contextlib import nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxengine.device.layers.keeps import WHOLE_CHUNKS
from pallas_kernels import gated_delta, selective_scan
from pallas_kernels.check import pool_moves
from pallas_kernels.dispatch import KernelUnsupported
from pallas_kernels.gated_delta import OP as DELTA
from pallas_kernels.gated_delta import xla as delta_xla
from pallas_kernels.gated_delta.xla import unit_triangle_inverse
from pallas_kernels.gpu import targets as gpu_targets
from pallas_kernels.gpu.device import interpreted_gpu
from pallas_kernels.selective_scan import OP as SCAN
from pallas_kernels.selective_scan import xla as scan_xla
from pallas_kernels.testing import RECURRENCE_CASES, RecurrenceCase
from pallas_kernels.tpu.recurrence import decays as tpu_decays
from pallas_kernels.tpu.recurrence.learnt import multiply, terms
from tests.pallas_kernels.simulation import checked_tpu
from tests.quick import QUICK, at_once, rare_but, slow_but
from tests.targets.tpu import devices

QUICK_CASES = [case for case in RECURRENCE_CASES if case.name == "mixed"]
OFTEN_CASES = [
    case
    for case in RECURRENCE_CASES
    if not case.name.startswith("vectors") or case.name in ("vectors-slow", "vectors-by-channel-slow")
]
"""Those that fill vectors are simulated for up to a minute and a half each."""


def scan_by_hand(case: RecurrenceCase) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Token by token, head by head, in float64."""
    x, steps, rates, inward, outward, states = (np.asarray(a, np.float64) for a in case.scan_inputs()[:6])
    slots, starts, offsets = (np.asarray(a) for a in case.scan_inputs()[6:])
    out, tiled = np.zeros(x.shape), states.shape
    states = states.reshape(*tiled[:3], -1, case.size).swapaxes(2, 3).reshape(len(states), case.heads, *tiled[2:3], -1)
    for row, (slot, count) in enumerate(zip(slots, case.rows, strict=True)):
        if count and starts[row] == 0:
            states[slot] = 0
        for place in range(offsets[row], offsets[row] + count):
            for head in range(case.heads):
                group = head // (case.heads // case.shared)
                step = steps[place, head]
                states[slot, head] *= np.exp(step * rates[head])
                states[slot, head] += step * np.outer(inward[place, group], x[place, head])
                out[place, head] = outward[place, group] @ states[slot, head]
    return out, states.reshape(*tiled[:2], -1, *tiled[2:3], case.size).swapaxes(2, 3).reshape(tiled)


def delta_by_hand(case: RecurrenceCase) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Token by token, head by head, in float64."""
    q, k, v, decays, rates, states = (np.asarray(a, np.float64) for a in case.delta_inputs()[:6])
    slots, starts, offsets = (np.asarray(a) for a in case.delta_inputs()[6:])
    states, out = states.copy(), np.zeros(v.shape)
    for row, (slot, count) in enumerate(zip(slots, case.rows, strict=True)):
        if count and starts[row] == 0:
            states[slot] = 0
        for place in range(offsets[row], offsets[row] + count):
            for head in range(case.heads):
                shared = head // (case.heads // case.shared)
                key, state = k[place, shared], states[slot, head] * np.exp(decays[place, head]).reshape(-1, 1)
                states[slot, head] = state + rates[place, head] * np.outer(key, v[place, head] - key @ state)
                out[place, head] = q[place, shared] @ states[slot, head]
    return out, states


OPS = {
    "scan": (selective_scan, RecurrenceCase.scan_inputs, scan_by_hand),
    "delta": (gated_delta, RecurrenceCase.delta_inputs, delta_by_hand),
}


@pytest.mark.parametrize("backend", [name for name in SCAN.backends if name in DELTA.backends])
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("case", slow_but(RECURRENCE_CASES, QUICK_CASES, often=OFTEN_CASES), ids=str)
def test_a_backend_agrees_with_the_definition(case: RecurrenceCase, op: str, backend: str) -> None:
    function, inputs, by_hand = OPS[op]
    options = {"backend": backend, "precision": jax.lax.Precision.HIGHEST}
    run = jax.jit(lambda *arrays: function(*arrays, **options), compiler_options=QUICK)
    with {"tpu": lambda: checked_tpu(cores=2), "gpu": interpreted_gpu}.get(backend, nullcontext)():
        try:
            results = [np.asarray(result) for result in run(*inputs(case))]
        except KernelUnsupported as refused:
            pytest.skip(str(refused))
    check(results, by_hand(case), case)


def test_products_of_two_terms_keep_sixteen_bits() -> None:
    a, b = np.random.default_rng(3).normal(size=(2, 64, 64)).astype(np.float32)
    bound = np.abs(a) @ np.abs(b)
    for exact, bits in ((True, 22), (False, 16)):
        found = multiply(*(terms(jnp.asarray(x), exact=exact) for x in (a, b)))
        assert np.abs((found - a.astype(np.float64) @ b) / bound).max() < 2.0**-bits


@pytest.mark.slow
def test_a_tpus_products_in_bfloat16_leave_the_rule_what_it_is() -> None:
    """With keys that are all alike, where what tokens learn of one another adds up over a chunk."""
    case = next(case for case in RECURRENCE_CASES if case.name == "vectors-slow")
    run = jax.jit(lambda *arrays: gated_delta(*arrays, backend="tpu", precision=jax.lax.Precision.DEFAULT))
    with checked_tpu(cores=2):
        results = [np.asarray(result) for result in run(*case.delta_inputs())]
    for found, wanted in zip(results, delta_by_hand(case), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=2**-7 * np.nanmax(np.abs(wanted)))


def check(results: Any, expected: Any, case: RecurrenceCase) -> None:
    for found, wanted in zip(results, expected, strict=True):
        assert (found.shape, found.dtype) == (wanted.shape, jnp.float32)
        atol = case.tolerance * max(1, np.abs(wanted).max(initial=0, where=np.isfinite(wanted)))
        np.testing.assert_allclose(found, wanted, rtol=0, atol=atol)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated")  # since jax 0.11
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("case", RECURRENCE_CASES, ids=str)
def test_a_gpu_agrees_with_the_definition(case: RecurrenceCase, op: str) -> None:
    """As in test_paged_attention.py."""
    if jax.default_backend() != "gpu":
        pytest.skip("needs a GPU, and JAX_PLATFORMS=cuda,cpu")
    function, inputs, by_hand = OPS[op]
    check([np.asarray(result) for result in function(*inputs(case), backend="gpu")], by_hand(case), case)


@pytest.mark.parametrize(
    ("op", "by_channel"),
    slow_but([("scan", False), ("delta", False), ("delta", True)], {("scan", False)}, several=True),
)
def test_a_row_is_the_same_in_any_company(op: str, by_channel: bool) -> None:
    """On a CPU, in steps of any size, to the last bit. Of these sizes plain XLA's differ."""
    function, inputs, _ = OPS[op]
    run = jax.jit(lambda *arrays: function(*arrays, backend="cpu"))
    rows, sizes = (1, 70, 1, 9, 1, 1, 1, 1, 1), {"heads": 8, "size": 64, "state": 128}
    many = inputs(RecurrenceCase(name="many", reason="", rows=rows, padding=11, by_channel=by_channel, **sizes))
    out, states = run(*many)
    offsets = np.asarray(many.offsets)
    for row, (begin, end) in enumerate(itertools.pairwise(offsets)):
        mine = {name: array[begin:end] for name, array in many._asdict().items() if len(array) == len(out)}
        mine |= {name: many._asdict()[name][row : row + 1] for name in ("slots", "starts")}
        mine |= {"offsets": jnp.asarray([0, end - begin], jnp.int32)}
        alone, after = run(*(many._asdict() | mine).values())
        np.testing.assert_array_equal(alone, out[begin:end])
        np.testing.assert_array_equal(after[many.slots[row]], states[many.slots[row]])


@pytest.mark.parametrize(
    ("op", "by_channel"),
    slow_but([("scan", False), ("delta", False), ("delta", True)], {("delta", False)}, several=True),
)
def test_cuts_where_the_scheduler_makes_them_change_nothing(op: str, by_channel: bool) -> None:
    """Of deterministic mode."""
    function, inputs, _ = OPS[op]
    run = jax.jit(lambda *arrays: function(*arrays, backend="cpu"))
    cut, end = WHOLE_CHUNKS, 2 * WHOLE_CHUNKS + 5
    arguments = inputs(RecurrenceCase(name="whole", reason="", rows=(end,), by_channel=by_channel))
    whole, last = run(*arguments)
    states, found = arguments.states, []
    for begin, stop in ((0, cut), (cut, end)):
        part = {name: array[begin:stop] for name, array in arguments._asdict().items() if len(array) == end}
        part |= {"states": states, "offsets": jnp.asarray([0, stop - begin], jnp.int32)}
        part |= {"starts": arguments.starts + begin}
        out, states = run(*(arguments._asdict() | part).values())
        found.append(out)
    np.testing.assert_array_equal(np.concatenate(found), whole)
    np.testing.assert_array_equal(states[arguments.slots[0]], last[arguments.slots[0]])


def test_every_chunk_divides_the_distance_of_cuts() -> None:
    sizes = [delta_xla.CHUNK, delta_xla.CHUNK_BY_CHANNEL, scan_xla.CHUNK, tpu_decays.CHUNK]
    assert [WHOLE_CHUNKS % size for size in sizes] == [0] * len(sizes)


@pytest.mark.slow
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
        part |= {"starts": arguments.starts + begin}
        out, states = run(*(arguments._asdict() | part).values())
        found.append(out)
    np.testing.assert_allclose(np.concatenate(found), whole, rtol=0, atol=1e-5 * np.abs(whole).max())
    [slot] = arguments.slots
    np.testing.assert_allclose(states[slot], last[slot], rtol=0, atol=1e-5 * np.abs(last[slot]).max())


def test_the_inverse_of_a_triangle() -> None:
    """What is on the diagonal and above it does not matter; ones below are the worst that keys can be."""
    matrix = np.random.default_rng(0).normal(size=(3, 64, 64)) * 0.2
    matrix[0] = 1.0
    inverse = at_once(unit_triangle_inverse, jnp.asarray(matrix, jnp.float32))
    expected = np.linalg.inv(np.tril(matrix, -1) + np.eye(64))
    np.testing.assert_allclose(inverse, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("op", "changes", "message"),
    [
        ("scan", {"steps": jnp.zeros((2, 4))}, "N .places. differs"),
        ("scan", {"rates": jnp.zeros(3)}, "heads differs"),
        ("scan", {"inward": jnp.zeros((1, 3, 12)), "outward": jnp.zeros((1, 3, 12))}, "cannot share 3 groups"),
        ("scan", {"offsets": jnp.zeros(3, jnp.int32)}, "offsets must be int32"),
        ("scan", {"states": jnp.zeros((3, 4, 12, 9))}, "do not hold 4 heads of 8"),
        ("delta", {"starts": jnp.zeros(1)}, "starts must be int32"),
        ("delta", {"k": jnp.zeros((1, 2, 11))}, "H .head size. differs"),
        ("delta", {"states": jnp.zeros((1, 4, 12, 8), jnp.bfloat16)}, "states must be float32"),
        ("delta", {"backend": "native"}, "no backend 'native'"),
        ("delta", {"backend": "gpu"}, "the program is not traced for a GPU"),
    ],
)
def test_what_does_not_fit_is_named(op: str, changes: dict[str, Any], message: str) -> None:
    function, inputs, _ = OPS[op]
    with pytest.raises(ValueError, match=message):
        function(**inputs(RECURRENCE_CASES[0])._asdict() | changes)


def published(model: str, rows: int, places: int) -> tuple[Any, dict[str, tuple[tuple[int, ...], Any]]]:
    """The op of a whole layer of a model, and its arguments."""
    tokens, numbers, slots = jnp.bfloat16, jnp.float32, 4 * rows
    kept: dict[str, tuple[tuple[int, ...], Any]] = dict.fromkeys(("slots", "starts"), ((rows,), jnp.int32))
    kept["offsets"] = ((rows + 1,), jnp.int32)
    if model in SCANS:
        heads, groups = SCANS[model]
        kept |= {"states": ((slots, heads // 2, 128, 128), numbers)}
        kept |= {"x": ((places, heads, 64), tokens), "steps": ((places, heads), numbers), "rates": ((heads,), numbers)}
        return selective_scan, kept | dict.fromkeys(("inward", "outward"), ((places, groups, 128), tokens))
    keys, heads, decays = DELTAS[model]
    kept |= {"states": ((slots, heads, 128, 128), numbers), "v": ((places, heads, 128), tokens)}
    kept |= {"decays": ((places, heads, *decays), numbers), "rates": ((places, heads), numbers)}
    return gated_delta, kept | dict.fromkeys(("q", "k"), ((places, keys, 128), tokens))


SCANS = {"Granite-4-H-small": (128, 1), "Nemotron-H-8B": (128, 8), "Granite-4-H-tiny": (48, 1)}
DELTAS = {"Qwen3-Next-80B": (16, 32, ()), "Qwen3.5-27B": (16, 48, ()), "Kimi-Linear-48B": (32, 32, (128,))}
LARGE = {"Granite-4-H-small", "Nemotron-H-8B", "Kimi-Linear-48B"}
"""Whose chunks do not fit a v4's VMEM."""
OFTEN = {("Granite-4-H-small", "v6e"), ("Qwen3-Next-80B", "v5e"), ("Kimi-Linear-48B", "v6e")}


@pytest.mark.tpu_compile
@pytest.mark.slow
@pytest.mark.parametrize(
    "layer",
    rare_but(itertools.product([*SCANS, *DELTAS], ["v4", "v5e", "v5p", "v6e", "tpu7x"]), OFTEN),
    ids=" ".join,
)
def test_a_tpu_compiler_takes_the_sizes_of_published_models(layer: tuple[str, str]) -> None:
    """And leaves all states where they are, but those of the rows."""
    model, target = layer
    compiled, states = compiled_layer(model, devices(target, count=1), "tpu")
    in_xla = target == "v4" and model in LARGE  # rows of several tokens
    assert compiled.as_text().count("tpu_custom_call") == (1 if in_xla else 2)
    assert pool_moves(compiled, states, itemsize=4) == []


@pytest.mark.gpu_compile
@pytest.mark.skipif(gpu_targets.missing() is not None, reason=f"needs {gpu_targets.missing()}")
@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated")
@pytest.mark.parametrize("layer", list(itertools.product([*SCANS, *DELTAS], ["a100", "h100"])), ids=" ".join)
def test_a_gpu_compiler_takes_the_sizes_of_published_models(layer: tuple[str, str]) -> None:
    """And leaves all states where they are: it needs next to no memory beside them."""
    model, target = layer
    compiled, states = compiled_layer(model, gpu_targets.devices(target, 1), "gpu")
    assert compiled.as_text().count('"__gpu$xla.gpu.triton"') == 1
    assert pool_moves(compiled, states, itemsize=4, most_temporary=0.01) == []


def compiled_layer(model: str, devices: list[Any], platform: str) -> tuple[Any, tuple[int, ...]]:
    """The op of a model's layer for one device, and the shape of the states of all sequences."""
    mesh = Mesh(np.asarray(devices), ("tensor",))
    function, arguments = published(model, rows=8, places=256)
    whole = NamedSharding(mesh, PartitionSpec())
    structs = {name: jax.ShapeDtypeStruct(*given, sharding=whole) for name, given in arguments.items()}
    states = structs.pop("states")
    names = list(structs)

    def call(states: Any, *arrays: Any) -> Any:
        return function(states=states, platform=platform, **dict(zip(names, arrays, strict=True)))

    with jax.set_mesh(mesh):
        traced = jax.jit(call, donate_argnums=0).trace(states, *structs.values())
        lowered = traced.lower(lowering_platforms=({"gpu": "cuda"}.get(platform, platform),))
        return lowered.compile(), states.shape
