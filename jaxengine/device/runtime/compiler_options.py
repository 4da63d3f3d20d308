"""XLA's options for the programs of a platform, and why. Figures are in the benchmarks that make them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import jax

from jaxengine.device.layers.sharding import Layout
from pallas_kernels.tpu.chip import target_chip

PLAIN_LOOPS = {"xla_cpu_use_fusion_emitters": False}
"""With jaxlib 0.10.2, code for a layer's loops compiles faster without XLA:CPU's newer emitters, runs as fast and gives the same
bits; later ones compile as fast by themselves."""

ONE_MODULE = {"xla_cpu_parallel_codegen_split_count": 1}
"""XLA would cut a program into up to 32 modules of LLVM for as many threads. There are programs for all threads to compile, and
the same code costs more in parts, on a busy machine: a decode layer 0.65 for 0.40 s of processor time, sampling 2.9 for 2.4 s.
With nothing else on it a whole first start of the embedded model takes 4% less of the processor and no less time."""

SECOND_LEVEL = {"xla_backend_optimization_level": 2}
"""LLVM's third level, XLA's choice, takes a third more processor time for sampling with every option (1.87 for 1.40 s), and for
a decode layer 0.42 for 0.38 s. It gives the same bits, and steps take as long: loops are made vectors at both levels."""

WHOLE_REDUCTIONS = {"xla_disable_hlo_passes": "tree_reduction_rewriter"}
"""Of sampling on a CPU. XLA would cut each reduction over the vocabulary, some fifty, into levels of 32 values. With every option
the program then takes 0.9 s of the processor to compile, for 0.5, and runs no faster. Tokens are chosen by integers and maxima,
which are exact in any order; the sum behind log probabilities is as exact either way."""


@cache
def cpu_compiler_options() -> Mapping[str, Any]:
    """Options for the CPU's programs that this version of the compiler knows."""
    every: Mapping[str, Any] = {**PLAIN_LOOPS, **ONE_MODULE, **SECOND_LEVEL}
    if _is_known(every):  # one trial for three
        return every
    return {name: value for name, value in every.items() if _is_known({name: value})}


def _is_known(option: Mapping[str, Any]) -> bool:
    try:
        jax.jit(lambda: 0).lower().compile(dict(option))
    except jax.errors.JaxRuntimeError:
        return False
    return True


NO_REMATERIALIZATION = {"xla_disable_hlo_passes": "rematerialization"}
"""Nothing is worth computing again; XLA:GPU's pass counts a donated pool twice, finds the program too large and searches."""

PRODUCTS_APART = {"xla_tpu_dot_dot_fusion": False}
"""The TPU compiler would put a feed-forward network's first product into the second, which takes longer where reading weights is
what takes time (`benchmarks/layer_forms.py`)."""

ON_THE_TENSOR_CORE = {"xla_tpu_enable_offloading_scatter_to_sparsecore": False}
"""A step counts a few tokens, which XLA would hand to a chip's SparseCores; libtpu 0.0.42.1 overflows a stack now and then while
it compiles for those, two programs at once."""

FEW_PLACES = 256
SCOPED_VMEM_KIB = {"v6e": 65_536}
"""What an operation may use of a chip's fast memory in a forward pass of up to `FEW_PLACES`, which reads matrices most of the
time: twice XLA's own choice. For larger passes it gains little for twice the compiler's time (`benchmarks/layer_forms.py`)."""

NOTHING_AHEAD = {"xla_msa_max_cross_program_prefetches": 0}
"""Of a forward pass of up to `FEW_PLACES`. XLA would bring a matrix, or a part of the table of tokens, to VMEM before a program
and once more behind it, for the next run: of DeepSeek-V3's table on 64 v6e 29 MB each time, 31 thousand cycles, for a few of its
rows (`benchmarks/tpu_steps.py`). Of a table in VMEM many rows are taken sooner: 2,048 in some 90 thousand cycles less."""


def compiler_options(
    platform: str, *, chip: str | None = None, places: int | None = None, samples: bool = False
) -> Mapping[str, Any]:
    """XLA's options for a program of a platform: by the TPU's generation, of a forward pass by its token places, and of one that
    `samples`.

    There is none to hide sending between devices: those that are tried in `benchmarks/tpu_steps.py` change nothing or lose
    (`layers/collective_matmul.py` hides what it can).
    """
    if platform == "cpu":
        return {**cpu_compiler_options(), **WHOLE_REDUCTIONS} if samples else cpu_compiler_options()
    if platform == "gpu":
        return NO_REMATERIALIZATION
    always = {**PRODUCTS_APART, **ON_THE_TENSOR_CORE}
    if places is None or places > FEW_PLACES:
        return always
    few = {**always, **NOTHING_AHEAD}
    return {**few, "xla_tpu_scoped_vmem_limit_kib": SCOPED_VMEM_KIB[chip]} if chip in SCOPED_VMEM_KIB else few


def chip_of(platform: str, layout: Layout) -> str | None:
    """The generation of the TPUs, None on other platforms."""
    if platform != "tpu" or layout.mesh is None:
        return None
    with jax.set_mesh(layout.mesh):
        chip = target_chip()
    return None if chip is None else chip.name
