"""A model in GGUF from end to end: its matrices as they are stored, beside a plain checkpoint of what they stand for."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from jaxengine.device.weights.gguf.directory import directory_of
from jaxengine.device.weights.gguf.file import open_gguf
from tests.device.models.cases import random_tensors
from tests.integration.engines import greedy, run, start, token_ids
from tests.integration.quantised import prompt_scores
from tests.quick import slow_but

gguf_files = pytest.importorskip("tests.device.weights.gguf.gguf_files", reason="the gguf library is not installed")

pytestmark = pytest.mark.usefixtures("quick_engines")

CONFIG = {
    "vocab_size": 256,
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 128,
    "rope_parameters": {"rope_theta": 10000.0},
}
ATTENTION = {"q": (256, 256), "k": (128, 256), "v": (128, 256), "o": (256, 256)}


def _shapes(mlp: Callable[[str], dict[str, tuple[int, ...]]]) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (256, 256), "model.norm.weight": (256,)}
    shapes["lm_head.weight"] = (256, 256)
    for layer in ("model.layers.0", "model.layers.1"):
        shapes |= {f"{layer}.self_attn.{part}_proj.weight": shape for part, shape in ATTENTION.items()}
        shapes |= {f"{layer}.{norm}_layernorm.weight": (256,) for norm in ("input", "post_attention")}
        shapes |= mlp(layer)
    return shapes


def _dense(layer: str) -> dict[str, tuple[int, ...]]:
    return {f"{layer}.mlp.{part}_proj.weight": (256, 256) for part in ("gate", "up", "down")}


def _experts(layer: str) -> dict[str, tuple[int, ...]]:
    norms = {f"{layer}.self_attn.{part}_norm.weight": (64,) for part in ("q", "k")}
    parts = [(expert, part) for expert in range(4) for part in ("gate", "up", "down")]
    experts = {f"{layer}.mlp.experts.{expert}.{part}_proj.weight": (256, 256) for expert, part in parts}
    return {f"{layer}.mlp.gate.weight": (4, 256), **norms, **experts}


def _gpt_oss(layer: str) -> dict[str, tuple[int, ...]]:
    biases = {f"{layer}.self_attn.{part}_proj.bias": shape[:1] for part, shape in ATTENTION.items()}
    experts = {name: shape for name, shape in _experts(layer).items() if ".experts." in name}
    experts |= {name.replace(".weight", ".bias"): shape[:1] for name, shape in experts.items()}
    router = {f"{layer}.mlp.router.weight": (4, 256), f"{layer}.mlp.router.bias": (4,)}
    return {f"{layer}.self_attn.sinks": (4,), **biases, **router, **experts}


def _say_gpt_oss(writer) -> None:
    _say_experts(writer)
    writer.add_sliding_window(20)


def _say_experts(writer) -> None:
    writer.add_expert_count(4)
    writer.add_expert_used_count(2)
    writer.add_expert_feed_forward_length(256)


CLASSIC = {"attn_q": "Q4_0", "attn_k": "Q5_1", "attn_v": "Q5_0", "ffn_up": "Q4_1", "ffn_gate": "F16", "ffn_norm": "F32"}
MXFP4 = {f"ffn_{part}_exps": "MXFP4" for part in ("gate", "up", "down")} | {"ffn_gate_inp": "F32"}
K_TYPES = {"attn_v": "Q6_K", "ffn_down": "Q5_K", "output": "Q6_K", "token_embd": "Q6_K", "ffn_gate_inp": "F32"}
MODELS = {
    "llama classic": ("llama", _dense, CLASSIC, "Q8_0"),
    "llama K": ("llama", _dense, K_TYPES, "Q4_K"),
    "qwen3moe K": ("qwen3moe", _experts, K_TYPES, "Q4_K"),
    "gpt-oss": ("gpt-oss", _gpt_oss, MXFP4, "Q8_0"),
}
SAY = {"qwen3moe": _say_experts, "gpt-oss": _say_gpt_oss}


def _write(name: str, directory: Path) -> tuple[Path, Path]:
    """The file, and a plain checkpoint of what its tensors stand for, as the library says."""
    architecture, mlp, types, others = MODELS[name]
    path = gguf_files.write(
        directory / "model.gguf",
        architecture,
        CONFIG,
        random_tensors(_shapes(mlp)),
        type_of=lambda tensor: types.get(tensor.split(".")[-2], others),
        interleaved=architecture == "llama",
        say=SAY.get(architecture, lambda writer: None),
    )
    made = directory_of(path)
    tensors = {}
    for tensor, file in open_gguf(made / "model.gguf.json").items():
        module, _, last = tensor.rpartition(".")
        kind = json.loads((made / "config.json").read_text())["quantization_config"]["types"]
        if last == "blocks":
            type_name = kind.get(module) or kind[f"{module.split('.experts.')[0]}.experts.*.{module.split('.')[-1]}"]
            view = gguf_files.gguf.dequantize(file.view(tensor), gguf_files.GGMLQuantizationType[type_name])
        else:
            view = file.view(tensor).astype(np.float32)
        tensors[f"{module}.{last.replace('blocks', 'weight')}"] = np.ascontiguousarray(view)
    plain = directory / "plain"
    plain.mkdir()
    save_file(tensors, plain / "model.safetensors")
    config = {
        key: value
        for key, value in json.loads((made / "config.json").read_text()).items()
        if key != "quantization_config"
    }
    (plain / "config.json").write_text(json.dumps(config))
    return path, plain


@pytest.mark.parametrize("name", slow_but(MODELS, (), often={"llama K", "qwen3moe K"}))
def test_it_is_the_model_that_its_matrices_stand_for(name, tmp_path, monkeypatch):
    path, plain = _write(name, tmp_path)
    rng = random.Random(3)
    prompts = [[rng.randrange(3, 256) for _ in range(rng.randrange(1, 50))] for _ in range(5)]
    found = []
    for model in (path, plain):
        engine = start(model, load_format="auto")
        found.append((prompt_scores(engine, prompts), token_ids(run(engine, prompts, greedy(10)))))
        engine.close()
    (scores, tokens), (exact, expected) = found
    np.testing.assert_allclose(scores, exact, atol=1e-3)
    assert tokens == expected
