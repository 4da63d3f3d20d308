"""Decode and prefill beside what the device can do, measured in the same run: how fast it reads and multiplies. JSON out.

    python -m benchmarks.limits --config CONFIG_JSON --dtype bfloat16 --sequences 1 16 64 256
    python -m benchmarks.limits --config CONFIG_JSON --dtype bfloat16 --sequences 1 16 64 256 --engine transformers

Decode: milliseconds a step, by how much longer so many requests take with more tokens of output. Its floor is reading the weights
that a step touches and all keys and values, by the faster of a large copy, which reads and writes, and a large reduction.
Prefill: milliseconds for prompts with one token of output each; its floor is the products of the layers and of attention, by the
speed of a large product. A share is the floor over the measured time. Weights are random. The second command measures
transformers on PyTorch in the same way (`generate`, its defaults).
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median

import jax
import jax.numpy as jnp
from tqdm import tqdm

from benchmarks import workload
from jaxengine.bench import machine
from jaxengine.bench.work import Work
from jaxengine.options.config import EngineConfig
from jaxengine.startup.model_plan import plan_model
from jaxengine.startup.roofline import NominalSpeed

Generate = Callable[[list[dict[str, list[int]]], int], None]
"""Generates so many tokens greedily for each of the prompts."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    workload.add_model_options(parser)
    parser.set_defaults(prompt_len=512)
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--engine", choices=["jaxengine", "transformers"], default="jaxengine")
    options = parser.parse_args()
    if options.config is None:
        parser.error("--config names the config.json of the model")
    config = json.loads(options.config.read_text())
    speed = measured_speed(options.dtype)
    given = {"model": str(options.config), "dtype": options.dtype, "load_format": "dummy", **options.engine_options}
    work = Work.of(plan_model(EngineConfig.from_options(**given), weights=False), speed)
    opened = engine(options) if options.engine == "jaxengine" else transformers(options)
    rng, results = random.Random(0), {}
    with opened as generate:
        for count in tqdm(options.sequences, desc=options.engine, unit="load"):

            def seconds(output_len: int, count: int = count) -> float:
                prompts = workload.prompts(rng, count=count, length=options.prompt_len, vocab_size=config["vocab_size"])
                begun = time.perf_counter()
                generate(prompts, output_len)
                return time.perf_counter() - begun

            seconds(2)
            prefill = median(seconds(1) for _ in range(options.repeat))
            short, long = options.output_len, 3 * options.output_len
            step = median((seconds(long) - seconds(short)) / (long - short) for _ in range(options.repeat))
            results[count] = {
                "decode_ms": round(step * 1e3, 3),
                "decode_share": round(work.decode_floor(count, options.prompt_len + (short + long) // 2) / step, 3),
                "output_tokens_per_s": round(count / step, 1),
                "prefill_ms": round(prefill * 1e3, 2),
                "prefill_share": round(work.prefill_floor(count, options.prompt_len) / prefill, 3),
                "prompt_tokens_per_s": round(count * options.prompt_len / prefill, 1),
            }
    report = {
        "benchmark": "limits",
        "engine": options.engine,
        "machine": machine.describe(),
        "device": jax.devices()[0].device_kind,
        "model": options.config.stem,
        "dtype": options.dtype,
        "engine_options": options.engine_options,
        "prompt_len": options.prompt_len,
        "output_len": [options.output_len, 3 * options.output_len],
        "repeat": options.repeat,
        "memory_gb_per_s": round(speed.memory_bandwidth / 1e9, 1),
        "matmul_tflop_per_s": round(speed.matrix_flops / 1e12, 2),
        "sequences": results,
    }
    print(json.dumps(report, indent=2))


def measured_speed(dtype: str) -> NominalSpeed:
    """Bytes/s of a large copy, read and written, or of reading alone where that is more, and operations/s of a large product."""
    source = jnp.ones(1 << 28 if jax.default_backend() != "cpu" else 1 << 26, jnp.float32)
    size = 8192 if jax.default_backend() != "cpu" else 2048
    left = jax.random.normal(jax.random.key(0), (size, size), jnp.dtype(dtype))
    copying, reading = (best(jax.jit(function), source) for function in (jnp.copy, jnp.max))
    flops = 2 * size**3 / best(jax.jit(jnp.matmul), left, left)
    return NominalSpeed(max(2 * source.nbytes / copying, source.nbytes / reading), flops, flops)


def best(function: Callable[..., jax.Array], *arrays: jax.Array) -> float:
    """The shortest of ten runs in seconds, after one that compiles."""
    function(*arrays).block_until_ready()
    found = []
    for _ in range(10):
        begun = time.perf_counter()
        function(*arrays).block_until_ready()
        found.append(time.perf_counter() - begun)
    return min(found)


@contextmanager
def engine(options: argparse.Namespace) -> Iterator[Generate]:
    with workload.open_llm(options, max_num_seqs=max(options.sequences)) as llm:
        yield lambda prompts, count: (llm.generate(prompts, workload.greedy(count), use_tqdm=False), None)[1]


@contextmanager
def transformers(options: argparse.Namespace) -> Iterator[Generate]:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    device = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.device(device):
        config = AutoConfig.from_pretrained(options.config)
        model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, options.dtype)).eval()

    def generate(prompts: list[dict[str, list[int]]], count: int) -> None:
        ids = torch.tensor([prompt["prompt_token_ids"] for prompt in prompts], device=device)
        model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=count, min_new_tokens=count
        )[0, -1].item()

    with torch.inference_mode():
        yield generate


if __name__ == "__main__":
    main()
