"""A trained model as a Hugging Face checkpoint directory."""

import json
import shutil
from pathlib import Path

import jax.numpy as jnp
from safetensors.flax import save_file
from tokenizers import Tokenizer

from examples.embedded_model.corpus import TEMPLATE
from examples.embedded_model.model import ModelConfig, Params
from examples.embedded_model.tokenizer import END, END_OF_TEXT


def tensors(params: Params, config: ModelConfig) -> Params:
    """The parameters under their checkpoint names, in bfloat16."""
    out: Params = {}
    for name, value in params.items():
        value = value.astype(jnp.bfloat16)
        if name == "lm_head":
            out["lm_head.weight"] = value
        elif name in ("embed_tokens", "norm"):
            out[f"model.{name}.weight"] = value
        else:
            for layer in range(config.num_layers):
                out[f"model.layers.{layer}.{name}.weight"] = value[layer]
    return out


def hf_config(config: ModelConfig, tokenizer: Tokenizer) -> dict[str, object]:
    """The contents of `config.json`."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.ffn_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_size,
        "hidden_act": "silu",
        "max_position_embeddings": config.max_positions,
        "initializer_range": 0.02,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_theta,
        "rope_scaling": None,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "pretraining_tp": 1,
        "tie_word_embeddings": False,
        "use_cache": True,
        "bos_token_id": tokenizer.token_to_id(END_OF_TEXT),
        "eos_token_id": tokenizer.token_to_id(END),
        "pad_token_id": tokenizer.token_to_id(END_OF_TEXT),
        "torch_dtype": "bfloat16",
    }


def _json_files(config: ModelConfig, tokenizer: Tokenizer) -> dict[str, dict[str, object]]:
    generation: dict[str, object] = {
        "bos_token_id": tokenizer.token_to_id(END_OF_TEXT),
        "eos_token_id": [tokenizer.token_to_id(END), tokenizer.token_to_id(END_OF_TEXT)],
        "pad_token_id": tokenizer.token_to_id(END_OF_TEXT),
        "do_sample": True,
        "temperature": 0.7,
        "top_p": 0.9,
    }
    settings: dict[str, object] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None,
        "eos_token": END,
        "pad_token": END_OF_TEXT,
        "model_max_length": config.max_positions,
        "clean_up_tokenization_spaces": False,
    }
    files: dict[str, dict[str, object]] = {
        "config.json": hf_config(config, tokenizer),
        "generation_config.json": generation,
        "tokenizer_config.json": settings,
    }
    return files


def write_checkpoint(directory: Path, params: Params, config: ModelConfig, tokenizer: Tokenizer, card: str) -> None:
    """Write the whole checkpoint beside `directory`, then put it in its place; other files there are kept."""
    aside = directory.with_name(f"{directory.name}.partial")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    for name, content in _json_files(config, tokenizer).items():
        (aside / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    tokenizer.save(str(aside / "tokenizer.json"))
    shutil.copyfile(TEMPLATE, aside / "chat_template.jinja")
    save_file(tensors(params, config), aside / "model.safetensors", metadata={"format": "pt"})
    (aside / "model.safetensors").chmod(0o644)
    (aside / "README.md").write_text(card, encoding="utf-8")
    directory.mkdir(parents=True, exist_ok=True)
    for path in aside.iterdir():
        path.replace(directory / path.name)
    aside.rmdir()
