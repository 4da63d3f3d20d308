"""Everything that the shapes of an engine's programs follow from, and the programs of those shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from buckets import Grid, StepShape
from jaxengine.layers.sharding import kv_sharding, tensor_parallel_size
from jaxengine.models.interface import CacheSpec
from jaxengine.models.parameters import ModelGraph, ModelParts, model_parts
from jaxengine.runtime.inputs import StepLayout
from jaxengine.sampling.tensors import Variant
from pallas_kernels import kv_page_shape
from xla_cache import Program

SAMPLED_ROWS = {"cpu": (8, 2), "tpu": (16, 8)}
"""The least number of sampled rows, and the factor to the next. What a row costs that is not sampled is the projection to logits,
and a TPU takes the same time for up to some 256 of them: it reads the matrix. `gpu` is as `cpu`."""


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
    def layer_by_layer(self) -> bool:
        """Whether the CPU runs the forward pass as one small program for each layer (`runtime/forward.py` says why)."""
        return self.platform == "cpu" and self.mesh is None

    @cached_property
    def parts(self) -> ModelParts:
        """Which parameters belong to which layer."""
        return model_parts(self.graph, self.parameters)

    def structs(self, numbers: Iterable[int]) -> tuple[jax.ShapeDtypeStruct, ...]:
        """The parameters of these numbers (`parts`)."""
        given = tuple(self.parameters.values())
        return tuple(given[number] for number in numbers)

    @property
    def replicated(self) -> NamedSharding | None:
        return None if self.mesh is None else NamedSharding(self.mesh, PartitionSpec())

    @cached_property
    def row_counts(self) -> tuple[int, ...]:
        """The numbers of sampled rows that occur."""
        return tuple(sorted({self.sampled_rows(shape) for shape in self.grid.shapes}))

    def sampled_rows(self, shape: StepShape) -> int:
        """The row count R that holds every row of `shape`."""
        rows, factor = SAMPLED_ROWS.get(self.platform, SAMPLED_ROWS["cpu"])
        most = max(rows, max(shape.rows for shape in self.grid.shapes))
        while rows < min(shape.rows, most):
            rows *= factor
        return min(rows, most)

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

    def program(
        self,
        name: str,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        *,
        donate: tuple[int, ...] = (),
        weight: float = 0.0,
        facts: Mapping[str, Any],
        nodes: tuple[type, ...] = (),
    ) -> Program:
        """A program for the mesh and the platform of this space. `facts` as `xla_cache.Program` has them."""
        return Program(
            name=name,
            function=function,
            arguments=arguments,
            donate=donate,
            weight=weight,
            mesh=self.mesh,
            platform={"gpu": "cuda"}.get(self.platform, self.platform),
            facts=facts,
            nodes=nodes,
        )


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
