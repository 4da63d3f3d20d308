"""How arrays are spread over devices: the one place that names mesh axes.

Parameters and activations name *logical* axes; a `Layout` says which of them are split over which axes of its mesh.
Column-parallel projections (`heads`, `kv_heads`, `mlp` out) are followed by row-parallel ones (the same axis in), so a block of
the model costs one all-reduce. The vocabulary is split when it divides by the devices, and whole on each of them when it does
not: padding columns would have to be kept from winning in every later stage.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from jaxengine.device.layers.collective_matmul import MANY_ROWS, SQUARE, by_distance, multiply_scattered
from jaxengine.device.layers.exchange import gather, scatter_sum
from jaxengine.errors import ConfigError
from pallas_kernels.storage import LANES

DATA, EXPERT, TENSOR = "data", "expert", "tensor"
"""The axes of a mesh, outermost first. Others may stand before them: nothing is split over an axis that no rule names."""

EACH_LAYER = (EXPERT, TENSOR)
"""Devices that share a layer: what is no expert's is split over both."""

WHOLE = {
    *(
        "adapters",
        "all_experts",
        "all_heads",
        "embed",
        "groups",
        "head_dim",
        "inputs",
        "latents",
        "layers",
        "page_tokens",
        "pages",
        "patch",
    ),
    *("positions", "ranks", "settings", "slots", "states", "tokens", "whole_vocab", "word_embed"),
}
"""Logical axes that no layout splits."""

LAYERS_SHARED: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("heads", "kv_heads", "kv_channels", "mlp", "vocab", "split_tokens", "split_embed"), EACH_LAYER),
    "experts": (EXPERT,),
    "expert_mlp": (TENSOR,),
}
"""All devices share each layer: tensor parallelism, with whole experts or a part of each."""

TOKENS_SHARED: Mapping[str, tuple[str, ...]] = {
    **LAYERS_SHARED,
    "vocab": (DATA, EXPERT, TENSOR),
    "experts": (DATA, EXPERT),
    "split_tokens": (DATA,),
}
"""Devices along `data` have all of a layer but experts, of which each has its own: data parallel attention beside expert
parallelism. Each works on its own tokens, and in attention on its own rows; pages are whole on each."""

MANY_TOKENS = 512
"""From so many on a TPU's devices split the residual stream: below, norms are short and what they send waits for its latency."""
TILE_TOKENS = 16
"""Rows of a tile of 16-bit values."""

LATENT_PAGES = ("pages", "latents", "page_tokens", "latents")
"""The axes of pages of latent vectors, `[layers * pages, 1, T, L]`."""


