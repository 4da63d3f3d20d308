"""The one place that names mesh axes.

Parameters and activations name *logical* axes; the table below says which of them are split over the mesh. Column-parallel
projections (`heads`, `kv_heads`, `mlp` out) are followed by row-parallel ones (the same axis in), so a block of the model
costs one all-reduce. The vocabulary is split when it divides by the devices, and whole on each of them when it does not:
padding columns would have to be kept from winning in every later stage.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxengine.errors import ConfigError

DATA, EXPERT, TENSOR = "data", "expert", "tensor"
"""The axes of every mesh, outermost first. Nothing is split over `data` yet."""

MODEL = (EXPERT, TENSOR)
"""All devices that share a layer: what is no expert's is split over both."""

MESH_AXES: dict[str, tuple[str, ...]] = {
    "heads": MODEL,
    "kv_heads": MODEL,
    "kv_channels": MODEL,
    "mlp": MODEL,
    "vocab": MODEL,
    "experts": (EXPERT,),
    "expert_mlp": (TENSOR,),
    "all_experts": (),
    "all_heads": (),
    "whole_vocab": (),
    "embed": (),
    "word_embed": (),
    "head_dim": (),
    "groups": (),
    "states": (),
    "positions": (),
    "tokens": (),
    "split_tokens": MODEL,
    "split_embed": MODEL,
    "inputs": (),
    "layers": (),
    "pages": (),
    "page_tokens": (),
    "latents": (),
    "slots": (),
    "settings": (),
}

MANY_TOKENS = 512
"""From so many on a TPU's devices split the residual stream: below, norms are short and what they send waits for its latency."""
TILE_TOKENS = 16
"""Rows of a tile of 16-bit values."""

LATENT_PAGES = ("pages", "latents", "page_tokens", "latents")
"""The axes of pages of latent vectors, `[layers * pages, 1, T, L]`."""


def model_mesh(devices: Sequence[Any], *, expert_parallel: bool = False) -> Mesh:
    """The mesh over `devices`, in their order, which share each layer: each has a part of every expert, or whole experts."""
    sizes = (1, len(devices), 1) if expert_parallel else (1, 1, len(devices))
    return Mesh(np.asarray(devices).reshape(sizes), (DATA, EXPERT, TENSOR))


def shards(axis: str, mesh: Mesh | None) -> int:
    """Into how many parts a logical axis is split."""
    return 1 if mesh is None else math.prod(mesh.shape[name] for name in MESH_AXES[axis])


def partition(axes: Sequence[str]) -> PartitionSpec:
    """The partition of an array by the names of its axes.

    Raises:
        ValueError: an unknown name, or two axes that fall on the same axis of the mesh.
    """
    unknown = [axis for axis in axes if axis not in MESH_AXES]
    if unknown:
        raise ValueError(f"unknown logical axes {unknown}; known: {', '.join(MESH_AXES)}")
    mapped = [MESH_AXES[axis] for axis in axes]
    for mesh_axis in dict.fromkeys(name for names in mapped for name in names):
        sharers = [axis for axis, names in zip(axes, mapped, strict=True) if mesh_axis in names]
        if len(sharers) > 1:
            raise ValueError(
                f"axes {sharers} would both be split over mesh axis {mesh_axis!r}; name one of them otherwise"
            )
    return PartitionSpec(*(names or None for names in mapped))


def named_sharding(mesh: Mesh, axes: Sequence[str]) -> NamedSharding:
    """Where the parts of an array with these axes live."""
    return NamedSharding(mesh, partition(axes))


def kv_sharding(mesh: Mesh, *, latent: bool = False) -> NamedSharding:
    """Where the pages `[layers * pages, T, 2K, H]` live: whole (key, value) pairs of heads per device; `latent` ones on each."""
    if latent:
        return named_sharding(mesh, LATENT_PAGES)
    return named_sharding(mesh, ("pages", "page_tokens", "kv_channels", "head_dim"))


def constrain(array: jax.Array, axes: Sequence[str], *, mesh: Mesh | None) -> jax.Array:
    """Pin how an activation is split, so that the compiler has nothing to guess."""
    return array if mesh is None else jax.lax.with_sharding_constraint(array, named_sharding(mesh, axes))


def splits_stream(tokens: int, *, platform: str, mesh: Mesh | None) -> bool:
    """Whether devices have parts of the residual stream of so many tokens, and not all of it each.

    Then what a row-parallel projection sums goes to the device of each token, which has only its own tokens' norms and sums to
    compute, and the next projections gather what they read: as many bytes as an all-reduce moves. By the TPU compiler's figures
    2,048 tokens of Llama-3.1-8B on four v5e take 2,190 thousand cycles a layer and not 2,438 (`benchmarks/tpu_steps.py`), which
    leaves out what devices send each other.
    """
    parts = shards("split_tokens", mesh)
    return platform == "tpu" and parts > 1 and tokens >= MANY_TOKENS and tokens % (parts * TILE_TOKENS) == 0


