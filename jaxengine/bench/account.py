"""Where the time of a step goes, by part, beside what the machine allows: from a profiler's trace of the programs that serve.

An op's instructions are those that were traced in its scope (`pallas_kernels.dispatch`), as the executables tell; what a compiler
fused counts for the op of the fusion's last instruction. A moment in which several threads are busy counts in equal parts for
what each does, one in which none is for the host. A trace makes steps longer: `step_ms` was measured without one.
"""

from __future__ import annotations

import re
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from jaxengine.bench.accepted import AcceptedDrafts
from jaxengine.bench.work import Work
from jaxengine.bench.workload import random_requests
from jaxengine.contract.sampling_params import SamplingParams
from jaxengine.device.runtime.space import ProgramSpace
from jaxengine.startup.build import Engine
from jaxengine.startup.model_plan import ModelPlan
from jaxengine.startup.roofline import NominalSpeed
from pallas_kernels import matmul
from pallas_kernels.dispatch import SCOPE
from pallas_kernels.native import calling

SAMPLING, OTHER, HOST = "sampling", "norms and the rest", "host"
_MODULE = re.compile(r"^HloModule ([\w.-]+)")
_INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?([\w.-]+) = .*metadata={.*?op_name=\"([^\"]*)\"", re.MULTILINE)

Parts = Mapping[str, Mapping[str, str]]
"""The part that an instruction belongs to, by program and name."""


@dataclass
class Phase:
    """A few steps: their seconds, and what was traced of them if they were."""

    seconds: float = 0.0
    trace: Any = None


