"""EXAONE 4: norms behind each part and of every head; beside layers with a window those that see everything have no positions."""

from __future__ import annotations

from dataclasses import replace

from jaxengine.device.layers.block import Norms
from jaxengine.device.layers.self_attention import AttentionShape
from jaxengine.device.models.config.hf import ConfigReader
from jaxengine.device.models.config.rotary_config import RotaryDecoderConfig, read_layer_types, read_shared
from jaxengine.device.models.shared.rotary_decoder import POST_NORM_WEIGHTS, QK_NORMS, RotaryDecoder
from jaxengine.errors import ConfigError

WINDOW, PERIOD = 4096, 4
"""Hugging Face's defaults: positions that a token sees, and of so many layers the last sees everything."""


class Exaone4ForCausalLM(RotaryDecoder):
    """A `Model`."""

    WEIGHTS = (
        *POST_NORM_WEIGHTS,
        *QK_NORMS,
    )
    NORMS = Norms.POST

    @classmethod
    def read_config(cls, reader: ConfigReader) -> RotaryDecoderConfig:
        shared = read_shared(reader, kv_heads=32, head_dim=None, epsilon=1e-5)
        return RotaryDecoderConfig(
            **shared,
            windows=_read_windows(reader, shared["num_layers"]),
            qk_norm=True,
        )

    def attention_shape(self, layer: int) -> AttentionShape:
        shape = super().attention_shape(layer)
        among_windows = any(window is not None for window in self.config.windows)
        return replace(shape, rope=None) if shape.window is None and among_windows else shape


def _read_windows(reader: ConfigReader, num_layers: int) -> tuple[int | None, ...]:
    """By `layer_types`, or by `sliding_window_pattern`: a period, or its layers' letters, `L` for a window."""
    window = reader.nullable_size("sliding_window", WINDOW)
    types = read_layer_types(reader, num_layers)
    if window is None:
        reader.raw("sliding_window_pattern")  # transformers writes 0
        return (None,) * num_layers
    pattern = _read_pattern(reader)
    if types is not None:
        local = [kind == "sliding_attention" for kind in types]
    else:
        local = [pattern[layer % len(pattern)] == "L" for layer in range(num_layers)]
    return tuple(window if sees_window else None for sees_window in local)


def _read_pattern(reader: ConfigReader) -> str:
    """The letters of the layers of a period.

    Raises:
        ConfigError: other letters, or no period.
    """
    pattern = reader.raw("sliding_window_pattern")
    if not isinstance(pattern, str):
        period = reader.nullable_size("sliding_window_pattern", None) or PERIOD
        return "L" * (period - 1) + "G"
    if not pattern or set(pattern) - set("LG"):
        raise ConfigError(
            f"config.json: sliding_window_pattern must be a number of layers, or letters for those of a period, L (a window) and "
            f"G (none), got {pattern!r}"
        )
    return pattern
