"""The config reader: every key is read or named, both spellings are one, and what is not built is refused by name."""

from __future__ import annotations

import json

import pytest

from jaxengine.device.models.config.hf import ConfigReader, apply_overrides
from jaxengine.device.models.config.ignored import Ignored
from jaxengine.device.models.registry import ARCHITECTURES, read_config, resolve
from jaxengine.errors import ConfigError
from tests.device.models.cases import CASES, Fixture

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "max_position_embeddings": 128,
}
GPT2_HUB = {
    "activation_function": "gelu_new",
    "architectures": ["GPT2LMHeadModel"],
    "attn_pdrop": 0.1,
    "bos_token_id": 50256,
    "embd_pdrop": 0.1,
    "eos_token_id": 50256,
    "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05,
    "model_type": "gpt2",
    "n_ctx": 1024,
    "n_embd": 768,
    "n_head": 12,
    "n_layer": 12,
    "n_positions": 1024,
    "resid_pdrop": 0.1,
    "summary_activation": None,
    "summary_first_dropout": 0.1,
    "summary_proj_to_labels": True,
    "summary_type": "cls_index",
    "summary_use_proj": True,
    "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
    "vocab_size": 50257,
}
OPT_HUB = {
    "_remove_final_layer_norm": False,
    "activation_dropout": 0.0,
    "activation_function": "relu",
    "architectures": ["OPTForCausalLM"],
    "attention_dropout": 0.0,
    "bos_token_id": 2,
    "do_layer_norm_before": False,
    "dropout": 0.1,
    "eos_token_id": 2,
    "ffn_dim": 4096,
    "hidden_size": 1024,
    "init_std": 0.02,
    "layerdrop": 0.0,
    "max_position_embeddings": 2048,
    "model_type": "opt",
    "num_attention_heads": 16,
    "num_hidden_layers": 24,
    "pad_token_id": 1,
    "prefix": "</s>",
    "torch_dtype": "float16",
    "transformers_version": "4.20.0.dev0",
    "use_cache": True,
    "vocab_size": 50272,
    "word_embed_proj_dim": 512,
}


def read(config, **overrides):
    merged = apply_overrides(config, overrides)
    return read_config(resolve(merged), merged)


def test_stored_real_configs_are_read_or_refused_by_name(shared):
    built = 0
    folders = ("hf*", "deepseek-r1", "kimi-k2")
    for path in sorted(path for folder in folders for path in (shared / "configs").glob(f"{folder}/*.json")):
        config = json.loads(path.read_text())
        if config["architectures"][0] not in ARCHITECTURES:
            with pytest.raises(ConfigError, match="no model is built for architecture"):
                resolve(config)
        else:
            assert read(config).vocab_size == config.get("text_config", config)["vocab_size"], path
            built += 1
    assert built == 37


@pytest.mark.parametrize("config", [GPT2_HUB, OPT_HUB], ids=["gpt2", "opt"])
def test_configs_of_the_older_families_are_read(config):
    assert read(config).num_heads in (12, 16)


@pytest.mark.parametrize("case", CASES)
def test_keys_that_transformers_5_writes_are_all_accounted_for(case):
    config = Fixture.load(case).config
    read(config)
    with pytest.raises(ConfigError, match=r"attention_sinks=4 is a key that it does not read"):
        read(config, attention_sinks=4)


def test_a_misspelt_key_names_its_neighbour():
    with pytest.raises(ConfigError, match=r"rms_norm_epz.*Did you mean 'rms_norm_eps'"):
        read(LLAMA, rms_norm_epz=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pretraining_tp": 2}, r"pretraining_tp=2 is not built, only None or 1"),
        ({"is_encoder_decoder": True}, r"is_encoder_decoder=True is not built, only False"),
        ({"hidden_act": "xielu"}, r"hidden_act='xielu' is not built; known are silu"),
        ({"vocab_size": 0}, r"vocab_size must be at least 1, got 0"),
        ({"vocab_size": "many"}, r"vocab_size must be of type int, got 'many'"),
        ({"vocab_size": True}, r"vocab_size must be of type int, got True"),
        ({"num_key_value_heads": 3}, r"8 attention heads cannot share 3 KV heads"),
        ({"head_dim": 7}, r"even size, got head_dim=7"),
        ({"dtype": "float32", "torch_dtype": "float16"}, r"same setting"),
        ({"rope_scaling": 8}, r"rope_scaling must be an object, got 8"),
        (
            {"rope_scaling": {"type": "longrope", "factor": 2.0, "short_factor": [1.0]}},
            r"short_factor of RoPE of type 'longrope' must be a list of 4 numbers",
        ),
        ({"rope_scaling": {"type": "linea", "factor": 2.0}}, r"unknown RoPE type 'linea'.*Did you mean 'linear'"),
        ({"rope_scaling": {"type": "linear"}}, r"rope_scaling has no 'factor'"),
        ({"rope_scaling": {"type": "linear", "rope_type": "yarn"}}, r"same setting"),
        (
            {"rope_scaling": {"type": "linear", "factor": 2.0, "beta_fast": 8.0}},
            r"rope_scaling: beta_fast=8.0 is a key",
        ),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, r"partial_rotary_factor=0.5"),
        ({"rope_parameters": {"rope_theta": 5.0}, "rope_theta": 6.0}, r"rope_theta is given twice"),
        ({"rope_parameters": {"rope_theta": 5.0}, "rope_scaling": {"type": "default"}}, r"same setting"),
    ],
)
def test_what_is_not_built_is_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        read(LLAMA, **changes)


