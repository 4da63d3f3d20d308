"""Many adapters over few slots of a real engine: each request has the answer that it has alone, to the last bit."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from jaxengine import LLM, LoRARequest, SamplingParams
from jaxengine.contract.outputs import RequestOutput
from tests.device.adapters.cases import AdapterFixture
from tests.device.models.cases import PROMPTS, log_softmax
from tests.integration.engines import LLAMA, SMALL, start, write_config

pytestmark = pytest.mark.usefixtures("quick_engines")

RANKS = (2, 4, 8)
OPTIONS = {"enable_lora": True, "max_lora_rank": 8, "num_pages": 200, "max_num_seqs": 8, "buckets": ("8x8", "8x1")}


def write_adapter(directory: Path, seed: int) -> str:
    """A random adapter of the small Llama, of some of its layers, as PEFT writes it."""
    rng = np.random.default_rng(seed)
    rank, width, hidden = RANKS[seed % len(RANKS)], LLAMA["hidden_size"], LLAMA["intermediate_size"]
    shapes = {
        "self_attn.q_proj": (width, 64),
        "self_attn.v_proj": (width, 32),
        "self_attn.o_proj": (64, width),
        "mlp.down_proj": (hidden, width),
    }
    chosen = [name for number, name in enumerate(shapes) if (seed + number) % 4]
    tensors = {}
    for layer in range(2):
        for name in chosen:
            inputs, outputs = shapes[name]
            before = f"base_model.model.model.layers.{layer}.{name}"
            tensors[f"{before}.lora_A.weight"] = rng.normal(size=(rank, inputs)).astype(np.float32) / inputs**0.5
            tensors[f"{before}.lora_B.weight"] = rng.normal(size=(outputs, rank)).astype(np.float32)
    directory.mkdir(parents=True)
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "target_modules": chosen}
    (directory / "adapter_config.json").write_text(json.dumps(config))
    save_file(tensors, directory / "adapter_model.safetensors")
    return str(directory)


def adapters_in(directory: Path, count: int) -> list[LoRARequest]:
    """So many of them."""
    return [
        LoRARequest(f"adapter{number}", 1 + number, write_adapter(directory / f"adapter{number}", number))
        for number in range(count)
    ]


def said(output: RequestOutput) -> list[tuple[Any, ...]]:
    """Tokens and log probabilities of all sequences."""
    return [
        (completion.token_ids, [next(iter(each.values())).logprob for each in completion.logprobs or ()])
        for completion in output.outputs
    ]


def check_alone(llm: LLM, adapters: Sequence[LoRARequest], *, num_requests: int) -> None:
    """Requests in one call, each through an adapter or none, and then each alone: the same to the last bit."""
    rng = random.Random(0)
    prompts, params, chosen = [], [], []
    for number in range(num_requests):
        stem = [(3 + i * (1 + number % 3)) % 250 for i in range(rng.randrange(24))]
        prompts.append({"prompt_token_ids": [*stem, rng.randrange(250)]})
        options: dict[str, Any] = {"max_tokens": rng.randrange(1, 8), "logprobs": 0, "seed": number}
        options["temperature"] = rng.choice([0.0, 0.8])
        if number % 9 == 0:
            options |= {"n": 3, "temperature": 1.0}
        if number % 7 == 0:
            options["repetition_penalty"] = 1.3
        params.append(SamplingParams(**options))
        chosen.append(None if number % 5 == 0 else adapters[rng.randrange(len(adapters))])
    together = llm.generate(prompts, params, lora_request=chosen, use_tqdm=False)
    for prompt, given, adapter, output in zip(prompts, params, chosen, together, strict=True):
        [alone] = llm.generate(prompt, given, lora_request=adapter, use_tqdm=False)
        assert said(output) == said(alone)
    assert llm.get_metrics()["num_compilations"] == 0


@pytest.mark.slow
def test_adapters_over_slots_and_memory(tmp_path: Path) -> None:
    """64 adapters over 8 slots, of which 24 are in the host's memory, and 300 requests; then 100 that come and go."""
    engine = start(write_config(tmp_path / "model"), max_loras=8, max_cpu_loras=24, **OPTIONS)
    adapters = adapters_in(tmp_path, 100)
    with LLM.from_engine(engine) as llm:
        check_alone(llm, adapters[:64], num_requests=300)
        params = SamplingParams(temperature=0, max_tokens=2)
        answers = [
            llm.generate({"prompt_token_ids": [5, 6, 7]}, params, lora_request=each, use_tqdm=False)[0]
            for each in adapters
        ]
        assert len({output.outputs[0].token_ids for output in answers}) > 50
        assert engine.compile_counter.count == 0
        engine.core.check_idle()


@pytest.mark.slow
def test_adapters_over_slots(tmp_path: Path) -> None:
    """A small one of the same, and an engine that slept has its slots written again."""
    engine = start(write_config(tmp_path / "model"), max_loras=2, **OPTIONS)
    adapters = adapters_in(tmp_path, 5)
    with LLM.from_engine(engine) as llm:
        check_alone(llm, adapters, num_requests=12)
        prompt, params = {"prompt_token_ids": [9, 8, 7]}, SamplingParams(temperature=0, max_tokens=6)
        before = [said(llm.generate(prompt, params, lora_request=each, use_tqdm=False)[0]) for each in adapters]
        llm.sleep()
        llm.wake_up()
        after = [said(llm.generate(prompt, params, lora_request=each, use_tqdm=False)[0]) for each in adapters]
        assert before == after
        assert engine.compile_counter.count == 0


@pytest.mark.parametrize(
    ("name", "targets"),
    [
        pytest.param("llama", None, marks=pytest.mark.slow),
        pytest.param("llama-vocabulary", ("embed_tokens", "lm_head", "v_proj"), marks=pytest.mark.rare),
    ],
)
def test_an_adapter_is_the_merged_model(name: str, targets: tuple[str, ...] | None, tmp_path: Path) -> None:
    """Log probabilities of requests with the adapter and without it, against what PEFT's merged model and its base compute."""
    fixture = AdapterFixture.load(name)
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(fixture.base.config))
    save_file(fixture.base.tensors, model / "model.safetensors")
    adapter = LoRARequest(name, 1, str(fixture.write(tmp_path / "adapter")))
    options = {
        **SMALL,
        **OPTIONS,
        "load_format": "auto",
        "max_logprobs": -1,
        "dtype": "float32",
        "lora_target_modules": targets,
    }
    with LLM.from_engine(start(model, **options)) as llm:
        for request, expected in ((adapter, fixture.logits), (None, fixture.base.logits)):
            params = SamplingParams(temperature=0, max_tokens=1, logprobs=-1)
            prompts = [{"prompt_token_ids": prompt} for prompt in PROMPTS]
            outputs = llm.generate(prompts, params, lora_request=request, use_tqdm=False)
            spread = np.concatenate(expected).std()
            for output, logits in zip(outputs, expected, strict=True):
                [found] = output.outputs[0].logprobs or ()
                wanted = log_softmax(logits)[-1]
                assert max(abs(found[token].logprob - each) for token, each in enumerate(wanted)) < 1e-4 * spread
