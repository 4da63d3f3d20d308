"""RWKV-7 in NumPy and float64, token by token, by its paper (Peng et al. 2025) with flash-linear-attention's names.

Transformers has no such model. Epsilons are those of flash-linear-attention with `fuse_norm`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def config_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """A config.json as published ones are."""
    return {
        "architectures": ["RWKV7ForCausalLM"],
        "model_type": "rwkv7",
        "attn": None,
        "attn_mode": "chunk",
        "fuse_norm": True,
        "hidden_act": "sqrelu",
        "norm_bias": True,
        "tie_word_embeddings": False,
        "value_dim": [options["hidden_size"]] * options["num_hidden_layers"],
        **options,
    }


def shapes_of(config: Mapping[str, Any]) -> dict[str, list[int]]:
    """Of all tensors of a checkpoint."""
    width, size, inner = config["hidden_size"], config["head_dim"], config["intermediate_size"]
    shapes = {name: [config["vocab_size"], width] for name in ("model.embeddings.weight", "lm_head.weight")}
    shapes |= {f"model.norm.{kind}": [width] for kind in ("weight", "bias")}
    ranks = {"w": "decay_low_rank_dim", "a": "a_low_rank_dim", "g": "gate_low_rank_dim", "v": "v_low_rank_dim"}
    for layer in range(config["num_hidden_layers"]):
        first = layer == 0
        norms = [*(["pre_norm"] if first and config["norm_first"] else []), "attn_norm", "ffn_norm", "attn.g_norm"]
        of_layer = {f"{norm}.{kind}": [width] for norm in norms for kind in ("weight", "bias")}
        of_layer |= {f"attn.x_{name}": [1, 1, width] for name in "rwkvag"}
        of_layer |= {"attn.k_k": [width], "attn.k_a": [width], "attn.r_k": [width // size, size]}
        of_layer |= {f"attn.{name}_proj.weight": [width, width] for name in "rkvo"}
        for name, rank in ranks.items():
            if first and name == "v":
                continue
            of_layer[f"attn.{name}_lora.lora.0.weight"] = [config[rank], width]
            of_layer[f"attn.{name}_lora.lora.2.weight"] = [width, config[rank]]
            if name != "g":
                of_layer[f"attn.{name}_lora.lora.2.bias"] = [width]
        of_layer |= {"ffn.x_k": [width], "ffn.key.weight": [inner, width], "ffn.value.weight": [width, inner]}
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in of_layer.items()}
    return shapes


class Reference:
    """A model with these tensors."""

    def __init__(self, config: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]]) -> None:
        self.config = config
        self.tensors = {name: tensor.astype(np.float64) for name, tensor in tensors.items()}

    def logits(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """`[tokens, V]` of one prompt."""
        x, first_values = self.tensors["model.embeddings.weight"][list(ids)], None
        for layer in range(self.config["num_hidden_layers"]):
            name = f"model.layers.{layer}"
            if layer == 0 and self.config["norm_first"]:
                x = self._norm(x, f"{name}.pre_norm")
            mixed, values = self._mix(self._norm(x, f"{name}.attn_norm"), first_values, f"{name}.attn")
            first_values = values if first_values is None else first_values
            x = x + mixed
            x = x + self._feed(self._norm(x, f"{name}.ffn_norm"), f"{name}.ffn")
        return self._linear(self._norm(x, "model.norm"), "lm_head").astype(np.float32)

    def _mix(self, x: Array, first_values: Array | None, name: str) -> tuple[Array, Array]:
        """The mixer, and its values before those of the first layer come in."""
        get, heads = self.tensors.__getitem__, self.tensors[f"{name}.r_k"].shape
        r, w, k, v, a, g = (self._shifted(x, f"{name}.x_{part}") for part in "rwkvag")
        w = np.exp(-np.exp(-0.5) * _sigmoid(self._low_rank(np.tanh, w, f"{name}.w_lora")))
        a = _sigmoid(self._low_rank(None, a, f"{name}.a_lora"))
        gate = self._low_rank(_sigmoid, g, f"{name}.g_lora")
        r, k = self._linear(r, f"{name}.r_proj"), self._linear(k, f"{name}.k_proj")
        own = values = self._linear(v, f"{name}.v_proj")
        if first_values is not None:
            own = values + (first_values - values) * _sigmoid(self._low_rank(None, v, f"{name}.v_lora"))
        removed = (k * get(f"{name}.k_k")).reshape(-1, *heads)
        removed = removed / np.sqrt((removed**2).sum(-1, keepdims=True) + 1e-6)
        k = k * (1 + (a - 1) * get(f"{name}.k_a"))
        r, w, k, own, a = (part.reshape(-1, *heads) for part in (r, w, k, own, a))

        out, state = np.zeros_like(own), np.zeros((heads[0], heads[1], heads[1]))  # [head, value, key]
        for token in range(len(x)):
            transition = w[token][:, None] * np.eye(heads[1])
            transition = transition - removed[token][:, :, None] * (a[token] * removed[token])[:, None]
            state = state @ transition + own[token][:, :, None] * k[token][:, None]
            out[token] = (state @ r[token][:, :, None])[..., 0]

        out = out - out.mean(-1, keepdims=True)
        out = out / np.sqrt((out**2).mean(-1, keepdims=True) + heads[1] * self.config["norm_eps"])
        out = out.reshape(x.shape) * get(f"{name}.g_norm.weight") + get(f"{name}.g_norm.bias")
        out = out + ((r * k * get(f"{name}.r_k")).sum(-1, keepdims=True) * own).reshape(x.shape)
        return self._linear(out * gate, f"{name}.o_proj"), values

    def _feed(self, x: Array, name: str) -> Array:
        inner = self._linear(self._shifted(x, f"{name}.x_k"), f"{name}.key")
        return self._linear(np.maximum(inner, 0) ** 2, f"{name}.value")

    def _shifted(self, x: Array, name: str) -> Array:
        before = np.concatenate([np.zeros_like(x[:1]), x[:-1]])
        return x + (before - x) * self.tensors[name].reshape(-1)

    def _linear(self, x: Array, name: str) -> Array:
        return x @ self.tensors[f"{name}.weight"].T

    def _low_rank(self, activation: Any, x: Array, name: str) -> Array:
        inner = self._linear(x, f"{name}.lora.0")
        found = self._linear(inner if activation is None else activation(inner), f"{name}.lora.2")
        return found + self.tensors.get(f"{name}.lora.2.bias", 0.0)

    def _norm(self, x: Array, name: str) -> Array:
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x**2).mean(-1, keepdims=True) + self.config["norm_eps"])
        return x * self.tensors[f"{name}.weight"] + self.tensors[f"{name}.bias"]


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))
