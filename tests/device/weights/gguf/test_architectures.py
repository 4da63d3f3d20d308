"""A model in GGUF is the plain checkpoint: its family reads the same configuration, and the same tensors under the same names."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxengine.device.layers.schemes.by_path import PLAIN
from jaxengine.device.layers.sharding import ONE_DEVICE
from jaxengine.device.models.config.quantization import read_quantization
from jaxengine.device.models.parameters import abstract_model
from jaxengine.device.models.registry import read_config, resolve
from jaxengine.device.weights.checkpoint import FileCheckpoint, open_checkpoint
from jaxengine.device.weights.gguf.architectures import ARCHITECTURES
from jaxengine.device.weights.gguf.directory import _in_whole_blocks, directory_of
from jaxengine.device.weights.gguf.order import value_heads
from jaxengine.errors import CheckpointError
from tests.device.models.cases import Fixture
from tests.device.models.place import place

gguf_files = pytest.importorskip("tests.device.weights.gguf.gguf_files", reason="the gguf library is not installed")


@dataclass(frozen=True, kw_only=True)
class Case:
    """`config` is what differs from a fixture's, so that a GGUF file can say it; `say` what its converter says besides."""

    fixture: str
    architecture: str
    config: Mapping[str, Any] = field(default_factory=dict)
    say: Callable[[Any], None] = lambda writer: None
    interleaved: bool = False
    norm_offset: float = 0.0
    kv_heads: Sequence[int] | None = None


def _experts(count: int, used: int, inner: int, shared: int = 0) -> Callable[[Any], None]:
    def say(writer: Any) -> None:
        writer.add_expert_count(count)
        writer.add_expert_used_count(used)
        if inner:
            writer.add_expert_feed_forward_length(inner)
        if shared:
            writer.add_expert_shared_feed_forward_length(shared)

    return say


def _gemma2(writer: Any) -> None:
    writer.add_attn_logit_softcapping(4.0)
    writer.add_final_logit_softcapping(6.0)
    writer.add_sliding_window(7)


def _granite(writer: Any) -> None:
    writer.add_embedding_scale(3.0)
    writer.add_attention_scale(0.5)
    writer.add_residual_scale(0.4)
    writer.add_logit_scale(0.4)


