"""Time and peak host memory of loading weights, each load in a process of its own. JSON out.

Without --checkpoint a random one of Qwen3-0.6B's shapes is written first (bfloat16, several files). `peak_bytes` is what the
process needed above what it held just before the load. The bound is the converted weights and two of the largest tensors; on
the CPU, whose device memory is the host's, it covers both.

python benchmarks/load.py --formats safetensors orbax --devices 1 8
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file
from tqdm import tqdm

from jaxengine.bench import machine

QWEN3_0_6B = {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "bos_token_id": 151643,
    "dtype": "bfloat16",
    "eos_token_id": 151645,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "max_position_embeddings": 40960,
    "max_window_layers": 28,
    "model_type": "qwen3",
    "num_attention_heads": 16,
    "num_hidden_layers": 28,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, help="a safetensors checkpoint directory to load instead")
    parser.add_argument("--files", type=int, default=3, help="files of the random checkpoint")
    parser.add_argument("--formats", nargs="+", default=["safetensors", "orbax", "dummy"])
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16"])
    parser.add_argument("--quantizations", nargs="+", default=["none"], help="none, int8")
    parser.add_argument(
        "--devices", type=int, nargs="+", default=[1], help="virtual CPU devices that share each tensor"
    )
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--measure", type=json.loads, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure is not None:
        print(json.dumps(measure(**arguments.measure)))
        return
    with tempfile.TemporaryDirectory() as scratch:
        checkpoint = arguments.checkpoint or write_checkpoint(Path(scratch) / "random", files=arguments.files)
        cases = [
            {
                "checkpoint": str(checkpoint),
                "load_format": load_format,
                "dtype": dtype,
                "quantization": None if quantization == "none" else quantization,
                "devices": devices,
            }
            for dtype in arguments.dtypes
            for quantization in arguments.quantizations
            for load_format in arguments.formats
            for devices in arguments.devices
        ]
        results = []
        for case in tqdm(cases, desc="load", unit="case"):
            if case["load_format"] == "orbax":
                case["checkpoint"] = str(
                    converted(checkpoint, Path(scratch), dtype=case["dtype"], quantization=case["quantization"])
                )
            runs = [in_fresh_process(case, cold=cold) for _ in range(arguments.repeat) for cold in (True, False)]
            results.append(summary(case, runs))
    print(
        json.dumps(
            {
                "benchmark": "load",
                "machine": machine.describe(),
                "model": str(arguments.checkpoint or "random weights of Qwen3-0.6B's shapes"),
                "repeat": arguments.repeat,
                "results": results,
            },
            indent=2,
        )
    )


def summary(case: dict[str, Any], runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Median speeds with the files in and out of the page cache, and the highest peak of all runs."""
    seconds = {cold: statistics.median(run["seconds"] for run in runs if run["cold"] == cold) for cold in (True, False)}
    peak = max(run["peak_bytes"] for run in runs)
    bound = runs[0]["converted_bytes"] + 2 * runs[0]["largest_tensor_bytes"]
    return {
        **{key: case[key] for key in ("load_format", "dtype", "quantization", "devices")},
        "read_bytes": runs[0]["read_bytes"],
        "converted_bytes": runs[0]["converted_bytes"],
        "largest_tensor_bytes": runs[0]["largest_tensor_bytes"],
        "seconds_uncached": round(seconds[True], 3),
        "seconds_cached": round(seconds[False], 3),
        "gigabytes_per_s_uncached": round(runs[0]["read_bytes"] / seconds[True] / 1e9, 3),
        "gigabytes_per_s_cached": round(runs[0]["read_bytes"] / seconds[False] / 1e9, 3),
        "peak_bytes": peak,
        "bound_bytes": bound,
        "within_bound": peak <= bound,
    }


def measure(checkpoint: str, load_format: str, dtype: str, quantization: str | None, devices: int) -> dict[str, Any]:
    """Load once in this process: seconds, bytes, and the peak of resident memory above where it stood."""
    import jax

    from jaxengine.device.layers.schemes.by_path import Schemes
    from jaxengine.device.layers.sharding import ONE_DEVICE, share_layers
    from jaxengine.device.models import registry
    from jaxengine.device.models.parameters import abstract_model
    from jaxengine.device.weights.checkpoint import OrbaxCheckpoint, open_checkpoint
    from jaxengine.device.weights.dummy import RandomTensors, own_rules
    from jaxengine.device.weights.loader import load
    from jaxengine.device.weights.report import LoadReport

    if load_format == "orbax":
        import orbax.checkpoint  # noqa: F401  the library's own memory is not the load's

    config_json = json.loads((Path(checkpoint) / "config.json").read_text())
    model_class = registry.resolve(config_json)
    config = registry.read_config(model_class, config_json)
    layout = share_layers(jax.devices()) if devices > 1 else ONE_DEVICE
    schemes = Schemes.by_option(quantization)
    model = {"dtype": dtype, "layout": layout, "platform": jax.default_backend()}
    _, parameters = abstract_model(model_class, config, **model, schemes=schemes)
    _, plain = abstract_model(model_class, config, **model)
    reports: list[LoadReport] = []
    before = reset_peak()
    if load_format == "dummy":
        opened, rules = RandomTensors(plain, seed=0), own_rules(plain)
    else:
        opened, rules = open_checkpoint(Path(checkpoint), load_format=load_format), model_class.WEIGHTS
    arrays = load(opened, schemes.table(rules), parameters, config, progress=reports.append)
    stored = () if isinstance(opened, OrbaxCheckpoint) else opened.tensors.values()
    largest = max((tensor.nbytes for tensor in stored), default=0)
    peak = status_bytes("VmHWM")
    return {
        "seconds": reports[-1].seconds,
        "read_bytes": reports[-1].bytes_read,
        "converted_bytes": sum(shard.data.nbytes for array in arrays.values() for shard in array.addressable_shards),
        "largest_tensor_bytes": max(largest, *(array.nbytes for array in arrays.values())),
        "peak_bytes": peak - before,
    }


