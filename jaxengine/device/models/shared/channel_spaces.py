"""What families with layers of Mamba 1 share: what checkpoints call the parameters, and which devices can share a layer."""

from __future__ import annotations

import math
from typing import Any

from jaxengine.device.layers.channel_space import ChannelSpaceShape
from jaxengine.device.layers.sharding import Layout
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.weights.rules import Array, KvHeads, Rule, filters, part, piece
from jaxengine.errors import ConfigError


def channel_space_rules(mixer: str) -> tuple[Rule, ...]:
    """`mixer` is what checkpoints call that of a layer."""
    target, kinds = "layers.*.mixer", ("weight", "bias")
    return (
        *(
            Rule(f"{target}.{name}.{kind}", f"{mixer}.in_proj.{kind}", part(number, 2))
            for number, name in enumerate(("value", "gate"))
            for kind in kinds
        ),
        Rule(f"{target}.convolve.taps", f"{mixer}.conv1d.weight", filters),
        Rule(f"{target}.convolve.bias", f"{mixer}.conv1d.bias"),
        *(
            Rule(f"{target}.{name}.weight", f"{mixer}.x_proj.weight", piece(number, _sizes))
            for number, name in enumerate(("rank", "inward", "outward"))
        ),
        Rule(f"{target}.steps.weight", f"{mixer}.dt_proj.weight"),
        Rule(f"{target}.step_bias", f"{mixer}.dt_proj.bias"),
        Rule(f"{target}.log_rates", f"{mixer}.A_log", _tiled),
        Rule(f"{target}.skip", f"{mixer}.D"),
        *(Rule(f"{target}.output.{kind}", f"{mixer}.out_proj.{kind}") for kind in kinds),
    )


def read_rank(reader: ConfigReader, key: str, width: int) -> int:
    """What steps are projected from: a number, or a sixteenth of the hidden size."""
    return math.ceil(width / 16) if reader.raw(key, "auto") == "auto" else reader.size(key)


def check_channel_space(shape: ChannelSpaceShape, layout: Layout) -> None:
    """Refuse devices that cannot share the channels evenly.

    Raises:
        ConfigError: naming the numbers.
    """
    size = layout.shards("heads")
    if shape.channels % size:
        raise ConfigError(f"tensor_parallel_size={size} does not divide the {shape.channels} channels of state spaces")


def _sizes(config: Any) -> tuple[int, ...]:
    space: ChannelSpaceShape = config.channel_space
    return space.rank, space.state, space.state


def _tiled(rates: Array, config: KvHeads, shape: tuple[int, ...]) -> Array:
    """Of each channel `[channels, S]`, as states lie, `[T, S, L]`."""
    tiles, size, lanes = shape
    return rates.reshape(tiles, lanes, size).swapaxes(1, 2)
