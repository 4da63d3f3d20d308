"""The packaged checkpoint: complete, small, strict enough for any reader, and nothing of it loads JAX."""

import json
import struct
import subprocess
import sys

import pytest
from tokenizers import Tokenizer

from jaxengine.embedded import checkpoint_path

FILES = {
    "README.md",
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    "loss_curve.png",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
}


@pytest.fixture(scope="module")
def config() -> dict:
    return json.loads((checkpoint_path() / "config.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(checkpoint_path() / "tokenizer.json"))


def test_directory_is_complete_and_small():
    paths = list(checkpoint_path().iterdir())
    assert {path.name for path in paths} == FILES
    assert sum(path.stat().st_size for path in paths) < 12 * 2**20


def test_config_names_everything_a_strict_reader_wants(config):
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["head_dim"] == 64
    assert config["num_attention_heads"] % config["num_key_value_heads"] == 0
    assert config["num_attention_heads"] > config["num_key_value_heads"]
    assert config["rope_theta"] == 500000.0
    assert config["rope_scaling"] is None
    assert config["hidden_act"] == "silu"
    assert config["tie_word_embeddings"] is False
    assert config["attention_bias"] is config["mlp_bias"] is False
    assert config["torch_dtype"] == "bfloat16"
    assert config["max_position_embeddings"] == 1024


def test_weights_have_the_names_shapes_and_type_of_the_config(config):
    with (checkpoint_path() / "model.safetensors").open("rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
    assert header.pop("__metadata__") == {"format": "pt"}
    assert {entry["dtype"] for entry in header.values()} == {"BF16"}
    assert len(header) == 3 + 9 * config["num_hidden_layers"]
    embed, head = config["hidden_size"], config["head_dim"]
    shapes = {name: entry["shape"] for name, entry in header.items()}
    assert shapes["model.embed_tokens.weight"] == shapes["lm_head.weight"] == [config["vocab_size"], embed]
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        assert shapes[f"{prefix}.self_attn.q_proj.weight"] == [config["num_attention_heads"] * head, embed]
        assert shapes[f"{prefix}.self_attn.k_proj.weight"] == [config["num_key_value_heads"] * head, embed]
        assert shapes[f"{prefix}.mlp.down_proj.weight"] == [embed, config["intermediate_size"]]


def test_stop_tokens_are_those_of_the_tokenizer(config, tokenizer):
    generation = json.loads((checkpoint_path() / "generation_config.json").read_text(encoding="utf-8"))
    assert tokenizer.get_vocab_size() == config["vocab_size"]
    assert config["eos_token_id"] == tokenizer.token_to_id("<|im_end|>")
    assert generation["eos_token_id"] == [tokenizer.token_to_id("<|im_end|>"), tokenizer.token_to_id("<|endoftext|>")]
    assert 0 < generation["temperature"] <= 1
    assert 0 < generation["top_p"] <= 1


@pytest.mark.parametrize(
    "text",
    [
        "Once upon a time",
        "Grüße, 世界! 🦊👩‍👩‍👧 \x00\x7f",
        "a\r\n\r\n  b\t\tc   ",
        "1234567890",
        "<tool_call>\n{}",
        "\u202e\ufeff",
    ],
)
def test_tokenizer_gives_back_any_text(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_digits_are_single_tokens(tokenizer):
    assert tokenizer.encode("what is 12+345").tokens[-6:] == ["1", "2", "+", "3", "4", "5"]


def test_finding_the_checkpoint_loads_no_jax():
    code = "import sys, jaxengine.embedded as e; e.checkpoint_path(); assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