def reset_peak() -> int:
    """Make the kernel forget this process's peak of resident memory; the bytes resident now."""
    Path("/proc/self/clear_refs").write_text("5")
    return status_bytes("VmRSS")


def status_bytes(name: str) -> int:
    """A field of the kernel's account of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {name}; this benchmark needs Linux")


def in_fresh_process(case: dict[str, Any], *, cold: bool) -> dict[str, Any]:
    """`measure` in a new interpreter, with the checkpoint in the page cache or out of it."""
    for file in Path(case["checkpoint"]).rglob("*"):
        if file.is_file():
            with file.open("rb") as opened:
                if cold:
                    os.fsync(opened.fileno())
                    os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                else:
                    while opened.read(1 << 24):
                        pass
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={case['devices']}"
    completed = subprocess.run(
        [sys.executable, __file__, "--measure", json.dumps(case)],
        env={**os.environ, "XLA_FLAGS": flags.strip(), "JAX_PLATFORMS": "cpu"},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    return {**json.loads(completed.stdout.splitlines()[-1]), "cold": cold}


def converted(checkpoint: Path, scratch: Path, *, dtype: str, quantization: str | None) -> Path:
    """The checkpoint as `jaxengine convert` writes it, made once."""
    output = scratch / f"{dtype}-{quantization}"
    if not output.exists():
        command = [sys.executable, "-m", "jaxengine", "convert", str(checkpoint), str(output), "--dtype", dtype]
        command += [] if quantization is None else ["--quantization", quantization]
        subprocess.run(command, check=True, env={**os.environ, "JAX_PLATFORMS": "cpu"}, stderr=subprocess.DEVNULL)
    return output


def write_checkpoint(directory: Path, *, files: int) -> Path:
    """A random checkpoint of Qwen3-0.6B's names and shapes."""
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(QWEN3_0_6B))
    shapes = list(qwen3_shapes())
    rng = np.random.default_rng(0)
    weight_map = {}
    for number in range(files):
        name = f"model-{number + 1:05}-of-{files:05}.safetensors"
        part = shapes[len(shapes) * number // files : len(shapes) * (number + 1) // files]
        bits = {tensor: rng.integers(0x3C00, 0x3D00, shape, np.uint16) for tensor, shape in part}
        save_file({tensor: value.view(ml_dtypes.bfloat16) for tensor, value in bits.items()}, directory / name)
        weight_map |= dict.fromkeys(bits, name)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return directory


def qwen3_shapes() -> Iterator[tuple[str, tuple[int, ...]]]:
    """Tensor names and shapes, in the order of the layers."""
    width, mlp, head = QWEN3_0_6B["hidden_size"], QWEN3_0_6B["intermediate_size"], QWEN3_0_6B["head_dim"]
    queries, keys = QWEN3_0_6B["num_attention_heads"] * head, QWEN3_0_6B["num_key_value_heads"] * head
    yield "model.embed_tokens.weight", (QWEN3_0_6B["vocab_size"], width)
    for layer in range(QWEN3_0_6B["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        yield f"{prefix}.input_layernorm.weight", (width,)
        yield f"{prefix}.self_attn.q_proj.weight", (queries, width)
        yield f"{prefix}.self_attn.k_proj.weight", (keys, width)
        yield f"{prefix}.self_attn.v_proj.weight", (keys, width)
        yield f"{prefix}.self_attn.o_proj.weight", (width, queries)
        yield f"{prefix}.self_attn.q_norm.weight", (head,)
        yield f"{prefix}.self_attn.k_norm.weight", (head,)
        yield f"{prefix}.post_attention_layernorm.weight", (width,)
        yield f"{prefix}.mlp.gate_proj.weight", (mlp, width)
        yield f"{prefix}.mlp.up_proj.weight", (mlp, width)
        yield f"{prefix}.mlp.down_proj.weight", (width, mlp)
    yield "model.norm.weight", (width,)


if __name__ == "__main__":
    main()
