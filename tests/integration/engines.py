"""Real engines on tiny random models: whole enough to run everything, small enough to compile in seconds."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from jaxengine.contract.outputs import RequestOutput
from jaxengine.contract.sampling_options import OPTIONS
from jaxengine.contract.sampling_params import SamplingParams
from jaxengine.device.weights.rules import Ignore
from jaxengine.front.inline_client import InlineClient
from jaxengine.front.postprocess import Postprocessor
from jaxengine.options.config import EngineConfig
from jaxengine.startup.build import Engine, build_engine
from jaxengine.startup.model_plan import plan_model

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 8,
    "vocab_size": 256,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "float32",
}

SMALL: dict[str, Any] = {
    "load_format": "dummy",
    "skip_tokenizer_init": True,
    "max_model_len": 128,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 64,
    "page_size": 8,
    "bucket_planner": "explicit",
    "buckets": ("4x16", "4x1"),
}


def write_config(directory: Path, **changes: Any) -> Path:
    """A directory with nothing but a config.json."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps({**LLAMA, **changes}))
    return directory


def write_checkpoint(directory: Path, **changes: Any) -> Path:
    """The model of `write_config` with random weights in safetensors, for what must be equal on any number of devices."""
    write_config(directory, **changes)
    plan = plan_model(EngineConfig.from_options(model=str(directory), load_format="dummy"))
    numbers = np.random.default_rng(0)
    tensors = {}
    for rule in plan.model_class.WEIGHTS:
        if isinstance(rule, Ignore):
            continue
        pattern = re.compile(re.escape(rule.target).replace(r"\*", r"(\d+)"))
        for path, struct in plan.parameters.items():
            if match := pattern.fullmatch(path):
                source = rule.source.replace("[", "").replace("]", "")
                name = source.replace("*", match.group(1)) if match.groups() else source
                scale = 1.0 if "norm" in name else struct.shape[-1] ** -0.5
                tensors[name] = (scale * numbers.standard_normal(struct.shape)).astype(np.float32)
    save_file(tensors, directory / "model.safetensors")
    return directory


def start(model: Path, **options: Any) -> Engine:
    """A small engine with random weights, unless the options say otherwise."""
    return build_engine(EngineConfig.from_options(model=str(model), **{**SMALL, **options}))


def some_options(rng: random.Random, *, share: float) -> dict[str, float]:
    """About this share of the sampling options, with values of all sizes."""
    options: dict[str, float] = {}
    for option in OPTIONS:
        if rng.random() < share:
            low, high = max(option.low, -2), min(option.high, 2)
            options[option.name] = rng.randrange(1, 40) if option.kind is int else rng.uniform(low + 0.02, high)
    return options


def synchronous(engine: Engine) -> InlineClient:
    """The engine with the text of what it generates."""
    return InlineClient(engine.host, Postprocessor(engine.front.tokenizer))


def run(engine: Engine, prompts: list[Any], params: SamplingParams | list[SamplingParams]) -> list[RequestOutput]:
    """Run prompts (lists of ids, or prompt dicts) together to their end; outputs in order."""
    each = params if isinstance(params, list) else [params] * len(prompts)
    requests = engine.front.intake.prepare(prompts, each)
    sync = synchronous(engine)
    sync.submit(requests)
    done: dict[str, RequestOutput] = {}
    while sync.has_unfinished:
        done.update((output.request_id, output) for output in sync.step() if output.finished)
    return [done[request.request_id] for request in requests]


def token_ids(outputs: list[RequestOutput]) -> list[tuple[int, ...]]:
    """The tokens of each request's first sequence."""
    return [output.outputs[0].token_ids for output in outputs]


def greedy(max_tokens: int) -> SamplingParams:
    """Greedy, exactly so many tokens."""
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True, detokenize=False)
