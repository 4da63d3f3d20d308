"""Matrices in 4 bits as the engine rounds them while it loads, beside ggml's Q4_0 and Q4_K: error, bits, perplexity. JSON out.

`error` is the sum of squares of what is off over that of the numbers, in thousandths: of the model's matrices together, of normal
ones, and of Student's t with five degrees of freedom, whose outliers are like those of large models (both synthetic).
`seconds_per_gb` is processor time to round a gigabyte of bfloat16. ggml is llama.cpp's own library, `libggml-base.so`; where
inputs are no multiple of its blocks zeros are behind them, which llama.cpp would not do: it takes another type there. With
`--text` a plain checkpoint of what the numbers stand for is scored by the engine (`benchmarks.quantization`); embeddings and
the head are plain.

python -m benchmarks.four_bits --model DIRECTORY --ggml LIBRARY --text FILE
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import json
import math
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import dequantize
from safetensors.numpy import save_file
from tqdm import tqdm

from benchmarks.quantization import scored
from jaxengine.bench import machine
from jaxengine.device.layers.schemes.rounding import Rounded, RowsFound, group_scales
from jaxengine.device.layers.schemes.scaled import INT4, INT4_G32
from jaxengine.device.weights.checkpoint import OrbaxCheckpoint, TensorCheckpoint, open_checkpoint
from jaxengine.device.weights.formats import Numbers

BLOCKS = {"Q4_0": (GGMLQuantizationType.Q4_0, 32, 18), "Q4_K": (GGMLQuantizationType.Q4_K, 256, 144)}
"""ggml's number of a type, and numbers and bytes of a block."""
SYNTHETIC = (512, 4096)


@dataclass(frozen=True)
class Form:
    """`bits` of a number with all that belongs to it; `round` gives what stands for a matrix."""

    bits: float
    round: Callable[[np.ndarray], np.ndarray]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="checkpoint directory")
    parser.add_argument("--ggml", type=Path, help="libggml-base.so of a build of llama.cpp")
    parser.add_argument("--text", type=Path, help="a text file, or one in gzip")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--window", type=int, default=256, help="tokens that are scored together")
    parser.add_argument("--windows", type=int, default=64)
    arguments = parser.parse_args()
    forms = of_engine() | (of_ggml(arguments.ggml) if arguments.ggml else {})
    found: dict[str, dict[str, Any]] = {name: {"bits": form.bits} for name, form in forms.items()}
    checkpoint = opened(arguments.model)
    matrices = [checkpoint.view(name).astype(np.float32) for name in names_of_matrices(checkpoint)]
    for name, form in tqdm(forms.items()):
        found[name] |= errors(form, matrices)
    if arguments.text is not None:
        plain, _ = scored({"model": str(arguments.model), "dtype": arguments.dtype}, arguments)
        found = {"plain": {"bits": 16, "perplexity": perplexity(plain)}} | found
        for name, form in tqdm(forms.items()):
            with tempfile.TemporaryDirectory() as directory:
                write_rounded(arguments.model, Path(directory), form)
                logprobs, _ = scored({"model": directory, "dtype": arguments.dtype}, arguments)
            off = float(np.abs(plain - logprobs).mean())
            found[name] |= {"perplexity": perplexity(logprobs), "logprobs_off_by": round(off, 4)}
    given = {name: str(value) for name, value in vars(arguments).items()}
    print(json.dumps({"machine": machine.describe(), **given, "results": found}, indent=1))


def of_engine() -> dict[str, Form]:
    """What `quantization='int4'` and `'int4_g32'` are, and the same with other groups and scales and without zeros."""
    kept = {
        "int4": INT4,
        "int4_g32": INT4_G32,
        "groups of 32, 16 bits": Numbers(dtype="int4", group=32, zeros=True),
        "groups of 64, bytes": Numbers(dtype="int4", group=64, zeros=True, byte_scales=True),
        "groups of 128, no zeros": Numbers(dtype="int4", group=128),
        "groups of 32, no zeros": Numbers(dtype="int4", group=32),
    }
    return {
        name: Form(
            4 + (8 if numbers.byte_scales else 16) * (1 + numbers.zeros) / (numbers.group or math.inf),
            functools.partial(stood_for, numbers),
        )
        for name, numbers in kept.items()
    }


