"""A model as a pure function of a flat tuple of arrays.

Passing Flax's own state through `jax.jit` costs a Python callback per leaf and step; a flat tuple costs nothing, and the
module is put together again while a program is traced.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
from flax import nnx
from jax.tree_util import PyTreeDef
from jax.typing import DTypeLike

from jaxengine.device.layers.adapters import AdapterNumbers, AdapterSpec
from jaxengine.device.layers.context import ModelContext
from jaxengine.device.layers.embedding import Embedding
from jaxengine.device.layers.expert_matrices import ExpertMatrices
from jaxengine.device.layers.keeps import Keeps
from jaxengine.device.layers.linear import Matrix
from jaxengine.device.layers.schemes import EMBEDDING, HEAD, WEIGHT
from jaxengine.device.layers.schemes.by_path import PLAIN, TOWER, Schemes
from jaxengine.device.layers.sharding import Layout
from jaxengine.device.models.config.decoder_config import DecoderConfig
from jaxengine.device.models.interface import LOGITS, MediaTraits, Model
from jaxengine.device.models.shared.decoder import Decoder
from jaxengine.device.models.shared.layout import parameter_place
from jaxengine.device.models.shared.seeing import Seeing
from jaxengine.errors import ConfigError

LOOKING, SCORING = "looking", "scoring"
"""What a table calls the slots of adapters that it has for either."""


@dataclass(frozen=True)
class ModelGraph:
    """The structure of a model without its arrays, what each of its layers keeps of a sequence, and its heads.

    `media` says what it sees or hears, None where it does not.
    `adapters` are the arrays of adapters' slots by their paths, in the order in which `merge` takes them behind the parameters;
    empty without such. `experts` tells whether layers have matrices of experts, `[count, in, out]`.
    """

    definition: nnx.GraphDef[Model]
    state: PyTreeDef
    cache: tuple[Keeps, ...]
    heads: tuple[str, ...]
    media: MediaTraits | None = None
    experts: bool = False
    adapter_state: PyTreeDef = field(default_factory=lambda: jax.tree.structure(nnx.State({})))
    adapters: Mapping[str, jax.ShapeDtypeStruct] = field(default_factory=dict)


def abstract_model(
    model_class: type[Model],
    config: DecoderConfig,
    *,
    dtype: DTypeLike,
    layout: Layout,
    platform: str,
    schemes: Schemes = PLAIN,
    kv_dtype: DTypeLike | None = None,
    adapters: AdapterSpec | None = None,
    adapted: Callable[[str, bool], bool] = lambda path, experts: False,
) -> tuple[ModelGraph, dict[str, jax.ShapeDtypeStruct]]:
    """The structure of a model and its parameters, without allocating any.

    Args:
        model_class: what `registry.resolve` returned.
        config: what `registry.read_config` returned.
        dtype: of weights and, without `kv_dtype`, of the KV cache.
        layout: which devices the model is spread over, and how.
        platform: `cpu`, `gpu` or `tpu`: where the programs will run, not where they are compiled.
        schemes: how each matrix is kept.
        kv_dtype: of the KV cache. If it is quantised, its scales are parameters too, `layers.*.attention.k_scale` and `v_scale`,
            or `latent_scale`.
        adapters: the slots of adapters that matrices have; None: there are no adapters.
        adapted: whether the matrix has them whose numbers are the parameter of this path, given whether it is one of experts.

    Returns:
        The graph for `merge`, and every parameter by its dotted path (`Rule.target` of the weight table), in the order in
        which `merge` takes the arrays. With a mesh each has its sharding, and where it matters how it lies in memory.

    Raises:
        ConfigError: the devices cannot share such a model evenly.
    """
    config.check_layout(layout)
    context = ModelContext(
        dtype=jax.numpy.dtype(dtype), kv_dtype=kv_dtype, platform=platform, layout=layout, scheme=None
    )
    model = nnx.eval_shape(lambda: _with_matrices(model_class(config, context), schemes, adapters, adapted))
    split: tuple[Any, ...] = nnx.split(model, AdapterNumbers, ...)
    definition, of_adapters, state = split

    of_tower = layout if config.tower is None else config.tower.shared_by(layout)

    def structs(state: nnx.State[Any, Any], *, placed: bool = True) -> dict[str, jax.ShapeDtypeStruct]:
        found = {}
        for names, variable in nnx.to_flat_state(state):
            path, struct = ".".join(map(str, names)), variable.get_value()
            shared = of_tower if path.startswith(TOWER) else layout
            sharding = shared.sharding(variable.get_metadata()["axes"])
            place = parameter_place(struct.shape, sharding, platform=platform) if placed else sharding
            found[path] = jax.ShapeDtypeStruct(struct.shape, struct.dtype, sharding=place)
        return found

    graph = ModelGraph(
        definition,
        jax.tree.structure(state),
        model.cache,
        tuple(model.heads),
        media=model.media,
        experts=any("experts" in variable.get_metadata()["axes"] for _, variable in nnx.to_flat_state(state)),
        adapter_state=jax.tree.structure(of_adapters),
        adapters=structs(of_adapters, placed=False),  # programs write them, in what order XLA likes
    )
    return graph, structs(state)


def _with_matrices(
    model: Model, schemes: Schemes, adapters: AdapterSpec | None, adapted: Callable[[str, bool], bool]
) -> Model:
    assert isinstance(model, nnx.Module)
    for path, module in list(nnx.iter_modules(model)):
        if isinstance(module, (Matrix, ExpertMatrices)):
            numbers = module.NUMBERS if isinstance(module, Matrix) else WEIGHT
            target = ".".join(map(str, (*path, numbers)))
            module.keep_by(schemes.of(target))
            if isinstance(module, Embedding):
                continue
            if adapters is not None and adapted(target, isinstance(module, ExpertMatrices)):
                module.adapt_by(adapters)
    if adapters is not None and isinstance(model, Decoder):
        if adapted(EMBEDDING, False):
            model.embed.adapt_looking(adapters)
        if adapted(HEAD, False):
            if LOGITS not in model.heads:
                raise ConfigError("lora_target_modules names the head, and a model that pools has none; leave it out")
            model.scores.adapt_scoring(adapters)
    return model


@dataclass(frozen=True)
class TowerParts:
    """As `ModelParts`, of the layers of a tower; those are alike that see windows or not alike, too."""

    outer: tuple[int, ...]
    layers: tuple[tuple[int, ...], ...]
    alike: tuple[int, ...]


@dataclass(frozen=True)
class ModelParts:
    """Which parameters are whose, by their numbers in the order of `abstract_model`.

    `outer` are those that belong to no layer nor to the tower, `layers` those of each layer, which several may share, `alike`
    gives for each layer the first one that has the same structure (sizes, window, scale): a function of one layer's parameters
    serves all that are alike. The arrays of adapters, `adapters` of each layer, `looking` of the embedding and `scoring` of the
    head, are numbered behind all parameters.
    """

    outer: tuple[int, ...]
    layers: tuple[tuple[int, ...], ...]
    alike: tuple[int, ...]
    adapters: tuple[tuple[int, ...], ...]
    tower: TowerParts | None = None
    looking: tuple[int, ...] = ()
    scoring: tuple[int, ...] = ()


def model_parts(graph: ModelGraph, parameters: Mapping[str, jax.ShapeDtypeStruct]) -> ModelParts:
    """Tell a model's layers apart. `parameters` as `abstract_model` returns them."""
    structs = (*parameters.values(), *graph.adapters.values())
    model = merge(graph, structs)
    layers = model.layers
    of_layer: list[list[int]] = [[] for _ in layers]
    adapters: list[list[int]] = [[] for _ in layers]
    outer: list[int] = []
    of_vocabulary: dict[str, list[int]] = {LOOKING: [], SCORING: []}
    for number, path in enumerate((*parameters, *graph.adapters)):
        head, *rest = path.split(".")
        if path.startswith(TOWER):
            continue
        if number < len(parameters):
            (of_layer[int(rest[0])] if head == "layers" else outer).append(number)
        else:
            (adapters[int(rest[0])] if head == "layers" else of_vocabulary[rest[0]]).append(number)
    owners = {id(layer): number for number, layer in reversed(list(enumerate(layers)))}
    of_layer, adapters = (
        [of[owners[id(layer)]] for layer in layers] for of in (of_layer, adapters)
    )  # several may be one
    structures = [
        (nnx.split(layer)[0], *(structs[number] for number in (*numbers, *adapted)))
        for layer, numbers, adapted in zip(layers, of_layer, adapters, strict=True)
    ]
    tower = _tower_parts(model, list(parameters), structs)
    return ModelParts(
        tuple(outer),
        tuple(map(tuple, of_layer)),
        _firsts(structures),
        tuple(map(tuple, adapters)),
        tower,
        looking=tuple(of_vocabulary[LOOKING]),
        scoring=tuple(of_vocabulary[SCORING]),
    )


