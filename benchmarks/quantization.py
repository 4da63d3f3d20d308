"""Quantised matrices beside plain ones: accuracy, bytes, and a layer's cycles by the TPU compiler. JSON out.

accuracy: the model's own programs on this machine. Perplexity of a text with each way to keep weights or caches, and of each
kind of matrix the error that it makes of the text's activations: the root mean square of what is off, over that of the product.
cycles: layers of a model, compiled for a TPU that need not be here, from config.json; Pallas kernels (attention, writing keys
and values) count nothing. products: one product on this machine's CPU, by how the matrix is kept and multiplied.

python benchmarks/quantization.py accuracy --model DIRECTORY --text FILE
python benchmarks/quantization.py cycles --config CONFIG_JSON --target v6e-1 --rows 8 64 256 2048
python benchmarks/quantization.py products --rows 1 2 8 32 128 512

A layer of Llama-3.1-8B on v6e, in thousands of cycles (`cycles`; 465 and 233 are what reading the weights takes):

    rows            8      64     256    2,048
    bfloat16      596     664     744    2,876
    int8          273     331     425    2,549

A product on a CPU, milliseconds for a matrix of `[3072, 1024]` on two shared cores of a Xeon with AVX-512 VNNI (`products`, jax
0.10.2; `pallas_kernels/matmul/cpu.py`):

    rows                            1     2     8    32   128   512
    float32                       3.3   6.0   5.5   6.5  23.1  55.2
    bfloat16                      1.1   1.9   2.1   5.8  24.8  87.0
    int8                          0.7   1.2   0.9   4.4  18.3  57.5
    int8, a row never padded      3.1
    int8 converted to float32     4.6  12.8   9.5  10.1  29.8  62.2
    int8 converted to bfloat16   12.4  19.5  14.1  19.6  50.0  94.3

A single row of bfloat16, which is never given to XLA, takes it 8 to 38 times as long (jax 0.10.2 and 0.12).
"""

from __future__ import annotations

import argparse
import functools
import gzip
import json
import math
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec
from tqdm import tqdm

from jaxengine import LLM, SamplingParams
from jaxengine.bench import machine
from jaxengine.device.layers.cache import Cache
from jaxengine.device.layers.linear import Matrix
from jaxengine.device.layers.schemes import WEIGHT, is_weight
from jaxengine.device.layers.schemes.by_path import Schemes
from jaxengine.device.layers.sharding import share_layers
from jaxengine.device.layers.stack import run_layers
from jaxengine.device.layers.step import Shared, Step
from jaxengine.device.models.parameters import abstract_model, merge
from jaxengine.device.models.registry import read_config, resolve
from jaxengine.device.runtime.cache_layout import lay_out
from jaxengine.device.runtime.memory import parameter_bytes
from jaxengine.options.config import EngineConfig
from jaxengine.startup.model_plan import plan_model
from jaxengine.startup.progress import Progress
from jaxengine.startup.weights import load_parameters, open_weights
from pallas_kernels import kv_page_shape, kv_storage_dtype, matmul
from pallas_kernels.matmul.rows import quantise_rows
from xla_cache.cycles import estimated_cycles
from xla_cache.target import target