def _yarn(writer: Any) -> None:
    writer.add_rope_scaling_type(gguf_files.gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(4.0)
    writer.add_rope_scaling_orig_ctx_len(32)


def _ministral3(writer: Any) -> None:
    _yarn(writer)
    writer.add_rope_scaling_yarn_log_mul(1.0)
    writer.add_attn_temperature_scale(0.4)


def _olmo3(writer: Any) -> None:
    _yarn(writer)
    writer.add_sliding_window(7)


def _cohere2(writer: Any) -> None:
    writer.add_logit_scale(0.5)
    writer.add_sliding_window(7)


def _glm4_moe(writer: Any) -> None:
    _experts(6, 2, 32)(writer)
    writer.add_expert_shared_count(1)
    writer.add_expert_group_count(2)
    writer.add_expert_group_used_count(1)
    writer.add_expert_weights_scale(1.5)
    writer.add_expert_weights_norm(True)
    writer.add_leading_dense_block_count(1)
    writer.add_rope_dimension_count(8)


def _lfm2_moe(writer: Any) -> None:
    _experts(8, 2, 32)(writer)
    writer.add_expert_weights_scale(1.5)
    writer.add_leading_dense_block_count(1)
    writer.add_shortconv_l_cache(3)


def _delta_net(writer: Any, *, taps: int, value_size: int) -> None:
    writer.add_full_attention_interval(2)
    writer.add_ssm_conv_kernel(taps)
    writer.add_ssm_state_size(12)
    writer.add_ssm_group_count(8)
    writer.add_ssm_time_step_rank(16)
    writer.add_ssm_inner_size(16 * value_size)
    writer.add_rope_dimension_count(4)


_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
_LOCAL = {"rope_type": "default", "rope_theta": 1e4}

CASES = {
    "llama": Case(fixture="llama", architecture="llama", interleaved=True),
    "llama, biases, tied": Case(
        fixture="llama-tied-biases-mqa", architecture="llama", interleaved=True, config={"hidden_act": "silu"}
    ),
    "llama, yarn": Case(fixture="llama-yarn", architecture="llama", interleaved=True, say=_yarn),
    "mixtral": Case(fixture="mixtral", architecture="llama", interleaved=True, say=_experts(6, 2, 0)),
    "qwen2": Case(fixture="qwen2", architecture="qwen2"),
    "qwen3": Case(fixture="qwen3", architecture="qwen3"),
    "qwen3 experts": Case(fixture="qwen3-moe", architecture="qwen3moe", say=_experts(8, 2, 32)),
    "gemma": Case(fixture="gemma", architecture="gemma", norm_offset=1.0),
    "gemma2": Case(
        fixture="gemma2", architecture="gemma2", norm_offset=1.0, say=_gemma2, config={"query_pre_attn_scalar": 16}
    ),
    "gemma3": Case(
        fixture="gemma3",
        architecture="gemma3",
        norm_offset=1.0,
        say=lambda writer: writer.add_sliding_window(7),
        config={"query_pre_attn_scalar": 16},
    ),
    "phi3": Case(
        fixture="phi3",
        architecture="phi3",
        say=lambda writer: writer.add_rope_dimension_count(8),
        config={"original_max_position_embeddings": 128},
    ),
    "granite": Case(fixture="granite", architecture="granite", interleaved=True, say=_granite),
    "arcee": Case(fixture="arcee", architecture="arcee", interleaved=True),
    "ernie4_5": Case(fixture="ernie4_5", architecture="ernie4_5"),
    "exaone4": Case(fixture="exaone4", architecture="exaone4", say=lambda writer: writer.add_sliding_window(7)),
    "exaone4 without windows": Case(fixture="exaone4-without-windows", architecture="exaone4"),
    "glm4": Case(fixture="glm4", architecture="glm4", say=lambda writer: writer.add_rope_dimension_count(6)),
    "hunyuan": Case(
        fixture="hunyuan",
        architecture="hunyuan-dense",
        config={"rope_parameters": {"rope_type": "default", "rope_theta": 7.0e5}},  # an alpha is in the base there
    ),
    "olmo2": Case(fixture="olmo2", architecture="olmo2"),
    "seed_oss": Case(fixture="seed-oss", architecture="seed_oss"),
    "smollm3": Case(fixture="smollm3", architecture="smollm3", interleaved=True),
    "qwen3 that sees": Case(fixture="qwen3", architecture="qwen3vl"),
    "mistral3": Case(fixture="ministral3", architecture="mistral3", interleaved=True, say=_ministral3),
    "mistral3 without growth": Case(fixture="llama", architecture="mistral3", interleaved=True),
    "olmo3": Case(
        fixture="olmo3",
        architecture="olmo2",
        say=_olmo3,
        config={"rope_parameters": {"full_attention": {**_YARN, "rope_theta": 1e4}, "sliding_attention": _LOCAL}},
    ),
    "olmoe": Case(fixture="olmoe", architecture="olmoe", say=_experts(6, 2, 0)),
    "starcoder2": Case(
        fixture="starcoder2", architecture="starcoder2", say=lambda writer: writer.add_sliding_window(7)
    ),
    "command-r": Case(
        fixture="cohere-norms",
        architecture="command-r",
        say=lambda writer: writer.add_logit_scale(0.0625),
        config={"tie_word_embeddings": True},
    ),
    "cohere2": Case(fixture="cohere2", architecture="cohere2", say=_cohere2, config={"tie_word_embeddings": True}),
    "glm4 experts": Case(
        fixture="glm4-moe", architecture="glm4moe", say=_glm4_moe, config={"num_nextn_predict_layers": 0}
    ),
    "lfm2": Case(
        fixture="lfm2",
        architecture="lfm2",
        say=lambda writer: writer.add_shortconv_l_cache(3),
        config={"block_auto_adjust_ff_dim": False, "intermediate_size": 72},
        kv_heads=(0, 2, 0, 0, 2),
    ),
    "lfm2 experts": Case(
        fixture="lfm2-moe",
        architecture="lfm2moe",
        say=_lfm2_moe,
        config={"tie_word_embeddings": True},
        kv_heads=(0, 2, 0, 2),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_file_is_the_plain_checkpoint(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXENGINE_CACHE_DIR", str(tmp_path / "kept"))
    case = CASES[name]
    plain = Fixture.load(case.fixture)
    config = {**plain.config, **case.config}
    tied = config.get("tie_word_embeddings")
    tensors = {name: tensor for name, tensor in plain.tensors.items() if not (tied and name == "lm_head.weight")}
    path = gguf_files.write(
        tmp_path / "model.gguf",
        case.architecture,
        config,
        tensors,
        say=case.say,
        interleaved=case.interleaved,
        norm_offset=case.norm_offset,
        kv_heads=case.kv_heads,
    )
    directory = directory_of(path)
    written = json.loads((directory / "config.json").read_text())
    model_class = resolve(config)
    assert resolve(written) is model_class
    assert read_config(model_class, written) == read_config(model_class, config)
    checkpoint = open_checkpoint(directory)
    assert isinstance(checkpoint, FileCheckpoint)
    assert checkpoint.tensors.keys() == tensors.keys()
    for tensor, expected in tensors.items():
        found = checkpoint.view(tensor)
        if case.norm_offset and "norm" in tensor:  # to which 1 was added, rounded
            np.testing.assert_allclose(found, expected, atol=2**-23)
        else:
            np.testing.assert_array_equal(found, expected)


def _as_qwen35(tensors: Mapping[str, np.ndarray], *, value_size: int) -> dict[str, np.ndarray]:
    """What llama.cpp's converter makes of Qwen3.5's layers: value heads by their number within a head of keys first."""
    by_head = np.arange(16).reshape(8, 2).T.reshape(-1)
    rows = (by_head[:, None] * value_size + np.arange(value_size)).reshape(-1)
    found = dict(tensors)
    for name, tensor in tensors.items():
        part = name.removesuffix(".weight").rpartition(".")[2] if "linear_attn" in name else ""
        if part in ("A_log", "dt_bias", "in_proj_a", "in_proj_b"):
            found[name] = (-np.exp(tensor) if part == "A_log" else tensor)[by_head]
        elif part == "in_proj_z":
            found[name] = tensor[rows]
        elif part in ("in_proj_qkv", "conv1d"):
            found[name] = np.concatenate([tensor[:192], tensor[192:][rows]])
        elif part == "out_proj":
            found[name] = tensor[:, rows]
    return found


@pytest.mark.parametrize(
    ("fixture", "architecture", "taps", "value_size"),
    [("qwen3_5", "qwen35", 3, 12), ("qwen3_5-moe", "qwen35moe", 4, 8)],
)
def test_heads_of_values_are_put_beside_their_keys(
    fixture: str, architecture: str, taps: int, value_size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAXENGINE_CACHE_DIR", str(tmp_path / "kept"))
    plain = Fixture.load(fixture)

    def say(writer: Any) -> None:
        _delta_net(writer, taps=taps, value_size=value_size)
        if architecture == "qwen35moe":
            _experts(8, 2, 40, shared=48)(writer)

    tensors = _as_qwen35(plain.tensors, value_size=value_size)
    path = gguf_files.write(tmp_path / "model.gguf", architecture, plain.config, tensors, say=say, norm_offset=1.0)
    directory = directory_of(path)
    model_class = resolve(plain.config)
    written = json.loads((directory / "config.json").read_text())
    assert read_config(model_class, written) == read_config(model_class, plain.config)
    checkpoint = open_checkpoint(directory)
    assert isinstance(checkpoint, FileCheckpoint)
    assert checkpoint.tensors.keys() == plain.tensors.keys()
    for name, expected in plain.tensors.items():
        np.testing.assert_allclose(checkpoint.view(name), expected, atol=2**-22 if "norm" in name else 0, rtol=1e-6)


@pytest.mark.parametrize(("type_name", "kept"), [("Q8_0", True), ("Q4_K", False)])
def test_columns_that_blocks_do_not_divide_are_read_as_numbers(type_name: str, kept: bool) -> None:
    """Heads of 64 values: two blocks of 32 each, or a quarter of a block of 256."""
    order = value_heads({"linear_num_key_heads": 4, "linear_num_value_heads": 8, "linear_key_head_dim": 64})["ssm_out"]
    assert _in_whole_blocks(type_name, order, 512) is kept
    if kept:
        blocks = gguf_files.random_blocks(type_name, (3, 512))
        kind = gguf_files.GGMLQuantizationType[type_name]
        numbers = gguf_files.gguf.dequantize(blocks, kind).reshape(3, 2, 4, 64)
        restored = gguf_files.gguf.dequantize(order.restore(blocks), kind)
        np.testing.assert_array_equal(restored.reshape(3, 4, 2, 64), numbers.swapaxes(1, 2))


def test_experts_shared_by_all_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXENGINE_CACHE_DIR", str(tmp_path / "kept"))
    plain = Fixture.load("qwen2-moe-some-layers")
    tensors = {name: tensor for name, tensor in plain.tensors.items() if "layers.0." in name or "layers" not in name}
    config = {**plain.config, "num_hidden_layers": 1, "mlp_only_layers": [], "layer_types": ["full_attention"]}
    path = gguf_files.write(
        tmp_path / "model.gguf", "qwen2moe", config, tensors, say=_experts(8, 2, inner=32, shared=48)
    )
    directory = directory_of(path)
    written = json.loads((directory / "config.json").read_text())
    model_class = resolve(config)
    assert read_config(model_class, written) == read_config(model_class, config)
    checkpoint = open_checkpoint(directory)
    assert isinstance(checkpoint, FileCheckpoint)
    assert checkpoint.tensors.keys() == tensors.keys()
    for tensor, expected in tensors.items():
        np.testing.assert_array_equal(checkpoint.view(tensor), expected)


def _apart(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """gpt-oss' experts one by one, each with its gate and what that lets through by themselves."""
    found = {name: tensor for name, tensor in tensors.items() if ".experts." not in name}
    for name, tensor in tensors.items():
        stem, _, own = name.rpartition(".experts.")
        kind = "bias" if own.endswith("_bias") else "weight"
        parts = {"gate": np.s_[..., ::2], "up": np.s_[..., 1::2]} if own.startswith("gate_up") else {"down": np.s_[...]}
        for expert in range(len(tensor) if stem else 0):
            found |= {
                f"{stem}.experts.{expert}.{part}_proj.{kind}": np.ascontiguousarray(tensor[expert][of].T)
                for part, of in parts.items()
            }
    return found


def _gpt_oss(writer: Any) -> None:
    _yarn(writer)
    writer.add_sliding_window(7)
    _experts(6, 2, 96)(writer)


def test_gpt_oss_experts_are_the_same_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gates and what they let through lie in turn in transformers' tensors."""
    monkeypatch.setenv("JAXENGINE_CACHE_DIR", str(tmp_path / "kept"))
    plain = Fixture.load("gpt-oss")
    config, tensors = {**plain.config, "swiglu_limit": 7.0}, _apart(plain.tensors)
    path = gguf_files.write(tmp_path / "model.gguf", "gpt-oss", config, tensors, say=_gpt_oss)
    directory = directory_of(path)
    written = json.loads((directory / "config.json").read_text())
    model_class = resolve(config)
    read = read_config(model_class, config)
    assert read_config(model_class, written) == read
    checkpoint = open_checkpoint(directory)
    assert isinstance(checkpoint, FileCheckpoint)
    found = {name: checkpoint.view(name) for name in checkpoint.tensors}
    assert found.keys() == tensors.keys()
    _, structs = abstract_model(model_class, read, dtype=np.float32, layout=ONE_DEVICE, platform="cpu")
    for apart, together in zip(
        *(place(model_class, read, of, structs, PLAIN) for of in (found, plain.tensors)), strict=True
    ):
        np.testing.assert_array_equal(apart, together)


def test_gpt_oss_experts_stay_as_they_are_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXENGINE_CACHE_DIR", str(tmp_path / "kept"))
    plain = Fixture.load("gpt-oss")
    path = gguf_files.write(
        tmp_path / "model.gguf",
        "gpt-oss",
        plain.config,
        _apart(plain.tensors),
        say=_gpt_oss,
        type_of=lambda name: "MXFP4" if "_exps.weight" in name else "F32",
    )
    config = json.loads((directory_of(path) / "config.json").read_text())
    formats = read_quantization(config)
    assert formats is not None
    found = formats.of("model.layers.0.mlp.experts.3.gate_proj")
    assert found is not None
    assert (found.numbers.dtype, found.numbers.group) == ("float4_e2m1fn", 32)


def _llama_with_factors(path: Path, factors: np.ndarray) -> Path:
    plain = Fixture.load("llama")
    config = {**plain.config, "rope_parameters": {"rope_theta": 500000.0}}
    return gguf_files.write(
        path,
        "llama",
        config,
        plain.tensors,
        interleaved=True,
        say=lambda writer: writer.add_tensor("rope_freqs.weight", factors.astype(np.float32)),
    )


def test_llama3_scaling_is_found_in_its_factors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXENGINE_CACHE_DIR", str(tmp_path / "kept"))
    lengths = 2 * np.pi * 500000.0 ** (np.arange(4) / 4)
    smooth = (8192 / lengths - 1.0) / (4.0 - 1.0)
    factors = np.where(lengths < 2048, 1.0, np.where(lengths > 8192, 32.0, 1 / ((1 - smooth) / 32.0 + smooth)))
    directory = directory_of(_llama_with_factors(tmp_path / "model.gguf", factors))
    scaling = json.loads((directory / "config.json").read_text())["rope_scaling"]
    assert scaling == {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    with pytest.raises(CheckpointError, match="are not Llama 3"):
        directory_of(_llama_with_factors(tmp_path / "other.gguf", factors**0.9))


def test_an_architecture_that_is_not_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXENGINE_CACHE_DIR", str(tmp_path / "kept"))
    plain = Fixture.load("llama")
    path = gguf_files.write(tmp_path / "model.gguf", "mpt", plain.config, {})
    with pytest.raises(CheckpointError, match="token_embd"):
        directory_of(path)
    tensors = {"model.embed_tokens.weight": plain.tensors["model.embed_tokens.weight"]}
    path = gguf_files.write(tmp_path / "other.gguf", "mamba", plain.config, tensors)
    with pytest.raises(CheckpointError, match=f"'mamba' are not read; those of {', '.join(ARCHITECTURES)}, qwen2vl"):
        directory_of(path)