def constrain_stream(x: jax.Array, *, platform: str, mesh: Mesh | None) -> jax.Array:
    """Pin how the residual stream `[N, E]`, or what is added to it, is split."""
    split = splits_stream(x.shape[0], platform=platform, mesh=mesh)
    return constrain(x, ("split_tokens" if split else "tokens", "embed"), mesh=mesh)


def axes_by_output(outputs: int, axes: tuple[str, str], mesh: Mesh | None) -> tuple[str, str]:
    """The axes of a matrix `[out, in]` that is cut by its outputs where `axes` would cut it by its inputs, if they divide."""
    if axes[0] == "embed" and shards(axes[1], mesh) > 1 and outputs % shards("split_embed", mesh) == 0:
        return "split_embed", "inputs"
    return axes


def sum_by_token(
    product: Callable[[jax.Array, jax.Array], jax.Array],
    x: jax.Array,
    weight: jax.Array,
    axis: str,
    *,
    mesh: Mesh | None,
) -> jax.Array:
    """Multiply what each device has of `x [N, axis]` and `weight [E, axis]`, and sum the products `[N, E]` where tokens are."""

    def of_device(x: jax.Array, weight: jax.Array) -> jax.Array:
        return jax.lax.psum_scatter(product(x, weight), MODEL, scatter_dimension=0, tiled=True)

    sums: jax.Array = per_device(
        of_device, mesh=mesh, inputs=(("tokens", axis), ("embed", axis)), outputs=("split_tokens", "embed")
    )(x, weight)
    return sums


def per_device(
    function: Callable[..., Any],
    *,
    mesh: Mesh | None,
    inputs: Sequence[Sequence[str] | None],
    outputs: Sequence[Sequence[str] | None] | Sequence[str],
) -> Callable[..., Any]:
    """Run `function` on each device's own part of its arguments; `None` stands for an argument or result that all have whole.

    `inputs` and `outputs` name the axes of each argument and result (a flat list of names: the one result). Without a mesh
    it is `function` itself.
    """
    if mesh is None:
        return function

    def spec(axes: Sequence[str] | None) -> PartitionSpec:
        return PartitionSpec() if axes is None else partition(axes)

    in_specs = tuple(map(spec, inputs))
    single = all(isinstance(axes, str) for axes in outputs)
    out_specs = partition(outputs) if single else tuple(map(spec, outputs))  # type: ignore[arg-type]
    # Pallas calls carry no replication types, hence no check of them.
    mapped: Callable[..., Any] = jax.shard_map(
        function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
    )
    return mapped


def vocab_axis(size: int, mesh: Mesh | None) -> str:
    """The logical axis of a vocabulary of `size`: split over the mesh where it divides."""
    return "vocab" if size % shards("vocab", mesh) == 0 else "whole_vocab"


def check_divisible(size: int, *, heads: int, kv_heads: int, mlp: int) -> None:
    """Refuse a tensor parallel size that would cut through a head.

    Raises:
        ConfigError: naming the extent that does not divide and the sizes that would do.
    """

    def fits(candidate: int) -> bool:
        whole_kv = kv_heads % candidate == 0 or candidate % kv_heads == 0
        return heads % candidate == 0 and mlp % candidate == 0 and whole_kv

    if not fits(size):
        allowed = [candidate for candidate in range(1, heads + 1) if fits(candidate)]
        raise ConfigError(
            f"tensor_parallel_size={size} does not divide this model: {heads} attention heads, {kv_heads} KV heads and "
            f"{mlp} feed-forward channels must each split evenly (KV heads may be repeated). "
            f"Use one of {', '.join(map(str, allowed))}."
        )


def check_experts(mesh: Mesh | None, *, count: int, inner: int) -> None:
    """Refuse a mesh whose devices cannot share `count` experts of `inner` channels evenly.

    Raises:
        ConfigError: naming what does not divide.
    """
    if count % shards("experts", mesh):
        raise ConfigError(
            f"enable_expert_parallel: {shards('experts', mesh)} devices cannot have the same number of {count} experts; "
            "use a tensor_parallel_size that divides it, or leave the option out"
        )
    if inner % shards("expert_mlp", mesh):
        raise ConfigError(
            f"tensor_parallel_size={shards('expert_mlp', mesh)} does not divide the {inner} channels of an expert; use one "
            "that does, or enable_expert_parallel, which leaves experts whole"
        )
