"""A feed-forward of experts: on this machine's CPU by how its products are made, on a TPU against reading its experts. JSON out.

products: CPU-milliseconds of the feed-forward, sorted rows in and out; the form that serves, with blocks of other lengths, beside
`lax.ragged_dot` and a loop over all experts. cycles: the same layer, routing and sorting included, compiled for a TPU that need
not be here, from config.json. Its products are kernels of the compiler's own, which its estimate leaves out: what is counted is
everything around them, beside what reading the experts takes that so many tokens are likely to choose.

python benchmarks/experts.py products --tokens 8 64 512
python benchmarks/experts.py cycles --config CONFIG_JSON --target v6e-1 --tokens 8 64 256 2048

CPU-milliseconds of a gated feed-forward of 32 experts, 4 of them for each token, 512 wide and 256 inside, on two shared cores of
a Xeon with AVX-512:

                              bfloat16              float32
    tokens                   8    64   512       8    64    512
    lax.ragged_dot          46   262  1609      73   141   1050
    a loop over experts     16   182  1202      23    87    785
    blocks of 8 rows       5.8    17    92      11    18    100
    blocks of 16            10    18    68      12    18     78
    blocks of 32            17    28    65      18    24     68
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec
from tqdm import tqdm

from jaxengine.bench import machine
from jaxengine.device.layers.context import ModelContext
from jaxengine.device.layers.experts import SparseMLP
from jaxengine.device.layers.keeps import CacheIndex
from jaxengine.device.layers.schemes.by_path import Schemes
from jaxengine.device.layers.sharding import share_layers
from jaxengine.device.layers.step import Step
from jaxengine.device.models.registry import read_config, resolve
from pallas_kernels import grouped_matmul
from pallas_kernels.grouped_matmul import cpu
from xla_cache.cycles import estimated_cycles
from xla_cache.target import target

Product = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, dest="benchmark")
    products = commands.add_parser("products")
    products.add_argument("--tokens", nargs="+", type=int, default=[8, 64, 512])
    products.add_argument(
        "--experts", nargs=2, type=int, default=[32, 4], help="how many, and how many a token chooses"
    )
    products.add_argument("--shape", nargs=2, type=int, default=[512, 256], help="width, and channels inside")
    products.add_argument("--blocks", nargs="+", type=int, default=[8, 16, 32])
    products.add_argument("--repeat", type=int, default=7)
    cycles = commands.add_parser("cycles")
    cycles.add_argument("--config", type=Path, required=True, help="config.json of the model")
    cycles.add_argument("--target", default="v6e-1")
    cycles.add_argument("--tokens", nargs="+", type=int, default=[8, 64, 256, 2048])
    arguments = parser.parse_args()
    measure = {"products": measure_products, "cycles": measure_cycles}[arguments.benchmark]
    given = {name: str(value) for name, value in vars(arguments).items()}
    print(json.dumps({"machine": machine.describe(), **given, "results": measure(arguments)}, indent=1))


def measure_products(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    cases = [(dtype, tokens) for dtype in ("bfloat16", "float32") for tokens in arguments.tokens]
    return [time_products(arguments, dtype, tokens) for dtype, tokens in tqdm(cases)]


def time_products(arguments: argparse.Namespace, dtype: str, tokens: int) -> dict[str, Any]:
    """CPU-milliseconds, medians of alternating calls."""
    generator = np.random.default_rng(0)
    (count, chosen), (width, inner) = arguments.experts, arguments.shape
    shapes = ((count, width, inner), (count, width, inner), (count, inner, width))
    matrices = [jnp.asarray(generator.normal(size=shape) / shape[1] ** 0.5, dtype) for shape in shapes]
    pairs = np.concatenate([generator.permutation(count)[:chosen] for _ in range(tokens)])
    sizes = jnp.asarray(np.bincount(pairs, minlength=count), jnp.int32)
    x = jnp.asarray(generator.normal(size=(tokens * chosen, width)), jnp.float32)
    forms = {"ragged_dot": in_xla, "all experts in a loop": all_in_a_loop}
    forms |= {f"blocks of {rows}": in_blocks_of(rows) for rows in arguments.blocks}
    compiled = {
        name: jax.jit(feed_forward(product)).lower(x, matrices, sizes).compile() for name, product in forms.items()
    }
    taken: dict[str, list[float]] = defaultdict(list)
    for _ in range(1 + arguments.repeat):
        for name, run in compiled.items():
            begun = time.process_time()
            run(x, matrices, sizes).block_until_ready()
            taken[name].append(1e3 * (time.process_time() - begun))
    return {"dtype": dtype, "tokens": tokens, "cpu_ms": {name: round(median(of[1:]), 2) for name, of in taken.items()}}


def feed_forward(product: Product) -> Callable[[jax.Array, list[jax.Array], jax.Array], jax.Array]:
    def run(x: jax.Array, matrices: list[jax.Array], sizes: jax.Array) -> jax.Array:
        gate, up, down = matrices
        return product(jax.nn.silu(product(x, gate, sizes)) * product(x, up, sizes), down, sizes)

    return run


def in_xla(x: jax.Array, weights: jax.Array, sizes: jax.Array) -> jax.Array:
    return grouped_matmul(x, weights, sizes, backend="xla")


def in_blocks_of(rows: int) -> Product:
    def product(x: jax.Array, weights: jax.Array, sizes: jax.Array) -> jax.Array:
        kept, cpu.BLOCK_ROWS = cpu.BLOCK_ROWS, rows
        try:
            return grouped_matmul(x, weights, sizes, backend="cpu")
        finally:
            cpu.BLOCK_ROWS = kept

    return product


def all_in_a_loop(x: jax.Array, weights: jax.Array, sizes: jax.Array) -> jax.Array:
    """Every row times the matrix of each expert that has rows."""
    ends, place = jnp.cumsum(sizes), jnp.arange(x.shape[0])[:, None]

    def add(expert: jax.Array, found: jax.Array) -> jax.Array:
        def multiplied(found: jax.Array) -> jax.Array:
            matrix = jax.lax.dynamic_index_in_dim(weights, expert, keepdims=False)
            mine = (place >= ends[expert] - sizes[expert]) & (place < ends[expert])
            product = jax.lax.dot(x.astype(weights.dtype), matrix, preferred_element_type=jnp.float32)
            return jnp.where(mine, product, found)

        return jax.lax.cond(sizes[expert] > 0, multiplied, lambda found: found, found)

    return jax.lax.fori_loop(0, weights.shape[0], add, jnp.zeros((x.shape[0], weights.shape[2]), jnp.float32))


def measure_cycles(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    values = json.loads(arguments.config.read_text())
    cases = [(tokens, quantization) for tokens in arguments.tokens for quantization in (None, "int8")]
    return [layer_cycles(values, arguments.target, tokens, quantization) for tokens, quantization in tqdm(cases)]


def layer_cycles(values: dict[str, Any], name: str, tokens: int, quantization: str | None) -> dict[str, Any]:
    chosen = target(name)
    layout = share_layers(chosen.devices()[:1])
    config = read_config(resolve(values), values)
    context = ModelContext(
        dtype=jnp.dtype(jnp.bfloat16), platform="tpu", layout=layout, scheme=Schemes.by_option(quantization).layers
    )
    structure, state = nnx.split(nnx.eval_shape(lambda: SparseMLP(config.experts, context=context)))
    whole = NamedSharding(layout.mesh, PartitionSpec())

    def struct(*shape: int, dtype: Any = jnp.int32) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=whole)

    def placed(variable: Any) -> jax.ShapeDtypeStruct:
        array, axes = variable.get_value(), variable.get_metadata()["axes"]
        return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=layout.sharding(axes))

    kept = [placed(variable) for _, variable in nnx.to_flat_state(state)]
    step = Step(
        struct(tokens),
        struct(1, 1, 1),
        struct(2),
        struct(1),
        struct(1, tokens),
        indices=(CacheIndex(),),
        num_pages=(1,),
        page_size=1,
        attention_backend="auto",
    )

    def layer(arrays: list[jax.Array], x: jax.Array, step: Step) -> Any:
        return nnx.merge(structure, jax.tree.unflatten(jax.tree.structure(state), arrays))(x, step)

    with jax.set_mesh(layout.mesh):
        traced = jax.jit(layer).trace(kept, struct(tokens, config.hidden_size, dtype=jnp.bfloat16), step)
        compiled = traced.lower(lowering_platforms=("tpu",)).compile()
    cycles = estimated_cycles(compiled)
    assert cycles is not None
    nbytes = sum(array.size * array.dtype.itemsize for array in kept)
    touched = 1 - (1 - config.experts.routing.chosen / config.experts.count) ** tokens
    seconds = nbytes * touched / chosen.chip.memory_bandwidth
    return {
        "tokens": tokens,
        "quantization": quantization,
        "kilocycles_around_the_products": round(cycles / 1e3, 1),
        "kilocycles_to_read_touched_experts": round(seconds * chosen.chip.clock_hz / 1e3, 1),
        "share_of_experts_touched": round(touched, 3),
        "temp_mb": round(compiled.memory_analysis().temp_size_in_bytes / 1e6, 2),
    }


if __name__ == "__main__":
    main()