def _tower_parts(model: Model, paths: Sequence[str], structs: Sequence[jax.ShapeDtypeStruct]) -> TowerParts | None:
    if not isinstance(model, Seeing) or model.tower is None:
        return None
    tower = model.tower
    layers: list[list[int]] = [[] for _ in tower.layers]
    outer: list[int] = []
    for number, path in enumerate(paths):
        if path.startswith(TOWER):
            head, *rest = path.removeprefix(TOWER).split(".")
            (layers[int(rest[0])] if head == "layers" else outer).append(number)
    structures = [
        (nnx.split(layer)[0], tower.sees_windows(number), *(structs[at] for at in layers[number]))
        for number, layer in enumerate(tower.layers)
    ]
    return TowerParts(tuple(outer), tuple(map(tuple, layers)), _firsts(structures))


def _firsts(structures: Sequence[Any]) -> tuple[int, ...]:
    """For each layer the first one of the same structure."""
    first: dict[Any, int] = {}
    return tuple(first.setdefault(structure, layer) for layer, structure in enumerate(structures))


def merge_some(
    graph: ModelGraph,
    parameters: Mapping[str, jax.ShapeDtypeStruct],
    numbers: Sequence[int],
    arrays: Sequence[jax.Array],
) -> Model:
    """The model with `arrays` as the parameters of these numbers. The others have no values, and must not be used."""
    given = dict(zip(numbers, arrays, strict=True))
    all_structs = (*parameters.values(), *graph.adapters.values())
    return merge(graph, [given.get(number, struct) for number, struct in enumerate(all_structs)])


def merge(graph: ModelGraph, arrays: Sequence[Any]) -> Model:
    """The model with `arrays` as its parameters, in the order of `abstract_model`, and behind them those of adapters.

    For use while a program is traced. Without those of adapters nothing may go through one.
    """
    count = graph.state.num_leaves
    adapters = list(arrays[count:]) or list(graph.adapters.values())
    states = (jax.tree.unflatten(graph.adapter_state, adapters), jax.tree.unflatten(graph.state, arrays[:count]))
    model: Model = nnx.merge(graph.definition, *states)
    return model
