"""An architecture of GGUF files in transformers' terms: how its configuration and its tensors' names are read."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from jaxengine.device.weights.gguf import order, settings
from jaxengine.device.weights.gguf.order import Orders
from jaxengine.device.weights.gguf.settings import Metadata, Values
from jaxengine.errors import CheckpointError

OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
"""Tensors of no layer, of most."""


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """`names` are tensors' names: those of a layer without `blk.N.`, which stand for `model.layers.N.`.

    `settings` completes the configuration, of which `unsaid` keys are none of the family's. `orders` are those of its
    configuration in which tensors lie. `norm_offset` was added to the weights of norms, but for those of `plain_norms`. `outer`
    are tensors of no layer.
    """

    model_class: str
    names: Mapping[str, str]
    settings: Callable[[Metadata], Values] = lambda metadata: {}
    unsaid: tuple[str, ...] = ()
    orders: Callable[[Values], Orders] = order.plain
    norm_offset: float = 0.0
    plain_norms: tuple[str, ...] = ()
    outer: Mapping[str, str] = field(default_factory=lambda: OUTER)

    def config(self, metadata: Metadata) -> Values:
        """config.json.

        Raises:
            CheckpointError: the file does not say what it has to, or says what is not built.
        """
        known = {key: metadata.values[name] for key, name in COMMON.items() if name in metadata.values}
        values = {"architectures": [self.model_class], "vocab_size": metadata.num_tokens, **known}
        values["tie_word_embeddings"] = "output.weight" not in metadata.tensors
        values["num_hidden_layers"] -= metadata.values.get("nextn_predict_layers", 0)  # which predict several tokens
        values |= {**settings.rope_scaling(metadata), **self.settings(metadata)}
        if isinstance(values.get("num_key_value_heads"), list):
            raise CheckpointError(
                "layers of this GGUF file have different numbers of KV heads, which is not built; use the plain checkpoint"
            )
        return {key: value for key, value in values.items() if key not in self.unsaid}

    def plain_name(self, name: TensorName) -> str | None:
        """A tensor's name in transformers' checkpoint, with `{expert}` for the experts that it has along its first axis."""
        found = (self.outer if name.layer is None else self.names).get(name.stem)
        if found is None:
            return None
        within = "" if name.layer is None else f"model.layers.{name.layer}."
        return f"{within}{found}" if name.stem in BARE else f"{within}{found}.{name.last}"

    def is_offset(self, name: TensorName) -> bool:
        """Whether something was added to the weights."""
        return "norm" in name.stem and name.last == "weight" and name.stem not in self.plain_norms


class TensorName(NamedTuple):
    """A tensor's name in the file, `blk.LAYER.STEM.LAST` or `STEM.LAST`, or without the last part."""

    layer: int | None
    stem: str
    last: str

    @classmethod
    def of(cls, name: str) -> TensorName:
        found = re.fullmatch(r"(?:blk\.(\d+)\.)?(.+?)(?:\.(weight|bias))?", name)
        assert found is not None
        return cls(None if found[1] is None else int(found[1]), found[2], found[3] or "")

    def whole(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The plain checkpoint's shape: with the axis of one that the file leaves out."""
        if self.stem == "ffn_gate_inp_shexp":
            return (1, shape[-1])
        return (shape[0], 1, shape[-1]) if self.stem in FILTERS and self.last == "weight" else shape


COMMON = {
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "max_position_embeddings": "context_length",
    "rope_theta": "rope.freq_base",
}
"""Keys of config.json, and what they are called behind the architecture's name."""
UNREAD = ("rope_freqs", "rope_factors_long", "rope_factors_short")
"""Tensors that are part of the configuration."""

BARE = ("attn_sinks", "exp_probs_b", "ssm_a", "ssm_dt")
"""Tensors of layers whose names in transformers have no last part."""
FILTERS = ("shortconv.conv", "ssm_conv1d")
"""Filters of channels, `[channels, taps]` in the file."""
LOGARITHMS = ("ssm_a",)
"""Tensors that transformers has the logarithms of, without a sign."""
