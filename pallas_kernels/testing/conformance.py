"""Every case on the device that is there: the backends that `auto` may choose there, against the definitions on the CPU.

Tests hold simulated and interpreted kernels to the same cases; this is for a device that runs them (`jaxengine report`).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels.channel_scan import OP as CHANNEL_SCAN
from pallas_kernels.channel_scan import channel_scan
from pallas_kernels.dispatch import KernelUnsupported, Op
from pallas_kernels.gated_delta import OP as GATED_DELTA
from pallas_kernels.gated_delta import gated_delta
from pallas_kernels.generalised_delta import OP as GENERALISED_DELTA
from pallas_kernels.generalised_delta import generalised_delta
from pallas_kernels.grouped_matmul import OP as GROUPED_MATMUL
from pallas_kernels.grouped_matmul import grouped_matmul
from pallas_kernels.grouped_scaled_matmul import OP as GROUPED_SCALED_MATMUL
from pallas_kernels.grouped_scaled_matmul import grouped_scaled_matmul
from pallas_kernels.latent_attention import OP as LATENT_ATTENTION
from pallas_kernels.latent_attention import latent_attention
from pallas_kernels.matmul import OP as MATMUL
from pallas_kernels.matmul import matmul
from pallas_kernels.native import calling
from pallas_kernels.paged_attention import OP as PAGED_ATTENTION
from pallas_kernels.paged_attention import paged_attention
from pallas_kernels.scaled_matmul import OP as SCALED_MATMUL
from pallas_kernels.scaled_matmul import scaled_matmul
from pallas_kernels.selective_scan import OP as SELECTIVE_SCAN
from pallas_kernels.selective_scan import selective_scan
from pallas_kernels.storage import QUANTISED, to_float32
from pallas_kernels.testing import (
    ATTENTION_CASES,
    CHANNEL_CASES,
    GENERALISED_CASES,
    GROUP_CASES,
    LATENT_CASES,
    PRODUCT_CASES,
    RECURRENCE_CASES,
    SCALED_CASES,
    WRITE_CASES,
)
from pallas_kernels.write_kv import OP as WRITE_KV
from pallas_kernels.write_kv import write_kv

Arrays = Sequence[np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Call:
    """One call of an op: `run(*arrays, backend=...)`. Of its results `real` are those that the contract speaks of.

    They agree where they differ by at most `atol`, plus `rtol` of what is right; with `of_largest`, `atol` times the largest.
    """

    run: Callable[..., Any]
    arrays: Sequence[Any]
    real: Callable[[Any], Any]
    atol: float
    rtol: float = 0.0
    of_largest: bool = False


@dataclass(frozen=True, eq=False)
class Suite:
    """The cases of an op. `call` makes one, with pages as they lie on a platform."""

    op: Op
    cases: Sequence[Any]
    call: Callable[[Any, str], Call]


@dataclass(frozen=True)
class Trial:
    """A case on one backend."""

    suite: Suite
    backend: str
    case: Any

    def __str__(self) -> str:
        return f"{self.suite.op.name} {self.backend}: {self.case}"


@dataclass(frozen=True)
class Verdict:
    """What came of a trial: `agrees`, `differs` or `refused`. `off` is the largest difference over what is allowed."""

    outcome: str
    off: float | None = None
    reason: str = ""


def trials(platform: str, *, most: int | None = None) -> Iterator[Trial]:
    """All that there is to try on a platform; `most` cases an op, where given, which are spread over all of its cases.

    On the CPU the definitions are what is compared with, and no trial.
    """
    for suite in SUITES:
        able = {*suite.op.preferred.get(platform, ()), suite.op.portable}
        able = able - {"reference"} if platform == "cpu" else able | {"reference"}
        cases = suite.cases
        if most is not None and len(cases) > most:
            cases = [cases[at * len(cases) // most] for at in range(most)]
        backends = [backend for backend in suite.op.backends if backend in able]
        yield from (Trial(suite, backend, case) for case in cases for backend in backends)


def judge(trial: Trial, platform: str, *, library: str | None = None) -> Verdict:
    """Run a trial on the default device. `library` is that of the CPU's C++, where it is registered.

    Raises:
        Exception: whatever the compiler or the device raises.
    """
    suite = trial.suite
    wanted = _wanted(suite, trial.case, platform)
    call = suite.call(trial.case, platform)
    with calling(library):
        try:
            found = _real(call, trial.backend)
        except KernelUnsupported as error:
            return Verdict("refused", reason=str(error))
    off = max((_off(a, b, call) for a, b in zip(found, wanted, strict=True)), default=0.0)
    return Verdict("agrees" if off <= 1.0 else "differs", off)


@functools.lru_cache(maxsize=1)
def _wanted(suite: Suite, case: Any, platform: str) -> Arrays:
    """What the definition says; the backends of a case are tried one after the other."""
    with jax.default_device(_cpu()):
        return _real(suite.call(case, platform), "reference")


def _cpu() -> jax.Device:
    """Where definitions are computed: on the CPU, where JAX was let have it."""
    try:
        return jax.devices("cpu")[0]
    except RuntimeError:
        return jax.devices()[0]


def _real(call: Call, backend: str) -> Arrays:
    run = jax.jit(functools.partial(call.run, backend=backend))
    return [np.asarray(array, np.float64) for array in jax.tree.leaves(call.real(run(*call.arrays)))]


def _off(found: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any], call: Call) -> float:
    """The largest difference as a multiple of what is allowed; NaN and infinities must stand where they should."""
    same = (found == wanted) | (np.isnan(found) & np.isnan(wanted))
    if found.shape != wanted.shape or (~np.isfinite(found) & ~same).any() or (~np.isfinite(wanted) & ~same).any():
        return float("inf")
    largest = np.abs(wanted).max(initial=0.0, where=np.isfinite(wanted))
    allowed = call.atol * (max(1.0, largest) if call.of_largest else 1.0) + call.rtol * np.abs(wanted)
    return float(np.max(np.where(same, 0.0, np.abs(found - wanted)) / np.maximum(allowed, 1e-300), initial=0.0))


def _whole(result: Any) -> Any:
    return result


def _attention(case: Any, platform: str) -> Call:
    return Call(functools.partial(paged_attention, **case.options), case.inputs(platform), _whole, case.tolerance)


def _latents(case: Any, platform: str) -> Call:
    return Call(functools.partial(latent_attention, **case.options), case.inputs(platform), _whole, case.tolerance)


def _writes(case: Any, platform: str) -> Call:
    kv_dtype = jnp.dtype(case.kv_dtype)

    def written(pages: Any) -> Any:
        return to_float32(pages, kv_dtype=kv_dtype)[1:]  # page 0 is the sink

    step = 0.13 if kv_dtype in QUANTISED else 0.0  # compilers round to float8 by way of float16: to either neighbour
    atol = 1.0 if kv_dtype == jnp.int8 else 1e-2 if step else 0.0
    return Call(functools.partial(write_kv, **case.options), case.inputs(platform), written, atol, step)


def _product_tolerance(scales: Any) -> tuple[float, float]:
    """`atol` and `rtol`. Products of bytes are exact sums: what is left is the rounding of two factors."""
    return (2e-5, 1e-5) if scales is None else (0.0, 3e-7)


def _products(case: Any, platform: str) -> Call:
    x, weight, scales = case.arguments()
    run = functools.partial(matmul, scales=scales, precision=jax.lax.Precision.HIGHEST)
    return Call(run, (x, weight), _whole, *_product_tolerance(scales))


def _groups(case: Any, platform: str) -> Call:
    x, weights, sizes, scales = case.arguments()
    run = functools.partial(grouped_matmul, scales=scales, precision=jax.lax.Precision.HIGHEST)
    return Call(run, (x, weights, sizes), lambda result: result[: sum(case.sizes)], *_product_tolerance(scales))


def _scaled_call(case: Any, function: Any, arrays: Sequence[Any], real: Callable[[Any], Any]) -> Call:
    """In bfloat16 a matrix is off by 2^-9 of each number, of which products of some 60 add up."""
    run = functools.partial(function, **case.options(), precision=jax.lax.Precision.HIGHEST)
    if case.compute == "bfloat16":
        return Call(run, arrays, real, 0.2, 0.01)
    return Call(run, arrays, real, 2e-4, 1e-5)


def _scaled(case: Any, platform: str) -> Call:
    return _scaled_call(case, scaled_matmul, case.arguments(), _whole)


def _grouped_scaled(case: Any, platform: str) -> Call:
    return _scaled_call(case, grouped_scaled_matmul, case.grouped_arguments(), lambda result: result[: sum(case.sizes)])


def _scan(case: Any, platform: str) -> Call:
    run = functools.partial(selective_scan, precision=jax.lax.Precision.HIGHEST)
    return Call(run, case.scan_inputs(), _whole, case.tolerance, of_largest=True)


def _channels(case: Any, platform: str) -> Call:
    return Call(channel_scan, case.channel_inputs(), _whole, case.tolerance, of_largest=True)


def _delta(case: Any, platform: str) -> Call:
    run = functools.partial(gated_delta, precision=jax.lax.Precision.HIGHEST)
    return Call(run, case.delta_inputs(), _whole, case.tolerance, of_largest=True)


def _generalised(case: Any, platform: str) -> Call:
    run = functools.partial(generalised_delta, precision=jax.lax.Precision.HIGHEST)
    return Call(run, case.generalised_inputs(), _whole, case.tolerance, of_largest=True)


IN_BFLOAT16 = [dataclasses.replace(case, name=f"{case.name}, in bfloat16", compute="bfloat16") for case in SCALED_CASES]
"""As models compute with quantised matrices; kernels of some backends do nothing else."""

SUITES = (
    Suite(PAGED_ATTENTION, ATTENTION_CASES, _attention),
    Suite(LATENT_ATTENTION, LATENT_CASES, _latents),
    Suite(WRITE_KV, WRITE_CASES, _writes),
    Suite(MATMUL, PRODUCT_CASES, _products),
    Suite(GROUPED_MATMUL, GROUP_CASES, _groups),
    Suite(SCALED_MATMUL, (*IN_BFLOAT16, *SCALED_CASES), _scaled),
    Suite(GROUPED_SCALED_MATMUL, (*IN_BFLOAT16, *SCALED_CASES), _grouped_scaled),
    Suite(SELECTIVE_SCAN, RECURRENCE_CASES, _scan),
    Suite(CHANNEL_SCAN, CHANNEL_CASES, _channels),
    Suite(GATED_DELTA, RECURRENCE_CASES, _delta),
    Suite(GENERALISED_DELTA, GENERALISED_CASES, _generalised),
)
