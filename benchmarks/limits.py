"""Decode and prefill beside what the device can do, measured in the same run: how fast it reads and multiplies. JSON out.

    python -m benchmarks.limits --config CONFIG_JSON --dtype bfloat16 --sequences 1 16 64 256
    python -m benchmarks.limits --config CONFIG_JSON --dtype bfloat16 --sequences 1 16 64 256 --engine transformers

Decode: milliseconds a step, by how much longer so many requests take with more tokens of output. Its floor is reading the weights
that a step touches and all keys and values, by the faster of a large copy, which reads and writes, and a large reduction.
Prefill: milliseconds for prompts with one token of output each; its floor is the products of the layers and of attention, by the
speed of a large product. A share is the floor over the measured time. Weights are random. The second command measures
transformers on PyTorch in the same way (`generate`, its defaults). `--prompts` are lengths of single prompts that are measured
too, `--traces` adds which kernels a GPU ran, in steps and prompts (`device_kernels.py`).

Several engines can be started side by side and measured one after the other: `python -m benchmarks.limits_in_turn`.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
from tqdm import tqdm

from benchmarks import workload
from benchmarks.alike_layers import alike_layers
from benchmarks.device_kernels import traced
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
    parser.add_argument("--prompts", type=int, nargs="*", default=[], help="lengths of single prompts")
    parser.add_argument("--traces", action="store_true", help="also which kernels a GPU ran")
    parser.add_argument("--alike-layers", action="store_true", help="all layers have the first one's weights")
    parser.add_argument("--wait", action="store_true", help="measure after a line on standard input")
    options = parser.parse_args()
    if options.config is None:
        parser.error("--config names the config.json of the model")
    opened = engine(options) if options.engine == "jaxengine" else transformers(options)
    begun = time.perf_counter()
    with opened as generate:
        ready = time.perf_counter() - begun
        if options.wait:
            print("ready", file=sys.stderr, flush=True)
            sys.stdin.readline()
        report = measured(options, generate)
    print(json.dumps({**report, "ready_s": round(ready, 1)}, indent=2))


def measured(options: argparse.Namespace, generate: Generate) -> dict[str, Any]:
    """The report, of an engine that is ready."""
    config = json.loads(options.config.read_text())
    speed = measured_speed(options.dtype)
    given = {"model": str(options.config), "dtype": options.dtype, "load_format": "dummy", **options.engine_options}
    work = Work.of(plan_model(EngineConfig.from_options(**given), weights=False), speed)
    rng, sequences, prompts, traces = random.Random(0), {}, {}, {}

    def run(count: int, length: int, output_len: int) -> Callable[[], None]:
        asked = workload.prompts(rng, count=count, length=length, vocab_size=config["vocab_size"])
        return lambda: generate(asked, output_len)

    def seconds(count: int, length: int, output_len: int) -> float:
        asked = run(count, length, output_len)
        begun = time.perf_counter()
        asked()
        return time.perf_counter() - begun

    def prefill(count: int, length: int) -> dict[str, float]:
        taken = median(seconds(count, length, 1) for _ in range(options.repeat))
        return {
            "prefill_ms": round(taken * 1e3, 2),
            "prefill_share": round(work.prefill_floor(count, length) / taken, 3),
            "prompt_tokens_per_s": round(count * length / taken, 1),
        }

    length, short, long = options.prompt_len, options.output_len, 3 * options.output_len
    for count in tqdm(options.sequences, desc=options.engine, unit="load"):
        seconds(count, length, 2)
        of_prompts = prefill(count, length)
        step = median(
            (seconds(count, length, long) - seconds(count, length, short)) / (long - short)
            for _ in range(options.repeat)
        )
        sequences[count] = {
            "decode_ms": round(step * 1e3, 3),
            "decode_share": round(work.decode_floor(count, length + (short + long) // 2) / step, 3),
            "output_tokens_per_s": round(count / step, 1),
            **of_prompts,
        }
    for alone in tqdm(options.prompts, desc="prompts", unit="length"):
        seconds(1, alone, 1)
        prompts[alone] = prefill(1, alone)
    if options.traces:
        for count in options.sequences:
            traces[f"second half of {count} x {length} + {short}"] = traced(run(count, length, short), last=0.5)
            traces[f"{count} x {length}"] = traced(run(count, length, 1))
        traces |= {f"1 x {alone}": traced(run(1, alone, 1)) for alone in options.prompts}
    return {
        "benchmark": "limits",
        "engine": options.engine,
        "machine": machine.describe(),
        "device": jax.devices()[0].device_kind,
        "model": options.config.stem,
        "dtype": options.dtype,
        "engine_options": options.engine_options,
        "alike_layers": options.alike_layers,
        "prompt_len": length,
        "output_len": [short, long],
        "repeat": options.repeat,
        "memory_gb_per_s": round(speed.memory_bandwidth / 1e9, 1),
        "matmul_tflop_per_s": round(speed.matrix_flops / 1e12, 2),
        "sequences": sequences,
        "prompts": prompts,
        "traces": traces,
    }


def measured_speed(dtype: str) -> NominalSpeed:
    """Bytes/s of a large copy, read and written, or of reading alone where that is more, and operations/s of a large product."""
    source = jnp.ones(1 << 26, jnp.float32)  # an engine leaves little memory, of which ten copies take some at once
    size = 8192 if jax.default_backend() != "cpu" else 2048
    left = jax.random.normal(jax.random.key(0), (size, size), jnp.dtype(dtype))
    copying, reading = (best(jax.jit(function), source) for function in (jnp.copy, jnp.max))
    flops = 2 * size**3 / best(jax.jit(jnp.matmul), left, left)
    return NominalSpeed(max(2 * source.nbytes / copying, source.nbytes / reading), flops, flops)


def best(function: Callable[..., jax.Array], *arrays: jax.Array) -> float:
    """The shortest of five times ten runs in seconds, for one, after one that compiles: launches are hidden behind others."""
    function(*arrays).block_until_ready()
    found = []
    for _ in range(5):
        begun = time.perf_counter()
        for _ in range(10):
            result = function(*arrays)
        result.block_until_ready()
        found.append((time.perf_counter() - begun) / 10)
    return min(found)


@contextmanager
def engine(options: argparse.Namespace) -> Iterator[Generate]:
    alike = alike_layers() if options.alike_layers else nullcontext()
    with alike, workload.open_llm(options, max_num_seqs=max(options.sequences, default=1)) as llm:
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
