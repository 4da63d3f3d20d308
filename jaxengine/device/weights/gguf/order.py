"""In what other order than a plain checkpoint's the rows or columns of a GGUF file's tensors lie."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jaxengine.device.weights.rules import Array

Values = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Order:
    """Rows behind the first `start`, or with `columns` those, are `outer * first * second * inner` in the plain checkpoint's
    order turned, of which `first` and `second` change places. One of the sizes may be -1.
    """

    outer: int
    first: int
    second: int
    inner: int
    start: int = 0
    columns: bool = False

    def restore(self, tensor: Array) -> Array:
        """The tensor as the plain checkpoint has it. Columns may be bytes of whole blocks."""
        sizes = (self.outer, self.first, self.second, self.inner)
        if self.columns:
            *before, _ = tensor.shape
            return tensor.reshape(*before, *sizes).swapaxes(-3, -2).reshape(tensor.shape)
        result = tensor if not self.start else tensor.copy()
        moved = tensor[self.start :]
        turned = moved.reshape(*sizes, *moved.shape[1:]).swapaxes(1, 2).reshape(moved.shape)
        if not self.start:
            return turned
        result[self.start :] = turned
        return result


Orders = Mapping[str, Order]
"""By the name of a tensor in the file, without its layer and its last part."""


def plain(config: Values) -> Orders:
    """As the plain checkpoint has them."""
    return {}


def pairs(config: Values) -> Orders:
    """Of each head the channels that turn together side by side, as ggml turns them; transformers' are halves of a head."""
    heads = config["num_attention_heads"]
    counts = {"attn_q": heads, "attn_k": config.get("num_key_value_heads", heads)}
    return {name: Order(outer=count, first=-1, second=2, inner=1) for name, count in counts.items()}


def value_heads(config: Values) -> Orders:
    """Qwen3.5's heads of values: of each head of keys the first one, then the second ones, where transformers has those of one
    head of keys side by side."""
    keys, values = config["linear_num_key_heads"], config["linear_num_value_heads"]
    each = values // keys
    if each == 1:
        return {}
    order = {"outer": 1, "first": each, "second": keys, "inner": -1}
    behind = 2 * keys * config["linear_key_head_dim"]  # queries and keys
    return {
        **dict.fromkeys(("ssm_a", "ssm_dt", "ssm_alpha", "ssm_beta", "attn_gate"), Order(**order)),
        **dict.fromkeys(("attn_qkv", "ssm_conv1d"), Order(**order, start=behind)),
        "ssm_out": Order(**order, columns=True),
    }
