"""The programs of an encoder, for each shape of its launches:

    begin  (parameters, patches, step)                     -> (x, shared)
    layer  (parameters, x, shared, step)                   -> x
    keep   (x)                                             -> a copy, of towers that are read at several depths
    end    (parameters, x, tapped, pool, step, targets)    -> pool

One `layer` serves all that are alike, on every platform, so that a start does not take the longer the deeper a tower is. An
accelerator's forward pass is one program (`forward_programs.py`) because there a layer's weights are fetched during the one
before. A tower multiplies thousands of patches with each weight, so that fetching is little beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from buckets import Bucket
from jaxengine.device.layers.sharding import Layout
from jaxengine.device.layers.step import Shared
from jaxengine.device.models.parameters import TowerParts, merge_some
from jaxengine.device.models.shared.seeing import Seeing
from jaxengine.device.models.towers.places import ItemGrid
from jaxengine.device.models.towers.step import TowerStep
from jaxengine.device.models.towers.tower import Tower, TowerConfig
from jaxengine.device.runtime.media_space import MediaSpace
from jaxengine.device.runtime.memory import shard_bytes
from jaxengine.device.runtime.program_kinds import ProgramKind
from jaxengine.device.runtime.space import ProgramSpace
from xla_cache import Program

HEAVY = 1e6
"""As of the forward pass: what holds layers is compiled first."""
GIVEN_NAME, GIVEN_PER_LAUNCH = "write embeddings", 256
"""The program that writes embeddings which prompts give, `(pool, embeddings [256, W], targets [256]) -> pool`."""
Arrays = Sequence[jax.Array]


@dataclass(frozen=True)
class EncoderRoom:
    """The sizes of a launch: `places` N in `rows` B and `windows` W, `embeddings` M of `block` K places each, `weighed` or not;
    `taps` T rows of a table of positions are added to each place."""

    places: int
    rows: int
    windows: int
    embeddings: int
    block: int
    taps: int
    weighed: bool

    @classmethod
    def of(cls, media: MediaSpace, bucket: Bucket) -> EncoderRoom:
        config: TowerConfig = media.traits.config
        least = media.traits.tower.places(config, [ItemGrid(*config.least)])
        return cls(
            places=bucket.tokens + bucket.batch * config.extra_places,
            rows=bucket.batch,
            windows=config.num_windows(bucket.tokens, bucket.batch),
            embeddings=config.num_embeddings(bucket.tokens, bucket.batch),
            block=least.taken.shape[1],
            taps=least.table.shape[1],
            weighed=least.weights is not None,
        )

    def step(self, space: ProgramSpace) -> TowerStep:
        """What a launch is for layers, as structs."""

        def integers(*shape: int) -> Any:
            return space.replicated_struct(shape, jnp.int32)

        return TowerStep(
            offsets=integers(self.rows + 1),
            windows=integers(self.windows + 1),
            positions=integers(self.places, 2),
            table=integers(self.places, self.taps),
            shares=space.replicated_struct((self.places, self.taps), jnp.float32),  # type: ignore[arg-type]
            taken=integers(self.embeddings, self.block),
            weights=space.replicated_struct((self.embeddings, self.block), jnp.float32) if self.weighed else None,  # type: ignore[arg-type]
            used=integers(),
        )


@dataclass(frozen=True)
class EncoderStage:
    """A part of an encoder: what begins, a `layer`, what `keeps` a copy of the stream for the end, or what ends. `parameters` are
    the numbers of those it needs. A layer writes its stream over the one that it is given.
    """

    name: str
    parameters: tuple[int, ...]
    layer: int | None = None
    begins: bool = False
    keeps: bool = False

    def program_name(self, bucket: Bucket) -> str:
        """Of the program that computes it in launches of this shape."""
        return f"encode {bucket} {self.name}"


def encoder_stages(space: ProgramSpace) -> list[EncoderStage]:
    """An encoder, in the order in which it runs. Layers that are alike have one name."""
    parts = tower_parts(space)
    assert space.media is not None
    stages = [EncoderStage("begin", parts.outer, begins=True)]
    for layer, first in enumerate(parts.alike):
        stages.append(EncoderStage(f"layer {first}", parts.layers[layer], layer=layer))
        if layer in space.media.traits.taps:
            stages.append(EncoderStage("keep", (), keeps=True))
    return [*stages, EncoderStage("end", parts.outer)]


def tower_parts(space: ProgramSpace) -> TowerParts:
    """Which parameters are whose."""
    assert space.parts.tower is not None
    return space.parts.tower


def encoder_names(space: ProgramSpace) -> list[str]:
    """The names of `encoder_programs`."""
    if space.media is None:
        return []
    names = [stage.program_name(bucket) for bucket in space.media.buckets for stage in first_stages(space)]
    return [*names, GIVEN_NAME] if space.media.takes_given else names


def encoder_programs(space: ProgramSpace) -> list[Program]:
    """Those of all shapes, and what writes embeddings that are given; none of a model that neither sees nor hears."""
    if space.media is None:
        return []
    programs = [program for bucket in space.media.buckets for program in programs_of(space, bucket)]
    return [*programs, _write_given(space)] if space.media.takes_given else programs


def programs_of(space: ProgramSpace, bucket: Bucket) -> list[Program]:
    """Those of launches of one shape."""
    assert space.media is not None
    return [_program(space, space.media, bucket, stage) for stage in first_stages(space)]


def first_stages(space: ProgramSpace) -> list[EncoderStage]:
    """The first one of each name."""
    firsts: dict[str, EncoderStage] = {}
    for stage in encoder_stages(space):
        firsts.setdefault(stage.name, stage)
    return list(firsts.values())


def stream_bytes(space: ProgramSpace) -> int:
    """What a launch of the largest shape has on a device between its programs."""
    if space.media is None:
        return 0
    bucket = max(space.media.buckets, key=lambda one: one.tokens)
    x, shared = _stream(space, EncoderRoom.of(space.media, bucket))
    return shard_bytes(x) * (1 + len(space.media.traits.taps)) + sum(map(shard_bytes, jax.tree.leaves(shared)))


def _program(space: ProgramSpace, media: MediaSpace, bucket: Bucket, stage: EncoderStage) -> Program:
    room = EncoderRoom.of(media, bucket)
    parameters, step = space.structs(stage.parameters), room.step(space)
    x, shared = _stream(space, room)
    nodes: tuple[type, ...] = ()
    if stage.begins:
        function, given, donate = _begin(space, stage), (parameters, _patches(space, room), step), ()
        nodes = (type(shared),)
    elif stage.keeps:
        function, given, donate = _keep(space), (x,), ()  # type: ignore[assignment]
    elif stage.layer is None:
        tapped = (x,) * len(media.traits.taps)
        targets = space.replicated_struct((room.embeddings,), jnp.int32)
        function, given, donate = _end(space, stage), (parameters, x, tapped, space.encoded, step, targets), (3,)  # type: ignore[assignment]
    else:
        function, given, donate = _layer(space, stage), (parameters, x, shared, step), (1,)  # type: ignore[assignment]
    return space.program(
        stage.program_name(bucket),
        function,
        given,
        kind=ProgramKind.ENCODE,
        donate=donate,
        weight=(stage.layer is not None) * HEAVY + bucket.tokens,
        facts={},
        nodes=nodes,
        places=bucket.tokens,
    )


def _write_given(space: ProgramSpace) -> Program:
    def run(pool: jax.Array, embeddings: jax.Array, targets: jax.Array) -> jax.Array:
        return _pool_placed(space, pool.at[targets].set(embeddings.astype(pool.dtype), mode="drop"))

    pool = space.embeddings
    assert pool is not None
    embeddings = space.replicated_struct((GIVEN_PER_LAUNCH, pool.shape[1]), jnp.float32)
    targets = space.replicated_struct((GIVEN_PER_LAUNCH,), jnp.int32)
    given = (pool, embeddings, targets)
    return space.program(GIVEN_NAME, run, given, kind=ProgramKind.WRITE, donate=(0,), facts={})


def _tower(space: ProgramSpace, stage: EncoderStage, arrays: Arrays) -> Tower:
    model = merge_some(space.graph, space.parameters, stage.parameters, arrays)
    assert isinstance(model, Seeing)
    assert model.tower is not None
    return model.tower


def _begin(space: ProgramSpace, stage: EncoderStage) -> Callable[..., tuple[jax.Array, Shared]]:
    def run(arrays: Arrays, patches: jax.Array, step: TowerStep) -> tuple[jax.Array, Shared]:
        x, shared = _tower(space, stage, arrays).embed_patches(patches, step)
        return _placed(space, x), space.everywhere(shared)

    return run


def _layer(space: ProgramSpace, stage: EncoderStage) -> Callable[..., jax.Array]:
    def run(arrays: Arrays, x: jax.Array, shared: Shared, step: TowerStep) -> jax.Array:
        assert stage.layer is not None
        return _placed(space, _tower(space, stage, arrays).run_layer(stage.layer, x, step.sharing(shared)))

    return run


def _keep(space: ProgramSpace) -> Callable[[jax.Array], jax.Array]:
    return lambda x: _placed(space, jnp.copy(x))


def _pool_placed(space: ProgramSpace, pool: jax.Array) -> jax.Array:
    """What an encoder has written to, where it lies."""
    return space.everywhere(pool) if space.crossed is None else pool  # type: ignore[no-any-return]


def _end(space: ProgramSpace, stage: EncoderStage) -> Callable[..., jax.Array]:
    def run(
        arrays: Arrays, x: jax.Array, tapped: Arrays, pool: jax.Array, step: TowerStep, targets: jax.Array
    ) -> jax.Array:
        return _pool_placed(space, _tower(space, stage, arrays).write(pool, x, tapped, step, targets))

    return run


def _patches(space: ProgramSpace, room: EncoderRoom) -> jax.ShapeDtypeStruct:
    assert space.media is not None
    return space.replicated_struct((room.places, space.media.traits.config.patch_values), jnp.float32)  # type: ignore[arg-type]


def _placed(space: ProgramSpace, x: jax.Array) -> jax.Array:
    """The stream as devices have it between layers."""
    return _layout(space).constrain_stream(x, platform=space.platform)


def _layout(space: ProgramSpace) -> Layout:
    """How devices share the tower."""
    assert space.media is not None
    config: TowerConfig = space.media.traits.config
    return config.shared_by(space.device_layout)


def _stream(space: ProgramSpace, room: EncoderRoom) -> tuple[jax.ShapeDtypeStruct, Any]:
    """The structs of what goes from layer to layer, as it lies."""
    begin = EncoderStage("begin", tower_parts(space).outer, begins=True)
    given = space.structs(begin.parameters), _patches(space, room), room.step(space)
    with nullcontext() if space.device_layout.mesh is None else jax.set_mesh(space.device_layout.mesh):
        x, shared = jax.eval_shape(_begin(space, begin), *given)
    layout = _layout(space)
    axes = layout.stream_axes(x.shape[0], platform=space.platform)
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=layout.sharding(axes)), jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=space.replicated), shared
    )
