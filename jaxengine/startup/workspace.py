"""The memory that programs need beside what they are given: expected, or measured by compiling the largest."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import jax

from jaxengine.device.runtime import memory
from jaxengine.device.runtime.executables import Executables
from jaxengine.device.runtime.program_kinds import ProgramKind
from jaxengine.device.runtime.programs import all_programs
from jaxengine.device.runtime.space import ProgramSpace
from jaxengine.options.config import EngineConfig
from jaxengine.startup.model_plan import ModelPlan
from xla_cache import CacheError, Program, ProgramCache, Record, available_cores, build_programs
from xla_cache.record import Memory

logger = logging.getLogger(__name__)

CODE_BYTES = {"tpu": 8 << 20}
"""Device memory that a program's code takes on average: what programs of Llama-3.1-8B take."""

MEASURED = (ProgramKind.FORWARD, ProgramKind.LOGITS, ProgramKind.SAMPLE, ProgramKind.ENCODE, ProgramKind.ALIGN)
"""What may need much memory beside its arguments."""


def expected_workspace(space: ProgramSpace, model: ModelPlan) -> int:
    """About what the largest program needs, and the code of all.

    Programs hold the outputs of one layer's products, or the logits, and about as much besides; and a layer's weights where these
    come from the host.
    """
    tokens = space.grid.max_tokens
    itemsize = model.dtype.itemsize  # of activations, whatever matrices and caches are kept in
    experts = model.config.experts

    def outputs_of(struct: jax.ShapeDtypeStruct) -> int:
        """Numbers that a parameter makes of a token."""
        shape = memory.shard_shape(struct)
        if len(shape) == 3 and experts is not None:
            return int(experts.routing.chosen * shape[2])
        return shape[0] if len(shape) == 2 else 0

    layers = {space.parts.layers[first] for first in space.parts.alike}
    outputs = max(itemsize * sum(map(outputs_of, space.structs(layer))) for layer in layers)
    if space.media is not None and space.parts.tower is not None:
        tower = {space.parts.tower.layers[first] for first in space.parts.tower.alike}
        places = max(bucket.tokens for bucket in space.media.buckets)
        of_tower = max(itemsize * sum(map(outputs_of, space.structs(layer))) for layer in tower)
        outputs = max(outputs, places * of_tower // tokens)
    logits = 4 * space.kept * -(-space.vocab_size // space.device_layout.shards("vocab"))
    code = CODE_BYTES.get(space.platform, 0) * len(all_programs(space))
    fetched = max(
        sum(memory.shard_bytes(struct) for struct in space.structs(layer) if memory.is_on_host(struct))
        for layer in layers
    )
    return 2 * (tokens * outputs + logits) + fetched + code


def measured_workspace(
    space: ProgramSpace, config: EngineConfig, cache: ProgramCache | None
) -> tuple[int, Mapping[str, Record]]:
    """What the largest program needs beside its arguments, and the code of all, in bytes; and the records of what was compiled.

    They are compiled, or found in `cache`; without a store there they are not kept, and there are no records.
    """
    programs = all_programs(space)
    largest, threads = _largest_programs(programs), compile_threads(config)
    if cache is not None and cache.store is not None:
        try:  # kept programs are read of, not loaded: their devices need not be here
            built = build_programs(largest, cache, threads=threads)
            records = {record.name: record.kept for record in built if record.kept is not None}
            measured = [record.memory for record in records.values()]
            return memory.workspace_bytes(measured, num_programs=len(programs)), records
        except CacheError as error:
            logger.warning("%s", error)
    executables, _ = Executables.compile(largest, threads=threads)
    measured = [Memory.of(compiled) for _, compiled in executables.items()]
    return memory.workspace_bytes(measured, num_programs=len(programs)), {}


def compile_threads(config: EngineConfig) -> int:
    return config.compilation.compile_threads or available_cores()


def _largest_programs(programs: list[Program]) -> list[Program]:
    """Of forward passes, logits, sampling and encoders those that need the most memory: the largest of each kind on each mesh."""
    alike: dict[tuple[str, int], list[Program]] = {}
    for program in programs:
        if program.kind in MEASURED:
            alike.setdefault((program.kind, program.devices[0].id), []).append(program)
    return [max(of_kind, key=_weight) for of_kind in alike.values()]


def _weight(program: Program) -> float:
    return program.weight
