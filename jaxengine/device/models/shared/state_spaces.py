"""What families with layers of Mamba 2 share: where a fused tensor of such a layer is cut, and which devices can share it."""

from __future__ import annotations

from typing import Any

from jaxengine.device.layers.activation import ACTIVATIONS
from jaxengine.device.layers.sharding import Layout
from jaxengine.device.layers.state_space import StateSpaceShape
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.weights.rules import Rule, chain, filters, piece
from jaxengine.errors import ConfigError

INITIAL_STEPS = dict.fromkeys(
    ("time_step_min", "time_step_max", "time_step_floor", "time_step_rank"), Ignored("how training began")
)
PARTS = ("gate", "value", "inward", "outward", "steps")
JAMBA_NAMES = {
    ".mlp.": ".feed_forward.",
    "post_attention_layernorm": "pre_ff_layernorm",
    "[model.]norm.": "[model.]final_layernorm.",
}
"""What Llama's checkpoints call some modules, and Jamba's and those of hybrids after it."""
INFINITE = float("inf")
INFINITIES = (INFINITE, "inf", "Infinity", {"__float__": "Infinity"})
"""As Python's own JSON, some files, and transformers 5 have it."""


def state_space_rules(mixer: str) -> tuple[Rule, ...]:
    """`mixer` is what checkpoints call that of a layer."""
    target = "layers.*.mixer"
    return (
        *(
            Rule(f"{target}.{part}.{kind}", f"{mixer}.in_proj.{kind}", piece(number, _sizes))
            for number, part in enumerate(PARTS)
            for kind in ("weight", "bias")
        ),
        *(
            rule
            for number, part in enumerate(PARTS[1:4])
            for cut in (piece(number, _convolved_sizes),)
            for rule in (
                Rule(f"{target}.convolve_{part}.taps", f"{mixer}.conv1d.weight", chain(cut, filters)),
                Rule(f"{target}.convolve_{part}.bias", f"{mixer}.conv1d.bias", cut),
            )
        ),
        Rule(f"{target}.step_bias", f"{mixer}.dt_bias"),
        Rule(f"{target}.log_rates", f"{mixer}.A_log"),
        Rule(f"{target}.skip", f"{mixer}.D"),
        Rule(f"{target}.norm", f"{mixer}.norm.weight"),
        Rule(f"{target}.output.weight", f"{mixer}.out_proj.weight"),
        Rule(f"{target}.output.bias", f"{mixer}.out_proj.bias"),
    )


def read_step_limits(given: Any) -> tuple[float, float]:
    """`time_step_limit`, two numbers; None is no limit. JSON has no infinity, which is written in one of several ways.

    Raises:
        ConfigError: something else.
    """
    limits = [INFINITE if limit in INFINITIES else limit for limit in given] if isinstance(given, list) else given
    if limits is None:
        return (0.0, INFINITE)
    match limits:
        case [int() | float() as least, int() | float() as most] if 0 <= least <= most:
            return float(least), float(most)
    raise ConfigError(f"config.json: time_step_limit must be two numbers of at least 0, in order, got {given!r}")


def check_state_space(shape: StateSpaceShape, layout: Layout) -> None:
    """Refuse devices that cannot share the heads evenly, or that would have heads of several parts of groups.

    Raises:
        ConfigError: naming the numbers.
    """
    size = layout.shards("heads")
    if shape.heads % size or (shape.groups % size and size % shape.groups):
        raise ConfigError(
            f"tensor_parallel_size={size} does not divide this model's state spaces: {shape.heads} heads must split evenly, "
            f"and {shape.groups} groups too, or be split evenly by the devices"
        )


def check_heads(shape: StateSpaceShape) -> None:
    """Refuse heads that cannot share the groups evenly.

    Raises:
        ConfigError: naming both numbers.
    """
    if shape.heads % shape.groups:
        raise ConfigError(
            f"config.json: {shape.heads} heads of a state space cannot share {shape.groups} groups evenly"
        )


def read_state_space(
    reader: ConfigReader, width: int, *, epsilon: float, heads: str, head_dim: str, state: str, activation: str
) -> StateSpaceShape:
    """Of Mamba 2 and Nemotron-H, who name some keys otherwise.

    Raises:
        ConfigError: as `check_heads`, or a value cannot be read.
    """
    bias = reader.optional("use_bias", False, bool)
    shape = StateSpaceShape(
        width=width,
        heads=reader.optional_size(heads, 128),
        head_dim=reader.optional_size(head_dim, 64),
        groups=reader.optional_size("n_groups", 8),
        state=reader.optional_size(state, 128),
        taps=reader.optional_size("conv_kernel", 4),
        bias=bias,
        output_bias=bias,
        convolution_bias=reader.optional("use_conv_bias", True, bool),
        activation=reader.choice(activation, "silu", ACTIVATIONS),
        step_limits=read_step_limits(reader.raw("time_step_limit")),
        norm_epsilon=epsilon,
    )
    check_heads(shape)
    return shape


def read_mamba_keys(
    reader: ConfigReader, width: int, *, epsilon: float | None, activation: str, channels: int | None = None
) -> StateSpaceShape:
    """Of families whose keys begin with `mamba_`. `channels` are those of all heads; None: as `mamba_expand` says.

    Raises:
        ConfigError: as `check_heads`, or heads that do not have so many channels.
    """
    heads, expanded = reader.optional_size("mamba_n_heads", 128), reader.optional_size("mamba_expand", 2) * width
    channels = channels or expanded
    given = reader.raw("mamba_d_head", "auto")
    size = channels // heads if given == "auto" else given
    if not isinstance(size, int) or size * heads != channels:
        said = "mamba_expand times hidden_size" if channels == expanded else "mamba_d_ssm"
        raise ConfigError(
            f"config.json: mamba_n_heads={heads} of mamba_d_head={given!r} are not the {channels} channels of {said}"
        )
    bias = reader.optional("mamba_proj_bias", False, bool)
    shape = StateSpaceShape(
        width=width,
        heads=heads,
        head_dim=size,
        groups=reader.optional_size("mamba_n_groups", 1),
        state=reader.optional_size("mamba_d_state", 256),
        taps=reader.optional_size("mamba_d_conv", 4),
        bias=bias,
        output_bias=bias,
        convolution_bias=reader.optional("mamba_conv_bias", True, bool),
        activation=activation,
        step_limits=read_step_limits(reader.raw("time_step_limit")),
        norm_epsilon=epsilon,
    )
    check_heads(shape)
    return shape


def _sizes(config: Any) -> tuple[int, ...]:
    """Rows of each of the parts."""
    space: StateSpaceShape = config.state_space
    shared = space.groups * space.state
    return space.channels, space.channels, shared, shared, space.heads


def _convolved_sizes(config: Any) -> tuple[int, ...]:
    return _sizes(config)[1:4]