EXAONE4 = {
    **LLAMA,
    "architectures": ["Exaone4ForCausalLM"],
    "model_type": "exaone4",
    "num_hidden_layers": 6,
    "num_key_value_heads": 4,
}


@pytest.mark.parametrize(
    ("pattern", "full"),
    [(2, (1, 3, 5)), (None, (3,)), ("LLG", (2, 5)), (1, (0, 1, 2, 3, 4, 5))],
)
def test_exaone_4_says_in_two_ways_which_layers_have_windows(pattern, full):
    windows = read(EXAONE4, sliding_window_pattern=pattern, sliding_window=7).windows
    assert tuple(layer for layer, window in enumerate(windows) if window is None) == full


@pytest.mark.parametrize(
    ("pattern", "message"),
    [("LLX", "L .a window.*got 'LLX'"), ("", "got ''"), (0, "at least 1, got 0"), (1.5, "of type int, got 1.5")],
)
def test_other_patterns_of_exaone_4_are_refused(pattern, message):
    with pytest.raises(ConfigError, match=message):
        read(EXAONE4, sliding_window_pattern=pattern)


def test_a_missing_required_key_is_named():
    config = {key: value for key, value in LLAMA.items() if key != "intermediate_size"}
    with pytest.raises(ConfigError, match="no 'intermediate_size'"):
        read(config)


def test_windows_that_contradict_each_other_are_refused():
    config = dict(Fixture.load("qwen2-layer-types").config)
    with pytest.raises(ConfigError, match="asks for sliding_attention, and there is no window"):
        read(config, use_sliding_window=False)
    with pytest.raises(ConfigError, match="layer_types must name one of"):
        read(config, layer_types=["full_attention"])


def test_both_spellings_of_rope_are_one():
    """transformers 4 wrote rope_theta beside rope_scaling, 5 writes both into rope_parameters."""
    for case in ("llama", "llama-llama3", "llama-yarn", "llama-mha-head-dim-linear"):
        new = dict(Fixture.load(case).config)
        old = {key: value for key, value in new.items() if key != "rope_parameters"}
        scaling = dict(new["rope_parameters"])
        old["rope_theta"] = scaling.pop("rope_theta")
        old["rope_scaling"] = None if scaling == {"rope_type": "default"} else scaling
        assert read(old) == read(new)


def test_both_spellings_of_dtype_are_one():
    assert read(LLAMA, dtype="bfloat16").dtype == read(LLAMA, torch_dtype="bfloat16").dtype == "bfloat16"
    assert read(LLAMA).dtype is None


def test_overrides_reach_into_objects_and_are_checked_as_the_file_is():
    config = Fixture.load("llama-llama3").config
    model_class = resolve(config)
    changed = read_config(model_class, config, overrides={"rope_parameters": {"factor": 8.0}})
    assert changed.rope.scaling.factor == 8.0
    assert changed.rope.scaling.original_max_positions == 32
    with pytest.raises(ConfigError, match=r"no_such_key=1 is a key that it does not read"):
        read_config(model_class, config, overrides={"no_such_key": 1})
    # A null takes a key out of an object, as where the type of scaling changes.
    linear = {"rope_type": "linear", "low_freq_factor": None, "high_freq_factor": None}
    linear["original_max_position_embeddings"] = None
    assert read_config(model_class, config, overrides={"rope_parameters": linear}).rope.scaling.factor == 4.0


def test_ignored_values_are_checked():
    reader = ConfigReader({"a": 1, "b": 2})
    reader.required("a", int)
    reader.finish({"b": Ignored("for a reason")}, family="F")
    with pytest.raises(ConfigError, match=r"b=2 is not built, only 3 \(for a reason\)"):
        reader.finish({"b": Ignored("for a reason", allowed=(3,))}, family="F")


def test_an_integer_does_for_a_number():
    assert read(LLAMA, rope_theta=1000000).rope.theta == 1e6
