"""Small GGUF files: what a plain checkpoint has, written with the `gguf` library and its table of names."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter

Array = np.ndarray
EXPERT = re.compile(r"\.experts\.(\d+)\.")
STACKED = {"gate_proj": "ffn_gate_exps", "up_proj": "ffn_up_exps", "down_proj": "ffn_down_exps"}
STACKED |= {"w1": "ffn_gate_exps", "w3": "ffn_up_exps", "w2": "ffn_down_exps"}


def write(
    path: Path,
    architecture: str,
    config: Mapping[str, Any],
    tensors: Mapping[str, Array],
    *,
    type_of: Callable[[str], str] = lambda name: "F32",
    say: Callable[[GGUFWriter], None] = lambda writer: None,
    interleaved: bool = False,
    norm_offset: float = 0.0,
    kv_heads: Sequence[int] | None = None,
) -> Path:
    """`tensors` are the plain checkpoint's; `type_of` a tensor's name in GGUF is its type. `say` adds to the metadata.

    `kv_heads` are those of each layer where they differ.
    """
    writer = GGUFWriter(path, architecture)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    if config.get("intermediate_size"):
        writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(kv_heads or config["num_key_value_heads"])
    if epsilon := config.get("rms_norm_eps", config.get("norm_eps")):
        writer.add_layer_norm_rms_eps(epsilon)
    else:
        writer.add_layer_norm_eps(config.get("layer_norm_eps", config.get("norm_epsilon")))
    rope = config["rope_parameters"]
    writer.add_rope_freq_base(rope.get("full_attention", rope)["rope_theta"])
    if config.get("head_dim"):
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    say(writer)
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    for name, tensor in _in_gguf(architecture, config["num_hidden_layers"], tensors).items():
        part = next(part for part in reversed(name.split(".")) if part not in ("weight", "bias"))
        kept = tensor
        if interleaved and part in heads:  # as llama.cpp's converter turns them
            halves = kept.reshape(heads[part], 2, -1, *kept.shape[1:])
            kept = halves.swapaxes(1, 2).reshape(kept.shape)
        if "norm" in part and name.endswith(".weight") and part != "ssm_norm":
            kept = kept + np.float32(norm_offset)
        if part == "ffn_gate_inp_shexp":
            kept = kept[0]
        if part in ("conv", "ssm_conv1d") and name.endswith(".weight"):
            kept = kept[:, 0]
        add(writer, name, np.ascontiguousarray(kept), type_of(name))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add(writer: GGUFWriter, name: str, tensor: Array, type_name: str) -> None:
    """A tensor in this type; of K types, which the library only reads, its bytes are random ones."""
    kind = GGMLQuantizationType[type_name]
    if tensor.ndim == 1 or type_name == "F32" or name.endswith(".bias"):
        writer.add_tensor(name, tensor.astype(np.float32))
    elif type_name == "F16":
        writer.add_tensor(name, tensor.astype(np.float16))
    elif type_name.endswith("_K"):
        writer.add_tensor(name, random_blocks(type_name, tensor.shape, seed=len(name)), raw_dtype=kind)
    else:
        writer.add_tensor(name, gguf.quantize(tensor, kind), raw_dtype=kind)


def random_blocks(type_name: str, shape: tuple[int, ...], *, seed: int = 0) -> Array:
    """Bytes `[..., out, bytes]` of blocks whose factors are small numbers; some are zero."""
    inputs, size = gguf.GGML_QUANT_SIZES[GGMLQuantizationType[type_name]]
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (int(np.prod(shape)) // inputs, size), np.uint8)
    if type_name == "MXFP4":  # an exponent
        blocks[:, 0] = rng.integers(110, 130, len(blocks))
        return blocks.reshape(*shape[:-1], -1)
    halves = {"Q6_K": (208,), "Q4_0": (0,), "Q5_0": (0,), "Q8_0": (0,)}.get(type_name, (0, 2))
    for at in halves:
        factors = (
            rng.uniform(0.25, 1.0, len(blocks))
            * rng.choice([-1e-3, 1e-3], len(blocks))
            * (rng.random(len(blocks)) > 0.1)
        )
        blocks[:, at : at + 2] = factors.astype(np.float16).view(np.uint8).reshape(-1, 2)
    return blocks.reshape(*shape[:-1], -1)


def _in_gguf(architecture: str, num_layers: int, tensors: Mapping[str, Array]) -> dict[str, Array]:
    arch = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(arch, num_layers)
    found: dict[str, Array] = {}
    experts: dict[str, dict[int, Array]] = {}
    for name, tensor in tensors.items():
        if match := EXPERT.search(name):
            layer, (part, kind) = re.search(r"layers\.(\d+)\.", name), name.split(".")[-2:]
            assert layer is not None
            experts.setdefault(f"blk.{layer[1]}.{STACKED[part]}.{kind}", {})[int(match[1])] = tensor
            continue
        renamed = name.replace("e_score_correction_bias", "e_score_correction.bias")  # as the converter does
        renamed = renamed.replace("linear_attn.dt_bias", "linear_attn.dt_proj.bias")
        own = names.get_name(renamed, try_suffixes=(".weight", ".bias"))
        assert own is not None, name
        found[own if own.endswith((".weight", ".bias", "ssm_a")) else f"{own}.weight"] = tensor
    return found | {name: np.stack([each[i] for i in range(len(each))]) for name, each in experts.items()}