@dataclass(frozen=True)
class Layout:
    """A mesh of devices, None for a single one, and the mesh axes over which each logical axis is split. A value.

    A single one is the first, or `device`: there programs are what they are on the first.
    """

    mesh: Mesh | None = None
    rules: tuple[tuple[str, tuple[str, ...]], ...] = tuple(LAYERS_SHARED.items())
    device: Any = None

    @property
    def hosts(self) -> frozenset[int]:
        """The numbers of the processes that have these devices."""
        return frozenset(device.process_index for device in self.devices or jax.devices()[:1])

    @property
    def parallel(self) -> bool:
        """Whether there are several devices."""
        return self.mesh is not None and self.mesh.size > 1

    @property
    def own_tokens(self) -> bool:
        """Whether devices that have the same of a layer work on different tokens."""
        return self.mesh is not None and self.mesh.shape.get(DATA, 1) > 1

    def across(self, axis: str) -> tuple[str, ...]:
        """The mesh axes over which a logical axis is split.

        Raises:
            ValueError: an unknown name.
        """
        for name, mesh_axes in self.rules:
            if name == axis:
                return mesh_axes if self.mesh is not None else ()
        if axis not in WHOLE:
            known = sorted({*WHOLE, *(name for name, _ in self.rules)})
            raise ValueError(f"unknown logical axis {axis!r}; known: {', '.join(known)}")
        return ()

    def shards(self, axis: str) -> int:
        """Into how many parts a logical axis is split."""
        return 1 if self.mesh is None else math.prod(self.mesh.shape[name] for name in self.across(axis))

    def partition(self, axes: Sequence[str]) -> PartitionSpec:
        """The partition of an array by the names of its axes.

        Raises:
            ValueError: an unknown name, or two axes that fall on the same axis of the mesh.
        """
        mapped = [self.across(axis) for axis in axes]
        for mesh_axis in dict.fromkeys(name for names in mapped for name in names):
            sharers = [axis for axis, names in zip(axes, mapped, strict=True) if mesh_axis in names]
            if len(sharers) > 1:
                raise ValueError(
                    f"axes {sharers} would both be split over mesh axis {mesh_axis!r}; name one of them otherwise"
                )
        return PartitionSpec(*(names or None for names in mapped))

    @property
    def devices(self) -> list[Any] | None:
        """Those of the mesh, or the single one; None is the first."""
        if self.mesh is None:
            return None if self.device is None else [self.device]
        return list(self.mesh.devices.flat)

    @property
    def replicated(self) -> Sharding | None:
        """Of arrays that every device has whole; None is the first device."""
        return self.sharding(())

    def sharding(self, axes: Sequence[str]) -> Sharding | None:
        """Where the parts of an array with these axes live; None is the first device."""
        if self.mesh is None:
            return None if self.device is None else SingleDeviceSharding(self.device)
        return NamedSharding(self.mesh, self.partition(axes))

    def kv_sharding(self, *, latent: bool = False) -> Sharding | None:
        """Where the pages `[layers * pages, T, 2K, H]` live: whole (key, value) pairs of heads; `latent` ones on each device."""
        return self.sharding(LATENT_PAGES if latent else ("pages", "page_tokens", "kv_channels", "head_dim"))

    def without_sharing(self) -> Layout:
        """The same devices, each of which has all of everything."""
        return Layout(self.mesh, tuple((name, ()) for name, _ in self.rules))

    def constrain(self, array: jax.Array, axes: Sequence[str]) -> jax.Array:
        """Pin how an activation is split, so that the compiler has nothing to guess."""
        return array if self.mesh is None else jax.lax.with_sharding_constraint(array, self.sharding(axes))

    def splits_stream(self, tokens: int, *, platform: str) -> bool:
        """Whether devices have parts of the residual stream of so many tokens, and not all of it each.

        Where devices share layers, what a row-parallel projection sums then goes to the device of each token, which has only its
        own tokens' norms and sums to compute, and the next projections gather what they read: as many bytes as an all-reduce
        moves. By the TPU compiler's figures 2,048 tokens of Llama-3.1-8B on four v5e take 2,190 thousand cycles a layer and not
        2,438 (`benchmarks/tpu_steps.py`), which leaves out what devices send each other.
        """
        parts = self.shards("split_tokens")
        if self.own_tokens:
            return tokens % parts == 0
        return platform == "tpu" and parts > 1 and tokens >= MANY_TOKENS and tokens % (parts * TILE_TOKENS) == 0

    def constrain_stream(self, x: jax.Array, axis: str = "embed", *, platform: str) -> jax.Array:
        """Pin how the residual stream `[N, E]`, or what is added to it, is split; or what each token makes of it along `axis`."""
        return self.constrain(x, self.stream_axes(x.shape[0], axis, platform=platform))

    def stream_axes(self, tokens: int, axis: str = "embed", *, platform: str) -> tuple[str, str]:
        """The axes of the residual stream of so many tokens."""
        split = self.splits_stream(tokens, platform=platform) and self.shards(axis) == 1
        return "split_tokens" if split else "tokens", axis

    def gather_stream(self, x: jax.Array, *, platform: str) -> jax.Array:
        """`x [N, ...]` with all tokens on every device, where each has its part of the residual stream."""
        if self.own_tokens or not self.splits_stream(len(x), platform=platform):
            return x
        rest = ("embed",) * (x.ndim - 1)
        gather_all = partial(gather, across=self.across("split_tokens"))
        whole: jax.Array = self.per_device(gather_all, inputs=(("split_tokens", *rest),), outputs=("tokens", *rest))(x)
        return whole

    def square(self, tokens: int, *, platform: str) -> str | None:
        """The mesh axis of the devices whose products of so many tokens hide what they send (`collective_matmul.py`), or None."""
        axes = [axis for axis in self.across("split_tokens") if self.mesh is not None and self.mesh.shape[axis] > 1]
        splits = not self.own_tokens and self.splits_stream(tokens, platform=platform)
        if not splits or self.shards("split_tokens") != SQUARE or len(axes) > 1 or tokens < SQUARE * MANY_ROWS:
            return None
        return axes[0]

    def rows_of_product(self, rows: int, axes: tuple[str, str], *, platform: str) -> tuple[str, str]:
        """The axes of rows that a matrix `[out, in]` with these axes takes and gives, of so many tokens of the residual stream.

        Where that is split a device that has all of the matrix multiplies its own tokens, and what those add up that have a part
        of its inputs goes to the device of each token. Data parallel devices have tokens of their own anyway.
        """
        if self.own_tokens or not self.splits_stream(rows, platform=platform):
            return "tokens", "tokens"
        if self.shards(axes[0]) == self.shards(axes[1]) == 1:
            return "split_tokens", "split_tokens"
        summed = axes[0] == "embed" and self.across(axes[1]) == self.across("split_tokens")
        return "tokens", "split_tokens" if summed else "tokens"

    def axes_by_output(self, outputs: int, axes: tuple[str, str]) -> tuple[str, str]:
        """The axes of a matrix `[out, in]` that is cut by its outputs where `axes` would cut it by its inputs, if they divide."""
        if axes[0] == "embed" and self.shards(axes[1]) > 1 and outputs % self.shards("split_embed") == 0:
            return "split_embed", "inputs"
        return axes

    def sum_by_token(
        self,
        product: Callable[[jax.Array, jax.Array], jax.Array],
        x: jax.Array,
        weight: jax.Array,
        axis: str,
        *,
        platform: str,
    ) -> jax.Array:
        """Multiply what each device has of `x [N, axis]` and `weight [E, axis]`, and sum products `[N, E]` where tokens are."""
        square = self.square(len(x), platform=platform)

        def of_device(x: jax.Array, weight: jax.Array) -> jax.Array:
            if square is not None:
                return multiply_scattered(by_distance(x, square), lambda part: product(part, weight), square)
            return scatter_sum(product(x, weight), self.across(axis), turned=len(weight) % LANES != 0)

        sums: jax.Array = self.per_device(
            of_device, inputs=(("tokens", axis), ("embed", axis)), outputs=("split_tokens", "embed")
        )(x, weight)
        return sums

    def per_device(
        self,
        function: Callable[..., Any],
        *,
        inputs: Sequence[Sequence[str] | None],
        outputs: Sequence[Sequence[str] | None] | Sequence[str],
    ) -> Callable[..., Any]:
        """Run `function` on each device's own part of its arguments; `None` stands for an argument or result that all have whole.

        `inputs` and `outputs` name the axes of each argument and result (a flat list of names: the one result); an argument that
        is a tuple has arrays of these axes. Without a mesh it is `function` itself.
        """
        if self.mesh is None:
            return function

        def spec(axes: Sequence[str] | None) -> PartitionSpec:
            return PartitionSpec() if axes is None else self.partition(axes)

        in_specs = tuple(map(spec, inputs))
        single = all(isinstance(axes, str) for axes in outputs)
        out_specs = self.partition(outputs) if single else tuple(map(spec, outputs))  # type: ignore[arg-type]
        # Pallas calls carry no replication types, hence no check of them.
        mapped: Callable[..., Any] = jax.shard_map(
            function, mesh=self.mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
        )
        return mapped

    def vocab_axis(self, size: int) -> str:
        """The logical axis of a vocabulary of `size`: split over the mesh where it divides."""
        return "vocab" if size % self.shards("vocab") == 0 else "whole_vocab"

    def check_experts(self, *, count: int, inner: int) -> None:
        """Refuse a mesh whose devices cannot share `count` experts of `inner` channels evenly.

        Raises:
            ConfigError: naming what does not divide.
        """
        if count % self.shards("experts"):
            raise ConfigError(
                f"enable_expert_parallel: {self.shards('experts')} devices cannot have the same number of {count} experts; "
                "use a tensor_parallel_size that divides it, or leave the option out"
            )
        if inner % self.shards("expert_mlp"):
            raise ConfigError(
                f"tensor_parallel_size={self.shards('expert_mlp')} does not divide the {inner} channels of an expert; use one "
                "that does, or enable_expert_parallel, which leaves experts whole"
            )


