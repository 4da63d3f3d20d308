"""Operations of models, and on what they keep of sequences: one contract each, many implementations, one definition.

Each op is a folder: the public function with its contract and the table of its backends in `__init__.py`, `reference.py` (the
definition) and one file per backend. Beside them:

    dispatch, checks    how a backend is chosen, and what a call's shapes must be
    storage             how a cache's values lie in memory
    tpu, gpu, native    what kernels of a platform share
    recurrent_rows      what recurrent ops share
    testing, check      cases that every backend is held against, and whether kernels compile for a chip

Letters: `N` token places, `B` rows of tokens that lie in them one after the other, `K` KV heads (query heads are just `heads`),
`H` head size, `P` pages per row, `T` tokens per page, `C` channels and `L` lanes in which a page holds a token's keys and values
(`2K` and `H` but on a TPU); of products `I` inputs, `Q` groups of them that share a scale and `O` outputs, `M` sorted rows and
`G` groups of those; `S` adapters of rank `R`.

Python code depends on jax and numpy. The CPU's C++ (`native/`) needs a compiler and the headers of XLA that jaxlib brings;
without them the other backends serve.
"""

from pallas_kernels.adapted_gate import AdaptedMatrix, adapted_gate
from pallas_kernels.adapter_product import AdapterRows, adapter_product
from pallas_kernels.argmax import argmax
from pallas_kernels.channel_scan import channel_scan
from pallas_kernels.choose_tokens import choose_tokens
from pallas_kernels.chosen_attention import chosen_attention
from pallas_kernels.coded_matmul import coded_matmul, coded_rows, coded_shape
from pallas_kernels.dispatch import AUTO, KernelUnsupported
from pallas_kernels.gated_delta import gated_delta
from pallas_kernels.generalised_delta import generalised_delta
from pallas_kernels.grouped_matmul import grouped_matmul
from pallas_kernels.grouped_mlp import grouped_mlp
from pallas_kernels.grouped_scaled_matmul import grouped_scaled_matmul
from pallas_kernels.inverse_root import inverse_root
from pallas_kernels.latent_attention import latent_attention
from pallas_kernels.layer_norm import layer_norm
from pallas_kernels.matmul import matmul, matmul_each
from pallas_kernels.mean_last import mean_last
from pallas_kernels.packed_matmul import packed_matmul, packed_shape
from pallas_kernels.paged_attention import OP as _ATTENTION
from pallas_kernels.paged_attention import paged_attention
from pallas_kernels.rms_norm import rms_norm
from pallas_kernels.rotate import rotate
from pallas_kernels.row_attention import Relative, row_attention
from pallas_kernels.scaled_matmul import scaled_matmul, scaled_matmul_each
from pallas_kernels.scatter_add import scatter_add, scattered_rows
from pallas_kernels.selective_scan import selective_scan
from pallas_kernels.storage import PACKED_TILE, QUANTISED, kv_page_shape, kv_storage_dtype, latent_page_shape
from pallas_kernels.sum_rows import sum_rows
from pallas_kernels.take_rows import take_rows
from pallas_kernels.threshold import threshold
from pallas_kernels.write_kv import write_kv
from pallas_kernels.write_latents import write_latents
from pallas_kernels.zeros import zeros

QUANTISED_CACHES = QUANTISED
"""The types of values of which caches have scales."""
ATTENTION_BACKENDS = (AUTO, *_ATTENTION.backends)
"""The names that `paged_attention` takes as `backend`."""

__all__ = [
    "ATTENTION_BACKENDS",
    "PACKED_TILE",
    "QUANTISED_CACHES",
    "AdaptedMatrix",
    "AdapterRows",
    "KernelUnsupported",
    "Relative",
    "adapted_gate",
    "adapter_product",
    "argmax",
    "channel_scan",
    "choose_tokens",
    "chosen_attention",
    "coded_matmul",
    "coded_rows",
    "coded_shape",
    "gated_delta",
    "generalised_delta",
    "grouped_matmul",
    "grouped_mlp",
    "grouped_scaled_matmul",
    "inverse_root",
    "kv_page_shape",
    "kv_storage_dtype",
    "latent_attention",
    "latent_page_shape",
    "layer_norm",
    "matmul",
    "matmul_each",
    "mean_last",
    "packed_matmul",
    "packed_shape",
    "paged_attention",
    "rms_norm",
    "rotate",
    "row_attention",
    "scaled_matmul",
    "scaled_matmul_each",
    "scatter_add",
    "scattered_rows",
    "selective_scan",
    "sum_rows",
    "take_rows",
    "threshold",
    "write_kv",
    "write_latents",
    "zeros",
]
