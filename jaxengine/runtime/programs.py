"""The device programs of an engine as pure functions with fixed shapes: `forward`, `sample`, `copy_pages`.

`forward` is keyed by a `StepShape`, `sample` by a row count and a variant. The two meet at a small ladder of row counts, so that
their numbers add and do not multiply.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from buckets import Grid, StepShape
from jaxengine.layers.attention import AttentionInputs, RowBlock
from jaxengine.layers.sharding import kv_sharding, tensor_parallel_size
from jaxengine.models.interface import CacheSpec
from jaxengine.models.parameters import ModelGraph, merge
from jaxengine.runtime.inputs import BlockLayout, StepLayout
from jaxengine.sampling.sampler import SampleOutputs, sample
from jaxengine.sampling.tensors import SamplingInputs, Variant, spec
from pallas_kernels import copy_pages, kv_page_shape
from xla_cache import Program

MIN_SAMPLED_ROWS = 8
COPIES_PER_LAUNCH = 16


@dataclass(frozen=True, kw_only=True)
class ProgramSpace:
    """Everything that the shapes of all programs follow from.

    `parameters` maps dotted paths to `jax.ShapeDtypeStruct`s in the order in which programs take them. `num_pages` counts the
    pages of one layer, the sink included.
    """

    graph: ModelGraph
    parameters: dict[str, jax.ShapeDtypeStruct]
    cache: CacheSpec
    vocab_size: int
    grid: Grid
    page_size: int
    num_pages: int
    kv_dtype: Any
    max_model_len: int
    max_logprobs: int
    attention_backend: str
    platform: str
    mesh: Mesh | None

    @property
    def pages_per_row(self) -> int:
        """Width P of the page table: pages of the longest sequence."""
        return -(-self.max_model_len // self.page_size)

    @cached_property
    def kv_pages(self) -> jax.ShapeDtypeStruct:
        """The one page pool of all layers, `[layers * pages, T, C, L]`; on most platforms C is `2K` and L is `H`."""
        page = kv_page_shape(
            self.page_size,
            self.cache.num_kv_heads,
            self.cache.head_dim,
            platform=self.platform,
            shards=tensor_parallel_size(self.mesh),
        )
        shape = (self.cache.num_layers * self.num_pages, *page)
        sharding = None if self.mesh is None else kv_sharding(self.mesh)
        return jax.ShapeDtypeStruct(shape, self.kv_dtype, sharding=sharding)

    @property
    def replicated(self) -> NamedSharding | None:
        return None if self.mesh is None else NamedSharding(self.mesh, PartitionSpec())

    @cached_property
    def row_counts(self) -> tuple[int, ...]:
        """The numbers of sampled rows that occur: powers of two, and the rows of the largest shape."""
        return tuple(sorted({self.sampled_rows(shape) for shape in self.grid.shapes}))

    def sampled_rows(self, shape: StepShape) -> int:
        """The row count R that holds every row of `shape`."""
        most = max(MIN_SAMPLED_ROWS, max(shape.rows for shape in self.grid.shapes))
        return min(most, max(MIN_SAMPLED_ROWS, 1 << (shape.rows - 1).bit_length()))

    @cached_property
    def sample_shapes(self) -> tuple[SampleShape, ...]:
        """Every sampling program: per row count each variant without history, and the full one with it."""
        return tuple(
            SampleShape(rows, variant, history)
            for rows in self.row_counts
            for variant, history in (*((variant, 0) for variant in Variant), (Variant.FULL, self.max_model_len))
        )

    def layout(self, shape: StepShape) -> StepLayout:
        return StepLayout(shape, self.pages_per_row, self.sampled_rows(shape))

    def replicated_struct(self, shape: Sequence[int], dtype: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(tuple(shape), dtype, sharding=self.replicated)


def forward_name(shape: StepShape) -> str:
    return f"forward {shape}"


@dataclass(frozen=True)
class SampleShape:
    """What a sampling program is compiled for: `rows` R, the variant, and the tokens of `history` L that penalties look at.

    L is 0 or the context length: an array of `R x L` is worth its transfer only to rows with penalties.
    """

    rows: int
    variant: Variant
    history: int = 0

    @property
    def name(self) -> str:
        return f"sample {self.rows} {self.variant.value}" + (f" history {self.history}" if self.history else "")

    @property
    def cost(self) -> int:
        """Orders compilation: variants that do more compile longer."""
        return self.rows * (1 + list(Variant).index(self.variant)) + self.history


COPY_NAME = "copy pages"


def forward_program(space: ProgramSpace, shape: StepShape) -> Program:
    """`(parameters, kv_pages, buffer) -> (hidden [R, E] of the sampled places, kv_pages)`."""
    layout = space.layout(shape)

    def forward(
        parameters: tuple[jax.Array, ...], kv_pages: jax.Array, buffer: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        tokens, positions, attention = unpack(space, layout, buffer)
        model = merge(space.graph, parameters)
        hidden, kv_pages = model(tokens, positions, kv_pages, attention)
        sampled = jax.lax.dynamic_slice_in_dim(buffer, layout.sampled_offset, layout.sampled_rows)
        return jnp.take(hidden, sampled, axis=0, mode="clip"), kv_pages

    return _program(
        space,
        forward_name(shape),
        forward,
        (tuple(space.parameters.values()), space.kv_pages, space.replicated_struct((layout.size,), jnp.int32)),
        donate=(1,),
        weight=1e6 + shape.tokens,
        facts={
            "page_size": space.page_size,
            "num_pages": space.num_pages,
            "pages_per_row": space.pages_per_row,
            "sampled_rows": layout.sampled_rows,
            "attention_backend": space.attention_backend,
        },
    )


def unpack(space: ProgramSpace, layout: StepLayout, buffer: jax.Array) -> tuple[jax.Array, jax.Array, AttentionInputs]:
    """Cut the buffer of `runtime/inputs.py` into tokens `[N]`, positions `[N]` and what attention needs."""
    tokens, positions, slots, blocks = [], [], [], []
    for block in layout.blocks:
        fields = _fields(block, buffer)
        rows = RowBlock(
            page_table=fields["page_table"], starts=fields["starts"], lengths=fields["lengths"], seq=block.bucket.seq
        )
        place = jnp.arange(block.bucket.seq, dtype=jnp.int32)
        real = place[None, :] < rows.lengths[:, None]
        at = jnp.where(real, rows.starts[:, None] + place[None, :], 0)
        page = jnp.take_along_axis(rows.page_table, at // space.page_size, axis=1, mode="clip")
        slot = jnp.where(real, page * space.page_size + at % space.page_size, 0)
        tokens.append(fields["tokens"])
        positions.append(at.reshape(-1))
        slots.append(slot.reshape(-1))
        blocks.append(rows)
    attention = AttentionInputs(
        blocks=tuple(blocks),
        slots=jnp.concatenate(slots),
        num_pages=space.num_pages,
        page_size=space.page_size,
        backend=space.attention_backend,
    )
    return jnp.concatenate(tokens), jnp.concatenate(positions), attention


def _fields(block: BlockLayout, buffer: jax.Array) -> dict[str, jax.Array]:
    fields = {}
    offset = block.offset
    for name, shape in block.fields:
        size = 1
        for extent in shape:
            size *= extent
        fields[name] = jax.lax.slice_in_dim(buffer, offset, offset + size).reshape(shape)
        offset += size
    return fields


def sample_program(space: ProgramSpace, shape: SampleShape, hidden: jax.ShapeDtypeStruct) -> Program:
    """`(parameters, hidden [R, E], inputs) -> SampleOutputs`.

    The final projection belongs to sampling, because it is padded by rows and not by tokens.
    """

    def sample_rows(parameters: tuple[jax.Array, ...], hidden: jax.Array, inputs: SamplingInputs) -> SampleOutputs:
        logits = merge(space.graph, parameters).logits(hidden)
        return sample(shape.variant, logits, inputs, max_logprobs=space.max_logprobs, mesh=space.mesh)

    inputs = jax.tree.map(
        lambda struct: space.replicated_struct(struct.shape, struct.dtype),
        spec(shape.variant, rows=shape.rows, vocab=space.vocab_size, history=shape.history),
    )
    rows = space.replicated_struct((shape.rows, *hidden.shape[1:]), hidden.dtype)
    return _program(
        space,
        shape.name,
        sample_rows,
        (tuple(space.parameters.values()), rows, inputs),
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
    return _program(space, COPY_NAME, copy, (space.kv_pages, pairs, pairs), donate=(0,), facts=facts)


def hidden_struct(space: ProgramSpace, shape: StepShape) -> jax.ShapeDtypeStruct:
    """Shape and dtype of the hidden states that `forward` of `shape` returns, without compiling it."""
    program = forward_program(space, shape)
    trace: Callable[..., Any] = jax.eval_shape
    if space.mesh is None:
        return trace(program.function, *program.arguments)[0]  # type: ignore[no-any-return]
    with jax.set_mesh(space.mesh):
        return trace(program.function, *program.arguments)[0]  # type: ignore[no-any-return]


def all_programs(space: ProgramSpace) -> list[Program]:
    """Every program that serving can ask for."""
    smallest = min(space.grid.shapes, key=lambda shape: shape.tokens)
    hidden = hidden_struct(space, smallest)
    samples = [sample_program(space, shape, hidden) for shape in space.sample_shapes]
    return [*(forward_program(space, shape) for shape in space.grid.shapes), *samples, copy_program(space)]


def step_programs(space: ProgramSpace, shape: StepShape) -> list[str]:
    """The names of the programs that a step of this shape may call, page copies aside: sampling of any kind, then `forward`."""
    rows = space.sampled_rows(shape)
    return [*(sample.name for sample in space.sample_shapes if sample.rows == rows), forward_name(shape)]


def _program(
    space: ProgramSpace,
    name: str,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    *,
    donate: tuple[int, ...] = (),
    weight: float = 0.0,
    facts: Mapping[str, Any],
    nodes: tuple[type, ...] = (),
) -> Program:
    return Program(
        name=name,
        function=function,
        arguments=arguments,
        donate=donate,
        weight=weight,
        mesh=space.mesh,
        platform={"gpu": "cuda"}.get(space.platform, space.platform),
        facts=facts,
        nodes=nodes,
    )
