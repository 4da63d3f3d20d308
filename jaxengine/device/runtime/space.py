"""Everything that the shapes of an engine's programs follow from, and the programs of those shapes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import jax
from jax.sharding import Sharding

from buckets import Bucket, Grid
from jaxengine.device.layers.adapters import AdapterSpec
from jaxengine.device.layers.cache import Cache
from jaxengine.device.layers.sharding import Layout
from jaxengine.device.models.interface import LOGITS, POOLED
from jaxengine.device.models.parameters import ModelGraph, ModelParts, model_parts
from jaxengine.device.models.pipeline import COPY_PREFIX, Pipeline
from jaxengine.device.runtime import state_structs
from jaxengine.device.runtime.cache_layout import CacheLayout
from jaxengine.device.runtime.compiler_options import chip_of, compiler_options
from jaxengine.device.runtime.draft_space import DRAFT_PREFIX, DraftSpace
from jaxengine.device.runtime.empty_state import EmptyState
from jaxengine.device.runtime.inputs import StepLayout
from jaxengine.device.runtime.media_space import MediaSpace
from jaxengine.device.runtime.mesh_caches import joined
from jaxengine.device.runtime.program_kinds import CALLING, HEAVY, ProgramKind
from jaxengine.device.runtime.sampling_shapes import SamplingShapes
from jaxengine.device.sampling import Slots, slots_spec
from pallas_kernels.native import calling
from xla_cache import Program

USUAL_CONTEXT = 131_072
"""Rows of a step that are no longer have page tables of so many tokens. Where sequences may be more than a quarter longer each
bucket has a second program for steps with such rows: tables of a million tokens are 4 MB of 64 rows and pages of 64 tokens, which
are sent and, in each layer, moved."""


Value = TypeVar("Value")


@dataclass(frozen=True, kw_only=True)
class ProgramSpace:
    """Everything that the shapes of all programs follow from.

    `max_num_seqs` sequences run at once, each of which samples up to `1 + num_drafts` tokens a step. `draft` is what proposes
    them on the device, and reads the stream before the layers `taps` (before one behind the last: what leaves that), or with
    none what `final_norm` gives; None: nothing is read. `parameters` maps dotted paths to `jax.ShapeDtypeStruct`s in the order
    in which programs take them. `num_pages` counts the pages of one lane of each pool, the sinks included; `kv_dtype` is the
    type in which they are held (`pallas_kernels.kv_storage_dtype`). `native` is the identity of the library that a CPU's
    programs call (`pallas_kernels.native`), registered here; None: they call none.
    `pipeline` are the meshes of a model whose layers lie on several: the space is then that of the last one, which samples, but
    for `parameters`, which are each where it lies, and the cache, which is all of theirs. `views` has the space of each, which is
    number `mesh` of them.
    `host_blocks` counts the pages of each pool that the host's memory holds, and last snapshots where there are such; empty where
    all stay on the device. `adapters` are the slots that matrices have beside them; None: there are none.
    `media` is of a model that sees or hears.
    """

    graph: ModelGraph
    parameters: dict[str, jax.ShapeDtypeStruct]
    cache: CacheLayout
    vocab_size: int
    grid: Grid
    max_num_seqs: int
    num_drafts: int = 0
    taps: tuple[int, ...] | None = None
    draft: DraftSpace | None = None
    page_size: int
    num_pages: tuple[int, ...]
    kv_dtype: Any
    max_model_len: int
    max_logprobs: int
    attention_backend: str
    platform: str
    device_layout: Layout
    native: str | None = None
    host_blocks: tuple[int, ...] = ()
    num_snapshots: int = 0
    adapters: AdapterSpec | None = None
    pipeline: Pipeline | None = None
    mesh: int | None = None
    media: MediaSpace | None = None

    @cached_property
    def views(self) -> tuple[ProgramSpace, ...]:
        """The space of each mesh, in the order in which steps pass through them; without a pipeline this one."""
        if self.pipeline is None or self.mesh is not None:
            return (self,)
        return tuple(
            replace(
                self,
                graph=part.graph,
                parameters=part.parameters,
                cache=self.cache.of_mesh(mesh),
                device_layout=part.layout,
                mesh=mesh,
            )
            for mesh, part in enumerate(self.pipeline.parts)
        )

    @property
    def stem(self) -> str:
        """Begins the names of what each mesh has programs for."""
        return "" if self.mesh is None else f"stage {self.mesh} "

    @property
    def layers(self) -> range:
        """The layers that lie here."""
        everywhere = range(len(self.parts.layers))
        return everywhere if self.pipeline is None or self.mesh is None else self.pipeline.parts[self.mesh].layers

    @cached_property
    def here(self) -> bool:
        """Whether this host has devices of this mesh, and launches its programs."""
        return jax.process_index() in self.device_layout.hosts

    @property
    def begins(self) -> bool:
        """Whether steps begin here."""
        return not self.mesh

    @property
    def ends(self) -> bool:
        """Whether steps end here, and are sampled."""
        return self.pipeline is None or self.mesh in (None, len(self.pipeline.parts) - 1)

    @property
    def outer(self) -> tuple[int, ...]:
        """The parameters of no layer that lie here, of a pipeline those of the last mesh."""
        return (
            self.parts.outer
            if self.pipeline is None
            else self.pipeline.parts[-1 if self.mesh is None else self.mesh].outer
        )

    @property
    def own_structs(self) -> dict[str, jax.ShapeDtypeStruct]:
        """All that lies on this mesh of parameters, by path; without a pipeline `all_parameters`."""
        return self.all_parameters if self.mesh is None or self.pipeline is None else self.pipeline.parts[self.mesh].own

    def places(self, numbers: Iterable[int]) -> tuple[int, ...]:
        """Where in the order of `all_parameters` this mesh's arrays of parameters of these numbers are."""
        return tuple(self._copied.get(number, number) for number in numbers)

    @cached_property
    def _copied(self) -> dict[int, int]:
        """Of parameters that the first mesh has a copy of, where that is."""
        if self.pipeline is None or self.mesh != 0:
            return {}
        numbers = {path: number for number, path in enumerate(self.parameters)}
        copies = [numbers[path.removeprefix(COPY_PREFIX)] for path in self.pipeline.copies]
        return {number: len(numbers) + place for place, number in enumerate(copies)}

    @property
    def pages_per_row(self) -> int:
        """Width P of the page table: pages of the longest sequence."""
        return -(-self.max_model_len // self.page_size)

    @property
    def history_tokens(self) -> int:
        """The tokens of a sequence that are counted at once where it has penalties."""
        return min(self.max_model_len, USUAL_CONTEXT)

    @cached_property
    def kv_pages(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        """The pages of each pool."""
        shape = self.cache, self.num_pages, self.page_size, self.kv_dtype
        return state_structs.pages(*shape, platform=self.platform, layout=self.device_layout)

    @cached_property
    def states(self) -> dict[str, jax.ShapeDtypeStruct]:
        """What layers keep by slot, the sink's among them."""
        return state_structs.states(self.cache, 1 + self.max_num_seqs, layout=self.device_layout)

    @cached_property
    def snapshots(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Copies of it, the sink's among them."""
        if not self.num_snapshots:
            return {}
        return state_structs.states(self.cache, 1 + self.num_snapshots, layout=self.device_layout)

    @property
    def one_snapshot(self) -> dict[str, jax.ShapeDtypeStruct]:
        """One of them beside the others."""
        return state_structs.one_slot(self.cache, layout=self.device_layout)

    @cached_property
    def embeddings(self) -> jax.ShapeDtypeStruct | None:
        """The pool of embeddings; None of a model without."""
        return None if self.media is None else state_structs.embeddings(self.media, layout=self.device_layout)

    @cached_property
    def crossed(self) -> jax.ShapeDtypeStruct | None:
        """What layers read of an encoder; None of a model without."""
        if self.media is None:
            return None
        return state_structs.crossed(self.media, platform=self.platform, layout=self.device_layout)

    @property
    def encoded(self) -> jax.ShapeDtypeStruct | None:
        """What an encoder writes to."""
        return self.embeddings if self.crossed is None else self.crossed

    @property
    def cache_struct(self) -> Cache:
        """What layers keep of sequences: pages, and states by slot, of a pipeline joined; and what they read of an encoder."""
        kept = joined([Cache(view.kv_pages, view.states) for view in self.views])  # type: ignore[arg-type]
        return replace(kept, crossed=self.crossed)  # type: ignore[arg-type]

    @cached_property
    def all_parameters(self) -> dict[str, jax.ShapeDtypeStruct]:
        """The model's parameters, and behind them the draft's own, or a pipeline's copies."""
        own = {} if self.draft is None else self.draft.own
        copies = {} if self.pipeline is None else self.pipeline.copies
        return {**self.parameters, **{DRAFT_PREFIX + path: struct for path, struct in own.items()}, **copies}

    def with_copies(self, values: Mapping[str, Value]) -> dict[str, Value]:
        """What stands for parameters, and for the copies that a pipeline has of some."""
        copies = () if self.pipeline is None else self.pipeline.copies
        of_copies = {path: path.removeprefix(COPY_PREFIX) for path in copies}
        return {**values, **{copy: values[path] for copy, path in of_copies.items() if path in values}}

    @property
    def draft_pools(self) -> tuple[int, ...]:
        """The pools that hold pages of the draft's layers, which are numbered behind the target's."""
        indices = self.cache.indices[len(self.graph.cache) :]
        return tuple(sorted({pool for index in indices for pool in index.pools}))

    @property
    def pools(self) -> bool:
        """Whether steps end in what is pooled of rows, and not in hidden states for sampling."""
        return POOLED in self.graph.heads

    @property
    def layer_by_layer(self) -> bool:
        """Whether the CPU runs the forward pass as one small program for each layer (`forward_programs.py` says why)."""
        return self.platform == "cpu" and self.device_layout.mesh is None

    @cached_property
    def parts(self) -> ModelParts:
        """Which parameters belong to which layer."""
        return model_parts(self.graph, self.parameters)

    def structs(self, numbers: Iterable[int]) -> tuple[jax.ShapeDtypeStruct, ...]:
        """The parameters and arrays of adapters of these numbers (`parts`)."""
        given = (*self.parameters.values(), *self.graph.adapters.values())
        return tuple(given[number] for number in numbers)

    @property
    def replicated(self) -> Sharding | None:
        return self.device_layout.replicated

    @property
    def kept(self) -> int:
        """K: the places of a step whose hidden states are kept, whatever its bucket."""
        return self.sampling.kept

    @cached_property
    def sampling(self) -> SamplingShapes:
        """The ways to sample that there are programs for."""
        return SamplingShapes(
            platform=self.platform,
            num_tokens=self.max_num_seqs * (1 + self.num_drafts),
            num_buckets=len(self.grid),
            has_logits=LOGITS in self.graph.heads,
            adapters=bool(self.parts.scoring),
            by_row=self.layer_by_layer,
        )

    @cached_property
    def slots(self) -> Slots:
        """The state of all sequences, with a slot for each and the sink."""
        return slots_spec(
            self.max_num_seqs + 1,
            self.vocab_size,
            platform=self.platform,
            layout=self.device_layout,
            num_drafts=self.num_drafts,
            proposes=self.draft is not None,
            logit_rows=self.sampling.logit_rows,
        )

    @cached_property
    def empty_state(self) -> EmptyState:
        """What makes the arrays of all state."""
        return EmptyState(
            caches=[view.cache_struct for view in self.views],
            slots=self.slots,
            snapshots=[view.snapshots for view in self.views],
            adapters=tuple(self.graph.adapters.values()),
            embeddings=self.embeddings,
            native=self.native,
            compiler_options=compiler_options(self.platform),
        )

    def layouts(self, bucket: Bucket) -> tuple[StepLayout, ...]:
        """Those that there are programs for: without adapters first, the narrowest first."""
        return self._layouts[bucket]

    @cached_property
    def _layouts(self) -> dict[Bucket, tuple[StepLayout, ...]]:
        usual, longest = USUAL_CONTEXT // self.page_size, self.pages_per_row
        widths = (usual, longest) if 4 * longest > 5 * usual else (longest,)
        return {
            bucket: tuple(
                StepLayout(
                    bucket,
                    width,
                    self.kept,
                    num_groups=self.cache.num_groups,
                    wide=width != widths[0],
                    adapters=adapters,
                    drafts=self.num_drafts > 0,
                    media=None if self.media is None else self.media.of_step,
                )
                for adapters in ((0,) if self.adapters is None else (0, self.adapters.slots))
                for width in widths
            )
            for bucket in self.grid.buckets
        }

    def layout(self, bucket: Bucket, pages: int = 0, *, adapters: bool = False) -> StepLayout:
        """The narrowest for rows of so many pages, and with `adapters` for rows that go through such."""
        return next(
            layout
            for layout in self.layouts(bucket)
            if layout.pages_per_row >= pages and bool(layout.adapters) == adapters
        )

    def replicated_struct(self, shape: Sequence[int], dtype: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(tuple(shape), dtype, sharding=self.replicated)

    def everywhere(self, values: Any) -> Any:
        """Arrays that every device is to have whole, for use while a program is traced."""
        return values if self.device_layout.mesh is None else jax.lax.with_sharding_constraint(values, self.replicated)

    def pinned(self, slots: Slots) -> Slots:
        """Slots in their places, for use while a program is traced."""
        if self.device_layout.mesh is None:
            return slots
        places = jax.tree.map(lambda struct: struct.sharding, self.slots)
        return jax.lax.with_sharding_constraint(slots, places)  # type: ignore[no-any-return]

    def program(
        self,
        name: str,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        *,
        kind: ProgramKind,
        donate: tuple[int, ...] = (),
        weight: float = 0.0,
        facts: Mapping[str, Any],
        nodes: tuple[type, ...] = (),
        places: int | None = None,
    ) -> Program:
        """A program for the platform of this space, on its devices. `facts` as `xla_cache.Program` has them; `places` are the
        token places of a forward pass."""

        def traced(*given: Any) -> Any:
            with calling(self.native):
                return function(*given)

        traced.__name__ = re.sub(r"\W+", "_", name)  # by which traces of a profiler name the program
        return Program(
            name=name,
            kind=kind,
            function=traced,
            arguments=arguments,
            donate=donate,
            weight=weight,
            mesh=self.device_layout.mesh,
            device=self.device_layout.device,
            platform={"gpu": "cuda"}.get(self.platform, self.platform),
            facts=facts if self.mesh is None else {**facts, "layers": str(self.layers)},
            nodes=nodes,
            calls_out=self.native is not None and (kind in CALLING or weight >= HEAVY),
            compiler_options=compiler_options(
                self.platform,
                chip=chip_of(self.platform, self.device_layout),
                places=places,
                samples=kind is ProgramKind.SAMPLE,
            ),
        )