ONE_DEVICE = Layout()


def one_device(device: Any) -> Layout:
    """A single device that need not be the first."""
    return Layout(device=device)


def share_layers(devices: Sequence[Any], *, expert_parallel: bool = False) -> Layout:
    """`devices` share each layer: each has a part of every expert, or whole experts. TPUs do so row by row of their slice."""
    sizes = (1, len(devices), 1) if expert_parallel else (1, 1, len(devices))
    return Layout(_mesh(sorted(devices, key=_place), sizes))


def share_tokens(devices: Sequence[Any], *, data: int) -> Layout:
    """`data` groups of `devices` have a part of the tokens each, the devices of a group a part of its layers; experts are spread
    over all."""
    return Layout(_mesh(devices, (data, len(devices) // data, 1)), tuple(TOKENS_SHARED.items()))


def _mesh(devices: Sequence[Any], sizes: tuple[int, int, int]) -> Mesh:
    return Mesh(np.asarray(devices).reshape(sizes), (DATA, EXPERT, TENSOR))


def _place(device: Any) -> tuple[int, ...]:
    """Where a TPU's chip stands in its slice, and which core it is; of what stands nowhere nothing, so that it stays in order.

    Rows and columns of devices (`exchange.py`) are neighbours then. Those of a host, as a slice lists them, are squares.
    """
    if device.platform != "tpu" or not hasattr(device, "coords"):  # one that is only described stands nowhere
        return ()
    return (*reversed(device.coords), device.core_on_chip)


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