PAGES, PAGE_SIZE, PAGES_PER_ROW = 2048, 64, 128
FORMS = (None, "int8", "fp8", "int4")
HEAD = {"lm_head_dtype": "int8"}
WEIGHTS: tuple[dict[str, Any], ...] = (
    {},
    HEAD,
    *({"quantization": form, **head} for form in FORMS[1:] for head in ({}, HEAD)),
)
CACHES: tuple[dict[str, Any], ...] = (
    *({"kv_cache_dtype": dtype} for dtype in ("int8", "fp8", "fp8_e5m2")),
    {"kv_cache_dtype": "fp8", "calculate_kv_scales": True},
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, dest="benchmark")
    accuracy = commands.add_parser("accuracy")
    accuracy.add_argument("--model", help="checkpoint directory; the embedded model when left out")
    accuracy.add_argument("--text", type=Path, required=True, help="a text file, or one in gzip")
    accuracy.add_argument("--dtypes", nargs="+", default=["bfloat16"])
    accuracy.add_argument("--window", type=int, default=256, help="tokens that are scored together")
    accuracy.add_argument("--windows", type=int, default=64)
    accuracy.add_argument("--matrices", action="store_true", help="also the error of each kind of matrix")
    cycles = commands.add_parser("cycles")
    cycles.add_argument("--config", type=Path, required=True, help="config.json of the model")
    cycles.add_argument("--target", default="v6e-1")
    cycles.add_argument("--rows", nargs="+", type=int, default=[8, 64, 256, 2048])
    cycles.add_argument("--layers", type=int, default=4, help="compiled one after the other, as in a model")
    products = commands.add_parser("products")
    products.add_argument("--rows", nargs="+", type=int, default=[1, 2, 8, 32, 128, 512])
    products.add_argument("--shape", nargs=2, type=int, default=[3072, 1024], help="out and in")
    products.add_argument("--matrices", type=int, default=8, help="multiplied in turn, more than the caches hold")
    products.add_argument("--repeat", type=int, default=7)
    arguments = parser.parse_args()
    measures = {"accuracy": measure_accuracy, "cycles": measure_cycles, "products": measure_products}
    results = measures[arguments.benchmark](arguments)
    given = {name: str(value) for name, value in vars(arguments).items()}
    print(json.dumps({"machine": machine.describe(), **given, "results": results}, indent=1))


