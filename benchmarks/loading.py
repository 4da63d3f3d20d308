"""How fast weights are read, and in what memory: a checkpoint of random bfloat16 in a model's shapes, in several files. JSON out.

    python -m benchmarks.loading --config CONFIG_JSON --layers 20 --repeat 3 --kept bfloat16 int8 int4

Each load is a process of its own, which plans the model and loads its weights as a start does, and compiles nothing. In turn
with it the same files are read by threads past the system's cache (`disk_s`, `O_DIRECT`): what the disk gives. Before each load
the system is asked to forget the files (`posix_fadvise`), and the process touches and gives up as much memory as the load will
take (`touch_s`): the host of a virtual machine gives it out at the first touch, which can take longer than all the rest.
`of_disk` is the share of the disk's rate that loading has, by the least of both, `busy_s` the processor's time. Memory is the
process's own (`RssAnon`, of every hundredth of a second): `own_bytes` is the most of it beyond what it had before, `kept_bytes`
what the weights take, `more_bytes` the difference, which would be as large as the weights were these held twice. `mapped_bytes`
is the most that was resident of files, which the system can drop at any time.
"""

from __future__ import annotations

import argparse
import json
import math
import mmap
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
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

BLOCK = 8 << 20
"""Bytes of one read past the system's cache."""
THREADS = 4
"""That read so at once."""
FILE_BYTES = 1_000_000_000
"""After which a checkpoint goes on in its next file."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, help="config.json of the model: Llama's or Qwen3's names of tensors")
    parser.add_argument("--layers", type=int, default=20)
    parser.add_argument("--vocab-size", type=int, default=32_768)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--kept", nargs="+", default=["bfloat16"], help="bfloat16, or a value of --quantization")
    parser.add_argument("--load", type=Path, help="only load this checkpoint in this process, as --kept says")
    options = parser.parse_args()
    if options.load is not None:
        print(json.dumps(load(options.load, options.kept[0])))
        return
    with tempfile.TemporaryDirectory() as scratch:
        settings = json.loads(options.config.read_text())
        settings |= {"num_hidden_layers": options.layers, "vocab_size": options.vocab_size}
        files = make(Path(scratch), settings)
        found = [measure(files, kept, options.repeat) for kept in options.kept]
        report = {
            "benchmark": "loading",
            "machine": machine.describe(),
            "model": f"{options.config.stem}, {options.layers} layers",
            "files": len(files),
            "file_bytes": sum(file.stat().st_size for file in files),
            "loads": found,
        }
    print(json.dumps(report, indent=1))


def make(directory: Path, settings: dict[str, Any]) -> Sequence[Path]:
    """Write a checkpoint of these settings; its files."""
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
    files, names = list[Path](), list[str]()
    where = dict[str, str]()
    for name in shapes:
        names.append(name)
        if 2 * sum(math.prod(shapes[each]) for each in names) > FILE_BYTES or name == list(shapes)[-1]:
            files.append(directory / f"model-{len(files) + 1:05}.safetensors")
            save_file({f"{each}.weight": np.resize(numbers, shapes[each]) for each in names}, files[-1])
            where |= {f"{each}.weight": files[-1].name for each in names}
            names.clear()
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    (directory / "config.json").write_text(json.dumps({**settings, "dtype": "bfloat16"}))
    return files


def measure(files: Sequence[Path], kept: str, repeat: int) -> dict[str, Any]:
    """Reads of the disk and loads in turn."""
    disk, loads = [], []
    for _ in range(repeat):
        forget(files)
        disk.append(read(files))
        forget(files)
        command = [sys.executable, "-m", "benchmarks.loading", "--load", str(files[0].parent), "--kept", kept]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        loads.append(json.loads(done.stdout.splitlines()[-1]))
    memory = {name: int(median(each[name] for each in loads)) for name in ("kept_bytes", "own_bytes", "mapped_bytes")}
    return {
        "kept": kept,
        "disk_s": [round(seconds, 2) for seconds in disk],
        **{name: [each[name] for each in loads] for name in ("touch_s", "load_s", "busy_s")},
        "of_disk": round(min(disk) / min(each["load_s"] for each in loads), 2),
        **memory,
        "more_bytes": memory["own_bytes"] - memory["kept_bytes"],
    }


def forget(files: Sequence[Path]) -> None:
    """Ask the system to drop what it has of the files in memory."""
    for file in files:
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def read(files: Sequence[Path]) -> float:
    """Seconds of reading all of the files past the system's cache, `THREADS` blocks at once."""
    descriptors = [os.open(file, os.O_RDONLY | os.O_DIRECT) for file in files]
    blocks = threading.local()

    def read_at(place: tuple[int, int]) -> None:
        if not hasattr(blocks, "own"):
            blocks.own = mmap.mmap(-1, BLOCK)  # its address is a page's, as O_DIRECT wants it
        os.preadv(place[0], [blocks.own], place[1])

    sizes = [file.stat().st_size for file in files]
    places = [
        (descriptor, offset)
        for descriptor, size in zip(descriptors, sizes, strict=True)
        for offset in range(0, size, BLOCK)
    ]
    begun = time.perf_counter()
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(read_at, places))
    seconds = time.perf_counter() - begun
    for descriptor in descriptors:
        os.close(descriptor)
    return seconds


def load(directory: Path, kept: str) -> dict[str, Any]:
    """What loading the checkpoint takes this process."""
    quantization = None if kept == "bfloat16" else kept
    config = EngineConfig.from_options(
        model=str(directory), skip_tokenizer_init=True, max_model_len=256, quantization=quantization
    )
    model = prepare(config, Progress(), weights=True).model
    opened = open_weights(model, config)
    touched = touch(sum(file.stat().st_size for file in directory.glob("*.safetensors")))
    before, begun, began = resident("RssAnon"), time.perf_counter(), time.process_time()
    with watched() as most:
        arrays = load_parameters(model, opened, 0, Progress())
    seconds, busy = time.perf_counter() - begun, time.process_time() - began
    return {
        "touch_s": round(touched, 2),
        "load_s": round(seconds, 2),
        "busy_s": round(busy, 2),
        "kept_bytes": sum(array.nbytes for array in arrays.values()),
        "own_bytes": most["RssAnon"] - before,
        "mapped_bytes": most["RssFile"],
    }


def touch(file_bytes: int) -> float:
    """Seconds of the first touch of what the system holds of the files and this process of the weights."""
    begun = time.perf_counter()
    np.ones(2 * file_bytes, np.uint8)
    return time.perf_counter() - begun


@contextmanager
def watched() -> Iterator[dict[str, int]]:
    """The most that is resident meanwhile, by the kind of memory."""
    most, done = {"RssAnon": 0, "RssFile": 0}, threading.Event()

    def watch() -> None:
        while True:
            most.update({name: max(bytes, resident(name)) for name, bytes in most.items()})
            if done.wait(0.01):
                return

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield most
    finally:
        done.set()
        watcher.join()


def resident(name: str) -> int:
    """Bytes of this process that are resident: `RssAnon` its own, `RssFile` mapped files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024


if __name__ == "__main__":
    main()
