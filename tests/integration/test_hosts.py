"""Several processes as the hosts of one engine: the tokens of one host, and nothing compiles."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.integration.engines import LLAMA, SMALL, write_config
from tests.integration.hosts import Answers, ask
from tests.integration.test_adapters import write_adapter
from tests.integration.test_draft_heads import HEADS, TOKENS, WITH_PREDICTOR, written
from tests.integration.test_draft_heads import SMALL as FEW
from xla_cache import Store, write_bundle
from xla_cache.starts import read_starts

TINY: dict[str, Any] = {**SMALL, "max_logprobs": 2, "dtype": "float32", "buckets": ["4x8"]}

PLAIN = {name: value for name, value in LLAMA.items() if name not in ("attention_bias", "mlp_bias")}

KINDS: dict[str, dict[str, Any]] = {
    "mixture": {
        **PLAIN,
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    },
    "windows": {**PLAIN, "architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 16},
    "hybrid": {
        "architectures": ["BambaForCausalLM"],
        "model_type": "bamba",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "attn_layer_indices": [1, 3],
        "mamba_n_heads": 4,
        "mamba_d_head": 32,
        "mamba_n_groups": 2,
        "mamba_d_state": 16,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "mamba_chunk_size": 8,
        "mamba_conv_bias": True,
        "mamba_proj_bias": False,
        "vocab_size": 256,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.5,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "float32",
    },
}

GREEDY = {"max_tokens": 30, "temperature": 0.0, "ignore_eos": True}
RANDOM = {"max_tokens": 24, "temperature": 0.9, "seed": 5, "presence_penalty": 0.5, "top_k": 40, "ignore_eos": True}


def requests(vocab_size: int = 256) -> list[dict[str, Any]]:
    """More than run at once, two of one beginning, one that repeats itself."""
    starts = [range(3, 40), range(3, 33), [7, 8, 9] * 10, range(100, 113), range(50, 61), range(60, 67)]
    prompts = [[token % vocab_size for token in start] for start in starts]
    return [{"prompt": prompt, "params": RANDOM if number % 2 else GREEDY} for number, prompt in enumerate(prompts)]


def check(
    options: dict[str, Any], *, hosts: int, devices: int, work: list[dict[str, Any]] | None = None, drafts: bool = False
) -> Answers:
    """What several hosts answer, which is what one with as many devices does."""
    work = requests() if work is None else work
    given = {**TINY, "tensor_parallel_size": hosts * devices, **options}
    found = ask(given, work, hosts=hosts, devices=devices, drafts=drafts)
    alone = ask(given, work, hosts=1, devices=hosts * devices, drafts=drafts)
    assert found.tokens == alone.tokens
    np.testing.assert_allclose(found.pooled, alone.pooled, rtol=1e-5)
    assert found.num_compilations == 0
    return found


@pytest.mark.slow
def test_two_hosts_answer_as_one_does_with_all_that_a_step_can_bring(tmp_path: Path) -> None:
    speculation = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}
    model = str(write_config(tmp_path))
    found = check({"model": model, "num_pages": 17, "speculative_config": speculation}, hosts=2, devices=1)
    assert found.num_preemptions > 0
    assert any(found.num_cached_tokens)


@pytest.mark.rare
@pytest.mark.parametrize(("hosts", "devices"), [(4, 1), (2, 2)])
def test_four_devices_of_any_number_of_hosts(hosts: int, devices: int, tmp_path: Path) -> None:
    check({"model": str(write_config(tmp_path))}, hosts=hosts, devices=devices)


@pytest.mark.rare
@pytest.mark.parametrize("name", ["mixture", "windows", "hybrid"])
def test_other_kinds_of_models(name: str, tmp_path: Path) -> None:
    write_config(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(KINDS[name]))
    options = {"enable_expert_parallel": True} if name == "mixture" else {}
    check({"model": str(tmp_path), **options}, hosts=2, devices=1)


@pytest.mark.rare
@pytest.mark.parametrize(("hosts", "devices"), [(4, 1), (2, 2)])
def test_experts_of_four_devices(hosts: int, devices: int, tmp_path: Path) -> None:
    write_config(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(KINDS["mixture"]))
    check({"model": str(tmp_path), "enable_expert_parallel": True}, hosts=hosts, devices=devices)


@pytest.mark.rare
def test_adapters_that_come_and_go(tmp_path: Path) -> None:
    """Three over two slots, of a directory that each host reads; some requests have none."""
    paths = [write_adapter(tmp_path / f"adapter{number}", number) for number in range(3)]
    work = requests() + requests()
    for number, request in enumerate(work):
        if number % 4:
            request["adapter"] = paths[number % 4 - 1]
    options = {"model": str(write_config(tmp_path / "model")), "enable_lora": True, "max_loras": 2, "max_lora_rank": 8}
    found = check(options, hosts=2, devices=1, work=work)
    assert len({tuple(tokens) for tokens in found.tokens}) > 6


@pytest.mark.rare
@pytest.mark.parametrize("method", ["draft_model", "eagle3", "mtp"])
def test_drafts_of_the_device(method: str, tmp_path: Path) -> None:
    """Few tokens, of which drafts hit some."""
    target = write_config(tmp_path / "target", **FEW)
    asked: dict[str, Any] = {"method": method, "num_speculative_tokens": 3}
    if method == "mtp":
        (target / "config.json").write_text(json.dumps(WITH_PREDICTOR))
    else:
        draft = {**LLAMA, **FEW, "num_hidden_layers": 2} if method == "draft_model" else HEADS[method]
        asked["model"] = str(written(tmp_path / "draft", draft))
    options = {"model": str(target), "speculative_config": asked, "buckets": ["4x16", "4x4"]}
    found = check(options, hosts=2, devices=1, work=requests(TOKENS), drafts=True)
    assert found.num_accepted > 0


@pytest.mark.rare
def test_grammars_and_pages_that_move_to_each_hosts_memory() -> None:
    """Of the embedded model, which has a tokenizer."""
    work = [
        {"prompt": list(range(20 + 9 * number, 60 + 9 * number)), "params": {"max_tokens": 12, "temperature": 0.0}}
        for number in range(6)
    ]
    work.append(
        {"prompt": [40, 41, 42], "params": {"max_tokens": 12, "temperature": 0.8, "seed": 1, "regex": "[0-9]{3}x"}}
    )
    options = {"load_format": "auto", "skip_tokenizer_init": False, "num_pages": 18, "kv_offloading_size": 0.01}
    found = check(options, hosts=2, devices=1, work=work)
    assert any(found.num_cached_tokens)


@pytest.mark.rare
def test_embeddings(tmp_path: Path) -> None:
    work = [{"prompt": [5, 6, 7, 8 + number], "pool": True} for number in range(6)]
    found = check({"model": str(write_config(tmp_path)), "runner": "pooling"}, hosts=2, devices=1, work=work)
    assert len(found.pooled) == 12


@pytest.mark.rare
def test_hosts_start_with_a_bundle(tmp_path: Path) -> None:
    """Of what was compiled before; without one of its programs nothing would start, as there is no other place for them."""
    model = str(write_config(tmp_path / "model"))
    options = {**TINY, "tensor_parallel_size": 2, "model": model, "xla_cache_path": str(tmp_path / "store")}
    expected = ask(options, requests(), hosts=2, devices=1)
    store = Store.open(tmp_path / "store")
    [start] = read_starts(store)
    assert start.context["target.hosts"] == "2"
    write_bundle(tmp_path / "bundle", store, start.records(store), context=start.context, description=start.description)
    bundled = options | {"xla_cache_path": "off", "bundle": str(tmp_path / "bundle"), "bundle_policy": "require"}
    found = ask(bundled, requests(), hosts=2, devices=1)
    assert found.tokens == expected.tokens
    assert found.num_compilations == 0