def account(
    engine: Engine, plan: ModelPlan, *, batch_size: int, input_len: int, output_len: int
) -> list[dict[str, Any]]:
    """Milliseconds by part of `batch_size` prompts' prefill, and of a step of their decode over `output_len` steps.

    Beside them the least that this model's work takes by the speed that was measured (`limit_ms`), and its share of the time.
    Where tokens are guessed, `accepted_a_step` says how many were right in a step, by their position in the draft.
    """
    speed = measured_speed(engine.space)
    work, parts = Work.of(plan, speed), parts_of_instructions(engine)
    sizes = (batch_size, input_len, output_len)
    drafts = AcceptedDrafts()
    if engine.space.num_drafts:
        engine.core.recorder.listen(drafts)
    for seed in range(2):  # the first time makes what is kept
        drafts.begin()
        untraced = _run(engine, *sizes, seed=seed, traced=False)
    accepted = drafts.a_step
    traced = _run(engine, *sizes, seed=2, traced=True)
    floors = (work.prefill_floor(batch_size, input_len), work.decode_floor(batch_size, input_len + output_len // 2))
    return [
        {
            "step": name,
            "batch_size": batch_size,
            "input_len": input_len,
            "step_ms": round(1e3 * plain.seconds / steps, 2),
            "limit_ms": round(1e3 * floor, 2),
            "share": round(floor * steps / plain.seconds, 3),
            "traced_ms": round(1e3 * seen.seconds / steps, 2),
            **{f"{part} ms": round(1e3 * value / steps, 2) for part, value in _longest_first(seen, parts)},
            "read_gb_s": round(speed.memory_bandwidth / 1e9, 1),
            "product_gflop_s": round(speed.matrix_flops / 1e9, 1),
            **({"accepted_a_step": accepted} if accepted and name == "decode" else {}),
        }
        for name, steps, plain, seen, floor in zip(
            ("prefill", "decode"), (1, output_len), untraced, traced, floors, strict=True
        )
    ]


def measured_speed(space: ProgramSpace) -> NominalSpeed:
    """Bytes/s of a product of one row with a large matrix, and operations/s of one of 2,048 rows, by the engine's own op."""
    dtype = max(space.parameters.values(), key=lambda struct: struct.size).dtype
    dtype = dtype if jnp.issubdtype(dtype, jnp.floating) else jnp.dtype("bfloat16")

    @jax.jit
    def product(x: jax.Array, weight: jax.Array) -> jax.Array:
        with calling(space.native):
            return matmul(x, weight, platform=space.platform)

    def best_s(rows: int, weight: jax.Array) -> float:
        x, tries = jnp.ones((rows, weight.shape[1]), dtype), []
        for _ in range(6):
            begun = time.perf_counter()
            product(x, weight).block_until_ready()
            tries.append(time.perf_counter() - begun)
        return min(tries)

    wide, square = jnp.ones((1 << 15, 4096), dtype), jnp.ones((4096, 4096), dtype)
    flops = 2 * 2048 * square.size / best_s(2048, square)
    return NominalSpeed(wide.nbytes / best_s(1, wide), flops, flops)


def parts_of_instructions(engine: Engine) -> Parts:
    """Of all programs of an engine."""
    parts = {}
    for name, compiled in engine.executables.items():
        text = compiled.as_text()
        otherwise = OTHER if name.startswith("forward") else SAMPLING
        found = {number: _innermost_op(path) or otherwise for number, path in _INSTRUCTION.findall(text)}
        parts[_MODULE.match(text)[1]] = found  # type: ignore[index]
    return parts


def _innermost_op(path: str) -> str | None:
    return next((scope.removeprefix(SCOPE) for scope in reversed(path.split("/")) if scope.startswith(SCOPE)), None)


def _run(
    engine: Engine, batch_size: int, input_len: int, output_len: int, *, seed: int, traced: bool
) -> tuple[Phase, Phase]:
    """Prompts until each has its first token, and so many steps after that."""
    made = random_requests(batch_size, input_len, 1, ids=range(1, engine.host.facts.vocab_size), seed=seed)
    room = engine.space.max_model_len - input_len
    most = min((1 + engine.space.num_drafts) * 2 * (output_len + 1), room)  # a step may bring all of its drafts
    params = SamplingParams(temperature=0.0, max_tokens=most, ignore_eos=True, detokenize=False)
    prompts = [{"prompt_token_ids": list(request.prompt)} for request in made]
    prefill, decode, core, waiting = Phase(), Phase(), engine.core, set()
    for request in engine.front.intake.prepare(prompts, [params] * batch_size):
        core.add(request)
        waiting.add(request.request_id)
    requests = set(waiting)
    with _timed(prefill, traced=traced):
        while waiting:
            waiting -= {update.request_id for update in core.step()}
    with _timed(decode, traced=traced):
        for _ in range(output_len):
            core.step()
    for request_id in requests:
        core.abort(request_id)
    while core.has_unfinished:
        core.step()
    return prefill, decode


@contextmanager
def _timed(phase: Phase, *, traced: bool) -> Iterator[None]:
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0  # calls of Python are of no use here
    with tempfile.TemporaryDirectory() as directory:
        with jax.profiler.trace(directory, profiler_options=options) if traced else nullcontext():
            begun = time.perf_counter()
            yield
            phase.seconds = time.perf_counter() - begun
        for file in Path(directory).rglob("*.xplane.pb"):
            phase.trace = jax.profiler.ProfileData.from_file(str(file))


def _longest_first(phase: Phase, parts: Parts) -> list[tuple[str, float]]:
    """Seconds of each part of a traced phase, and the host's, which is what is left."""
    lines = [line.events for plane in phase.trace.planes for line in plane.lines]
    seconds = shared(edge for events in lines for edge in edges(events, parts))
    seconds[HOST] = max(0.0, phase.seconds - sum(seconds.values()))
    return sorted(seconds.items(), key=lambda item: -item[1])


def shared(edges: Iterable[tuple[float, str, int]]) -> dict[str, float]:
    """Seconds of each part of which threads begin (1) or end (-1) something, at nanoseconds: a moment is shared by those busy."""
    seconds: dict[str, float] = {}
    busy: Counter[str] = Counter()
    before = 0.0
    for now, part, change in sorted(edges):
        for other, threads in busy.items():
            seconds[other] = seconds.get(other, 0.0) + (now - before) / 1e9 * threads / busy.total()
        busy[part] += change
        busy = +busy
        before = now
    return seconds


def edges(events: Iterable[Any], parts: Parts) -> Iterator[tuple[float, str, int]]:
    """When a thread begins and ends what it does for a part: that of the innermost of the instructions under way."""
    begun: list[tuple[float, str]] = []  # those under way: when they end, and their part
    known = [(event.start_ns, event.duration_ns, dict(event.stats)) for event in events]
    for start, duration, stats in sorted(
        (each for each in known if "hlo_op" in each[2]), key=lambda each: (each[0], -each[1])
    ):
        while begun and begun[-1][0] <= start:
            end, part = begun.pop()
            yield end, part, -1
            if begun:
                yield end, begun[-1][1], 1
        part = parts.get(stats.get("hlo_module", ""), {}).get(stats["hlo_op"], OTHER)
        if begun:
            yield start, begun[-1][1], -1
        yield start, part, 1
        begun.append((start + duration if not begun else min(start + duration, begun[-1][0]), part))
    while begun:
        end, part = begun.pop()
        yield end, part, -1
        if begun:
            yield end, begun[-1][1], 1
