"""The device programs of an engine as pure functions with fixed shapes: `forward`, `sample`, `copy_pages`.

`forward` is keyed by a `StepShape`, `sample` by a row count and a variant. The two meet at a small ladder of row counts, so that
their numbers add and do not multiply.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from buckets import StepShape
from jaxengine.models.parameters import merge_some
from jaxengine.runtime.forward import forward_names, forward_programs, hidden_struct
from jaxengine.runtime.space import ProgramSpace, SampleShape
from jaxengine.sampling.sampler import SampleOutputs, sample
from jaxengine.sampling.tensors import SamplingInputs, spec
from pallas_kernels import copy_pages
from xla_cache import Program

COPIES_PER_LAUNCH = 16
COPY_NAME = "copy pages"


def sample_program(space: ProgramSpace, shape: SampleShape, hidden: jax.ShapeDtypeStruct) -> Program:
    """`(parameters of no layer, hidden [R, E], inputs) -> SampleOutputs`.

    The final projection belongs to sampling, because it is padded by rows and not by tokens.
    """

    def sample_rows(parameters: tuple[jax.Array, ...], hidden: jax.Array, inputs: SamplingInputs) -> SampleOutputs:
        logits = merge_some(space.graph, space.parameters, outer, parameters).logits(hidden)
        return sample(shape.variant, logits, inputs, max_logprobs=space.max_logprobs, mesh=space.mesh)

    outer = space.parts.outer
    inputs = jax.tree.map(
        lambda struct: space.replicated_struct(struct.shape, struct.dtype),
        spec(shape.variant, rows=shape.rows, vocab=space.vocab_size, history=shape.history),
    )
    rows = space.replicated_struct((shape.rows, *hidden.shape[1:]), hidden.dtype)
    return space.program(
        shape.name,
        sample_rows,
        (space.structs(outer), rows, inputs),
        weight=shape.cost,
        facts={"max_logprobs": space.max_logprobs},
        nodes=(SampleOutputs,),
    )


def copy_program(space: ProgramSpace) -> Program:
    """`(kv_pages, sources [M], destinations [M]) -> kv_pages`: copy pages in every layer; `(0, 0)` pairs are padding."""
    layers = space.cache.num_layers

    def copy(kv_pages: jax.Array, sources: jax.Array, destinations: jax.Array) -> jax.Array:
        offsets = jnp.arange(layers, dtype=jnp.int32)[:, None] * space.num_pages
        result: jax.Array = copy_pages(
            kv_pages, (sources[None] + offsets).reshape(-1), (destinations[None] + offsets).reshape(-1)
        )
        return result

    pairs = space.replicated_struct((COPIES_PER_LAUNCH,), jnp.int32)
    facts = {"num_pages": space.num_pages}
    return space.program(COPY_NAME, copy, (space.kv_pages, pairs, pairs), donate=(0,), facts=facts)


def all_programs(space: ProgramSpace) -> list[Program]:
    """Every program that serving can ask for."""
    forwards = [program for shape in space.grid.shapes for program in forward_programs(space, shape)]
    return [*forwards, *sample_programs(space), copy_program(space)]


def sample_programs(space: ProgramSpace) -> list[Program]:
    """The programs of `space.sample_shapes`, in that order."""
    hidden = hidden_struct(space)
    return [sample_program(space, shape, hidden) for shape in space.sample_shapes]


def step_programs(space: ProgramSpace, shape: StepShape) -> list[str]:
    """The names of the programs that a step of this shape may call, page copies aside: sampling of any kind, then `forward`."""
    rows = space.sampled_rows(shape)
    return [*(sample.name for sample in space.sample_shapes if sample.rows == rows), *forward_names(space, shape)]
