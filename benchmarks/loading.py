"""How fast weights are read, and in what memory: checkpoints of random bfloat16 in a model's shapes, of two depths. JSON out.

    python -m benchmarks.loading --config CONFIG_JSON --layers 4 8 --repeat 3

Each reading is a process of its own, which plans the model and loads its weights as a start does, and compiles nothing. In turn
with it the same file is read plainly (`plain_s`). Before each of both the system is asked to forget the file (`posix_fadvise`).
`peak_bytes` are the most that was resident of the process, `before_bytes` what was before the weights were read; from one depth
to the other the peak grows by `per_weight_byte` bytes for a byte of weights, 1 where none is kept twice.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from jaxengine.bench import machine
from jaxengine.options.config import EngineConfig
from jaxengine.startup.prepare import prepare
from jaxengine.startup.progress import Progress
from jaxengine.startup.weights import load_parameters, open_weights

BLOCK = 16 << 20
"""Bytes of a plain read."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, help="config.json of the model: Llama's or Qwen3's names of tensors")
    parser.add_argument("--layers", type=int, nargs=2, default=[4, 8])
    parser.add_argument("--vocab-size", type=int, default=32_768)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--load", type=Path, help="only load this checkpoint in this process")
    options = parser.parse_args()
    if options.load is not None:
        print(json.dumps(load(options.load)))
        return
    found = []
    for layers in options.layers:
        with tempfile.TemporaryDirectory() as scratch:
            settings = json.loads(options.config.read_text())
            make(Path(scratch), settings | {"num_hidden_layers": layers, "vocab_size": options.vocab_size})
            found.append({"layers": layers, **measure(Path(scratch), options.repeat)})
    (peak, weights), (more_peak, more_weights) = ((each["peak_bytes"], each["weight_bytes"]) for each in found)
    report = {
        "benchmark": "loading",
        "machine": machine.describe(),
        "model": options.config.stem,
        "checkpoints": found,
        "per_weight_byte": round((more_peak - peak) / (more_weights - weights), 3),
    }
    print(json.dumps(report, indent=1))


def make(directory: Path, settings: dict[str, Any]) -> None:
    """Write a checkpoint of these settings in one file."""
    hidden, inner, heads = settings["hidden_size"], settings["intermediate_size"], settings["num_attention_heads"]
    head = settings.get("head_dim") or hidden // heads
    keys = settings["num_key_value_heads"] * head
    of_layer = {
        "self_attn.q_proj": (heads * head, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, heads * head),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
    }
    if settings["model_type"] == "qwen3":
        of_layer |= {"self_attn.q_norm": (head,), "self_attn.k_norm": (head,)}
    outer = {"model.embed_tokens": (settings["vocab_size"], hidden), "model.norm": (hidden,)}
    if not settings.get("tie_word_embeddings"):
        outer["lm_head"] = (settings["vocab_size"], hidden)
    layers = range(settings["num_hidden_layers"])
    shapes = outer | {f"model.layers.{number}.{name}": shape for number in layers for name, shape in of_layer.items()}
    numbers = np.random.default_rng(0).standard_normal(1 << 22, np.float32).astype(ml_dtypes.bfloat16)
    save_file(
        {f"{name}.weight": np.resize(numbers, shape) for name, shape in shapes.items()}, directory / "model.safetensors"
    )
    (directory / "config.json").write_text(json.dumps({**settings, "dtype": "bfloat16"}))


def measure(directory: Path, repeat: int) -> dict[str, Any]:
    """Plain reads and loads in turn."""
    file = directory / "model.safetensors"
    plain, loads = [], []
    for _ in range(repeat):
        forget(file)
        plain.append(read(file))
        forget(file)
        command = [sys.executable, "-m", "benchmarks.loading", "--load", str(directory)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        loads.append(json.loads(done.stdout.splitlines()[-1]))
    return {
        "weight_bytes": file.stat().st_size,
        "plain_s": [round(seconds, 2) for seconds in plain],
        "load_s": [each["load_s"] for each in loads],
        "load_cpu_s": [each["load_cpu_s"] for each in loads],
        "of_plain": round(median(plain) / median(each["load_s"] for each in loads), 2),
        "before_bytes": int(median(each["before_bytes"] for each in loads)),
        "peak_bytes": int(median(each["peak_bytes"] for each in loads)),
    }


def forget(file: Path) -> None:
    """Ask the system to drop what it has of the file in memory."""
    descriptor = os.open(file, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def read(file: Path) -> float:
    """Seconds of reading the file from its beginning to its end."""
    begun, block = time.perf_counter(), memoryview(bytearray(BLOCK))
    with file.open("rb", buffering=0) as stream:
        while stream.readinto(block):
            pass
    return time.perf_counter() - begun


def load(directory: Path) -> dict[str, Any]:
    """What loading the checkpoint takes this process."""
    config = EngineConfig.from_options(model=str(directory), skip_tokenizer_init=True, max_model_len=256)
    model = prepare(config, Progress(), weights=True).model
    opened = open_weights(model, config)
    before, begun, began = resident("VmRSS"), time.perf_counter(), time.process_time()
    arrays = load_parameters(model, opened, 0, Progress())
    seconds, cpu = time.perf_counter() - begun, time.process_time() - began
    assert arrays
    return {
        "load_s": round(seconds, 2),
        "load_cpu_s": round(cpu, 2),
        "before_bytes": before,
        "peak_bytes": resident("VmHWM"),
    }


def resident(name: str) -> int:
    """Bytes of this process: `VmRSS` those that are resident, `VmHWM` the most that ever were."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024


if __name__ == "__main__":
    main()