def stood_for(numbers: Numbers, matrix: np.ndarray) -> np.ndarray:
    """A matrix of what the engine keeps of one."""
    rows, inputs = (slice(0, size) for size in matrix.shape)
    found, integers = RowsFound(), np.empty(matrix.shape, np.int8)
    Rounded(matrix, numbers, group_scales, found).fill(integers, (rows, inputs))
    own = np.arange(inputs.stop) // (numbers.group or inputs.stop)
    scales, zeros = (part[:, own] for part in found.of(matrix, rows, numbers, group_scales))
    return (integers - zeros) * scales


def of_ggml(path: Path) -> dict[str, Form]:
    quantise = ctypes.CDLL(str(path)).ggml_quantize_chunk
    quantise.restype = ctypes.c_size_t
    quantise.argtypes = [ctypes.c_int, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 3, ctypes.c_void_p]

    def by_blocks(name: str, matrix: np.ndarray) -> np.ndarray:
        kind, block, nbytes = BLOCKS[name]
        outputs, inputs = matrix.shape
        padded = np.pad(matrix.astype(np.float32), ((0, 0), (0, -inputs % block)))
        blocks = np.empty((outputs, padded.shape[1] // block * nbytes), np.uint8)
        written = quantise(kind, padded.ctypes.data, blocks.ctypes.data, 0, *padded.shape, None)
        assert written == blocks.nbytes
        return np.ascontiguousarray(dequantize(blocks, kind)[:, :inputs])  # others are written to files wrongly

    return {
        name: Form(8 * nbytes / block, functools.partial(by_blocks, name))
        for name, (_, block, nbytes) in BLOCKS.items()
    }


def opened(model: Path) -> TensorCheckpoint:
    checkpoint = open_checkpoint(model)
    assert not isinstance(checkpoint, OrbaxCheckpoint), "a converted checkpoint has its matrices stacked or turned"
    return checkpoint


def names_of_matrices(checkpoint: TensorCheckpoint) -> list[str]:
    return [name for name, tensor in checkpoint.tensors.items() if ".layers." in name and len(tensor.shape) == 2]


def errors(form: Form, matrices: list[np.ndarray]) -> dict[str, Any]:
    generator = np.random.default_rng(0)
    synthetic = {"normal": generator.standard_normal(SYNTHETIC), "student": generator.standard_t(5, SYNTHETIC)}
    found = {name: error(form, [matrix.astype(np.float32)]) for name, matrix in synthetic.items()}
    narrow = synthetic["normal"].astype(ml_dtypes.bfloat16)
    before = time.process_time()
    form.round(narrow)
    taken = time.process_time() - before
    return {"error": {"model": error(form, matrices), **found}, "seconds_per_gb": round(taken / narrow.nbytes * 1e9, 1)}


def error(form: Form, matrices: list[np.ndarray]) -> float:
    off = sum(float(np.square(form.round(matrix) - matrix).sum()) for matrix in matrices)
    return round(1e3 * off / sum(float(np.square(matrix).sum()) for matrix in matrices), 2)


def write_rounded(model: Path, directory: Path, form: Form) -> None:
    """A checkpoint like `model` with what stands for its matrices."""
    for file in model.iterdir():
        if file.is_file() and not file.name.endswith((".safetensors", ".index.json")):
            shutil.copy(file, directory)
    checkpoint = opened(model)
    matrices = set(names_of_matrices(checkpoint))
    views = {name: checkpoint.view(name).astype(np.float32) for name in checkpoint.tensors}
    rounded = {name: form.round(view) if name in matrices else view for name, view in views.items()}
    save_file(rounded, directory / "model.safetensors", {"format": "pt"})


def perplexity(logprobs: np.ndarray) -> float:
    return round(math.exp(-logprobs.mean()), 3)


if __name__ == "__main__":
    main()