def measure_accuracy(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    cases = [(dtype, form) for dtype in arguments.dtypes for form in (*WEIGHTS, *CACHES)]
    for dtype, form in tqdm(cases):
        options = {"model": arguments.model, "dtype": dtype, **form}
        logprobs, windows = scored(options, arguments)
        result = {
            "dtype": dtype,
            **form,
            "scored_tokens": len(logprobs),
            "perplexity": round(math.exp(-logprobs.mean()), 4),
            **weigh(options),
        }
        if not form:
            plain = logprobs
        else:
            error = np.abs(plain - logprobs)
            result["logprob_error"] = {
                "mean": round(float(error.mean()), 5),
                "p99": round(float(np.quantile(error, 0.99)), 5),
            }
        if arguments.matrices and "quantization" in form and HEAD.items().isdisjoint(form.items()):
            result["matrix_errors"] = matrix_errors(arguments.model, dtype, form["quantization"], windows[:4])
        found.append(result)
    return found


def scored(options: dict[str, Any], arguments: argparse.Namespace) -> tuple[np.ndarray, list[list[int]]]:
    """Log probabilities of a text's tokens, and its windows. A step has as many places as a window, all of which are scored."""
    places = arguments.window
    shapes = {"buckets": (f"{places}x1",), "max_num_seqs": places, "max_num_batched_tokens": places}
    with LLM(**options, **shapes, bucket_planner="explicit", max_model_len=places + 1) as engine:
        tokens = engine.get_tokenizer().encode(read_text(arguments.text), add_special_tokens=False)
        windows = [tokens[first : first + places] for first in range(0, len(tokens) - places + 1, places)]
        windows = windows[: arguments.windows]
        return np.concatenate(list(scores(engine, windows))), windows


def scores(engine: LLM, windows: list[list[int]]) -> Iterator[np.ndarray]:
    asked = SamplingParams(max_tokens=1, prompt_logprobs=0, detokenize=False)
    for output, window in zip(
        engine.generate([{"prompt_token_ids": window} for window in windows], asked), windows, strict=True
    ):
        positions = output.prompt_logprobs[1:]
        yield np.array([position[token].logprob for position, token in zip(positions, window[1:], strict=True)])


def read_text(path: Path) -> str:
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return data.decode("utf-8")


def weigh(options: dict[str, Any]) -> dict[str, Any]:
    """Bytes of all weights, and of the matrices of layers with what belongs to them."""
    parameters = plan_model(EngineConfig.from_options(**options)).parameters
    matrices = {path.removesuffix("weight") for path in parameters if is_weight(path)}
    of_matrices = {
        path: struct
        for path, struct in parameters.items()
        if f"{path.rpartition('.')[0]}." in matrices and not path.endswith(".bias")
    }
    return {"weight_bytes": parameter_bytes(parameters), "matrix_bytes": parameter_bytes(of_matrices)}


def matrix_errors(
    model: str | None, dtype: str, quantization: str, windows: list[list[int]]
) -> dict[str, dict[str, float]]:
    """By the name of a matrix: the least, median and greatest error over layers, on the plain model's activations."""
    plain, quantised = (built(model, dtype, form) for form in (None, quantization))
    twins = {path: module for path, module in nnx.iter_modules(quantised) if of_layer(module)}
    errors: dict[str, list[float]] = defaultdict(list)
    for path, module in nnx.iter_modules(plain):
        if of_layer(module):
            watch(module, twins[path], errors[".".join(map(str, path[2:] if path[0] == "layers" else path))])
    for window in windows:
        plain_pass(plain, window)
    return {
        name: {"min": round(min(found), 5), "median": round(float(np.median(found)), 5), "max": round(max(found), 5)}
        for name, found in errors.items()
    }


def built(model: str | None, dtype: str, quantization: str | None) -> Any:
    config = EngineConfig.from_options(model=model, dtype=dtype, quantization=quantization)
    plan = plan_model(config)
    arrays = load_parameters(plan, open_weights(plan, config), 0, Progress())
    return merge(plan.graph, tuple(arrays.values()))


def of_layer(module: Any) -> bool:
    return isinstance(module, Matrix) and module.NUMBERS == WEIGHT


def watch(module: Matrix, twin: Matrix, errors: list[float]) -> None:
    multiply = module.multiply

    def compared(x: jax.Array) -> jax.Array:
        exact = multiply(x)
        off = exact - twin.multiply(x)
        errors.append(float(jnp.sqrt(jnp.mean(off * off) / jnp.mean(exact * exact))))
        return exact

    object.__setattr__(module, "multiply", compared)


def plain_pass(model: Any, tokens: list[int]) -> None:
    """One row of all tokens through the model, not compiled, so that what passes can be looked at."""
    count, cache = len(tokens), lay_out(model.cache, max_model_len=len(tokens))
    pages = -(-count // PAGE_SIZE) + 1
    [pool] = cache.pools
    page = kv_page_shape(PAGE_SIZE, pool.heads, pool.key, platform="cpu")
    dtype = kv_storage_dtype(model.layers[0].attention.context.dtype, platform="cpu")
    kept = Cache((jnp.zeros((pool.lanes * pages, *page), dtype),))
    places = jnp.arange(count, dtype=jnp.int32)
    step = Step(
        places,
        page_table=jnp.broadcast_to(jnp.arange(1, pages, dtype=jnp.int32), (cache.num_groups, 1, pages - 1)),
        offsets=jnp.array([0, count], jnp.int32),
        starts=jnp.zeros(1, jnp.int32),
        slot_mapping=jnp.broadcast_to(places + PAGE_SIZE, (cache.num_groups, count)),
        indices=cache.indices,
        num_pages=(pages,),
        page_size=PAGE_SIZE,
        attention_backend="auto",
    )
    x, shared = model.embed_tokens(jnp.asarray(tokens, jnp.int32), places)
    for number, layer in enumerate(model.layers):
        x, kept = layer(x, kept, step.sharing(shared).for_layer(number))


def measure_cycles(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    values = json.loads(arguments.config.read_text()) | {"num_hidden_layers": arguments.layers}
    cases = [(rows, quantization) for rows in arguments.rows for quantization in FORMS]
    return [layer_cycles(values, arguments.target, rows, quantization) for rows, quantization in tqdm(cases)]


def layer_cycles(values: dict[str, Any], name: str, rows: int, quantization: str | None) -> dict[str, Any]:
    chosen = target(name)
    layout = share_layers(chosen.devices()[:1])
    model_class = resolve(values)
    config = read_config(model_class, values)
    graph, parameters = abstract_model(
        model_class, config, dtype=jnp.bfloat16, layout=layout, platform="tpu", schemes=Schemes.by_option(quantization)
    )
    whole = NamedSharding(layout.mesh, PartitionSpec())

    def struct(*shape: int, dtype: Any = jnp.int32, sharding: Any = whole) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    cache = lay_out(graph.cache, max_model_len=PAGES_PER_ROW * PAGE_SIZE)
    [pool] = cache.pools
    assert pool.windows == (None,), "layers that see a window have tables of their own, which are not given here"
    page = kv_page_shape(PAGE_SIZE, pool.heads, pool.key, platform="tpu")
    dtype = jnp.dtype(kv_storage_dtype(jnp.bfloat16, platform="tpu"))
    attended = min(rows, 256)  # rows of a step; with more places than that they are of prompts

    def forward(arrays: Any, x: Any, kv_pages: Any, table: Any, offsets: Any, starts: Any, slots: Any) -> Any:
        step = Step(
            slots,
            table[None],
            offsets,
            starts,
            slots[None],
            shared=Shared((config.rope.angles(slots),)),
            indices=cache.indices,
            num_pages=(PAGES,),
            page_size=PAGE_SIZE,
            attention_backend="auto",
        )
        return run_layers(merge(graph, arrays).layers, x, Cache((kv_pages,)), step)

    given = (
        tuple(parameters.values()),
        struct(rows, config.hidden_size, dtype=jnp.bfloat16),
        struct(pool.lanes * PAGES, *page, dtype=dtype, sharding=layout.kv_sharding()),
        struct(attended, PAGES_PER_ROW),
        struct(attended + 1),
        struct(attended),
        struct(rows),
    )
    with jax.set_mesh(layout.mesh):
        compiled = jax.jit(forward, donate_argnums=2).trace(*given).lower(lowering_platforms=("tpu",)).compile()
    cycles = estimated_cycles(compiled)
    assert cycles is not None
    of_layers = {path: kept for path, kept in parameters.items() if path.startswith("layers.")}
    nbytes, layers = parameter_bytes(of_layers), values["num_hidden_layers"]
    return {
        "rows": rows,
        "quantization": quantization,
        "kilocycles_a_layer": round(cycles / layers / 1e3, 1),
        "weight_bytes_a_layer": nbytes // layers,
        "kilocycles_to_read_them": round(
            nbytes / layers / chosen.chip.memory_bandwidth * chosen.chip.clock_hz / 1e3, 1
        ),
        "temp_mb": round(compiled.memory_analysis().temp_size_in_bytes / 1e6, 2),
    }


def measure_products(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Milliseconds of a product, the least of all repeats, with the forms in turn."""
    generator = np.random.default_rng(0)
    shape = tuple(arguments.shape)
    matrices = [jnp.asarray(generator.integers(-127, 128, size=shape), jnp.int8) for _ in range(arguments.matrices)]
    scales = jnp.asarray(generator.uniform(0.001, 0.1, size=shape[0]), jnp.float32)

    def converted(x: jax.Array, weight: jax.Array, *, dtype: Any) -> jax.Array:
        values, row_scales = quantise_rows(x)
        product = matmul(values.astype(jnp.float32), weight.astype(dtype), platform="cpu")
        return product * row_scales * scales

    forms = {
        "float32": (lambda x, weight: matmul(x, weight, platform="cpu"), jnp.float32),
        "bfloat16": (lambda x, weight: matmul(x, weight, platform="cpu"), jnp.bfloat16),
        "int8": (lambda x, weight: matmul(x, weight, scales=scales, platform="cpu"), jnp.int8),
        "int8, never padded": (lambda x, weight: matmul(x, weight, scales=scales, backend="xla"), jnp.int8),
        "int8 converted to float32": (functools.partial(converted, dtype=jnp.float32), jnp.int8),
        "int8 converted to bfloat16": (functools.partial(converted, dtype=jnp.bfloat16), jnp.int8),
    }
    found = []
    for rows in tqdm(arguments.rows):
        x = jnp.asarray(generator.normal(size=(rows, shape[1])), jnp.float32)
        cases = {
            name: (jax.jit(form), [matrix.astype(dtype) for matrix in matrices])
            for name, (form, dtype) in forms.items()
        }
        times: dict[str, list[float]] = defaultdict(list)
        for _ in range(1 + arguments.repeat):
            for name, (multiply, kept) in cases.items():
                begun = time.perf_counter()
                jax.block_until_ready([multiply(x, matrix) for matrix in kept])
                times[name].append((time.perf_counter() - begun) / len(kept) * 1e3)
        found.append({"rows": rows, "ms": {name: round(min(taken[1:]), 3) for name, taken in times.items()}})
    return found


if __name__ == "__main__":
    main()
