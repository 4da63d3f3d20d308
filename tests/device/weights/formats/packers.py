"""Quantised matrices written bit by bit as each format's specification says, and what they stand for, in NumPy.

None of it is the reader's: words are put together by shifts, one number after the other, and matrices are multiplied out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, Any]
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Which of eight outputs each four bits of a word are, the lowest first."""


def words(numbers: Array, bits: int, *, order: tuple[int, ...] | None = None) -> Array:
    """Unsigned numbers `[..., n]` -> int32 `[..., n / (32 / bits)]`; the last word is filled with zeros."""
    per_word = 32 // bits
    short = -numbers.shape[-1] % per_word
    numbers = np.concatenate([numbers, np.zeros((*numbers.shape[:-1], short), numbers.dtype)], axis=-1)
    numbers = numbers.reshape(*numbers.shape[:-1], -1, per_word)
    found = np.zeros(numbers.shape[:-1], np.uint64)
    for place in range(per_word):
        of = place if order is None else order[place]
        found |= numbers[..., of].astype(np.uint64) << np.uint64(bits * place)
    return found.astype(np.uint32).view(np.int32)


@dataclass(frozen=True)
class Written:
    """A matrix's tensors by the last part of their names, and what it stands for, float32 `[out, in]`."""

    tensors: Mapping[str, Array]
    matrix: Array


@dataclass(frozen=True)
class Way:
    """A format: what config.json says of it, and how a matrix is written."""

    name: str
    config: Mapping[str, Any]
    write: Callable[[Array], Written] = field(compare=False)

    def __str__(self) -> str:
        return self.name


def integers(matrix: Array, bits: int, group: int | None, *, symmetric: bool, of_input: Array | None = None) -> Any:
    """Unsigned numbers `[out, in]`, scales and zeros `[out, K]` in float16, and the matrix that they stand for."""
    outputs, inputs = matrix.shape
    group = inputs if group is None else group
    of_input = np.arange(inputs) // group if of_input is None else of_input
    most, count = 2**bits - 1, inputs // group
    scales, zeros = np.zeros((outputs, count), np.float16), np.zeros((outputs, count), np.int64)
    for number in range(count):
        part = matrix[:, of_input == number]
        if symmetric:
            scales[:, number] = np.abs(part).max(1) / (most / 2)
            zeros[:, number] = 2 ** (bits - 1)
        else:
            low, high = np.minimum(part.min(1), 0), np.maximum(part.max(1), 0)
            scales[:, number] = (high - low) / most
            zeros[:, number] = np.rint(-low / ((high - low) / most))
    wide = scales.astype(np.float32)[:, of_input]
    numbers = np.clip(np.rint(matrix / wide) + zeros[:, of_input], 0, most).astype(np.int64)
    return numbers, scales, zeros, ((numbers - zeros[:, of_input]) * wide).astype(np.float32)


def awq(matrix: Array, *, group: int = 32) -> Written:
    numbers, scales, zeros, stood_for = integers(matrix, 4, group, symmetric=False)
    tensors = {
        "qweight": words(numbers.T, 4, order=AWQ_ORDER),
        "qzeros": words(zeros.T, 4, order=AWQ_ORDER),
        "scales": np.ascontiguousarray(scales.T),
    }
    return Written(tensors, stood_for)


def gptq(
    matrix: Array,
    *,
    bits: int = 4,
    group: int | None = 32,
    symmetric: bool = True,
    ordered: bool = False,
    offset: int = 1,
) -> Written:
    inputs = matrix.shape[1]
    of_input = np.arange(inputs) // (group or inputs)
    if ordered:  # columns by their magnitude, as GPTQ takes those that matter most first
        of_input = of_input[np.argsort(np.argsort(-np.abs(matrix).sum(0), kind="stable"), kind="stable")]
    numbers, scales, zeros, stood_for = integers(matrix, bits, group, symmetric=symmetric, of_input=of_input)
    tensors = {
        "qweight": np.ascontiguousarray(words(numbers, bits).T),
        "qzeros": words((zeros.T - offset) % 2**bits, bits),
        "scales": np.ascontiguousarray(scales.T),
        "g_idx": of_input.astype(np.int32),
    }
    return Written(tensors, stood_for)


def pack_quantized(
    matrix: Array, *, bits: int = 4, group: int | None = 32, symmetric: bool = True, ordered: bool = False
) -> Written:
    inputs = matrix.shape[1]
    of_input = np.arange(inputs) // (group or inputs)
    if ordered:
        of_input = of_input[np.random.default_rng(0).permutation(inputs)]
    numbers, scales, zeros, stood_for = integers(matrix, bits, group, symmetric=symmetric, of_input=of_input)
    tensors = {
        "weight_packed": words(numbers, bits),
        "weight_scale": scales,
        "weight_shape": np.array(matrix.shape, np.int64),
    }
    if not symmetric:
        tensors["weight_zero_point"] = np.ascontiguousarray(words(zeros.T, bits).T)
    if ordered:
        tensors["weight_g_idx"] = of_input.astype(np.int32)
    return Written(tensors, stood_for)


def int8_channels(matrix: Array) -> Written:
    scales = (np.abs(matrix).max(1, keepdims=True) / 127).astype(np.float32)
    numbers = np.rint(matrix / scales).astype(np.int8)
    return Written({"weight": numbers, "weight_scale": scales}, numbers * scales)


FLOAT4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def nvfp4(matrix: Array, *, modelopt: bool) -> Written:
    """The largest scale of a group becomes the largest float8, the largest number of a group the largest float4."""
    outputs, inputs = matrix.shape
    groups = matrix.reshape(outputs, inputs // 16, 16)
    of_all = np.float32(np.abs(matrix).max() / (448 * 6))
    scales = (np.abs(groups).max(2) / 6 / of_all).astype(ml_dtypes.float8_e4m3fn)
    stored = of_all if modelopt else np.float32(1) / of_all
    wide = scales.astype(np.float32) * of_all if modelopt else scales.astype(np.float32) / stored
    exact = groups / np.where(wide == 0, 1, wide)[..., None]
    nearest = np.abs(np.abs(exact)[..., None] - np.asarray(FLOAT4)).argmin(-1)
    numbers = np.where(exact < 0, -1, 1) * np.asarray(FLOAT4, np.float32)[nearest]
    bits = (nearest + 8 * (exact < 0)).reshape(outputs, inputs).astype(np.uint8)
    octets = bits[:, ::2] | bits[:, 1::2] << 4
    if modelopt:
        tensors = {"weight": octets, "weight_scale": scales, "weight_scale_2": np.asarray(stored)}
        tensors["input_scale"] = np.asarray(0.01, np.float32)
    else:
        tensors = {"weight_packed": octets, "weight_scale": scales, "weight_global_scale": np.asarray([stored])}
        tensors["input_global_scale"] = np.asarray([100.0], np.float32)
    return Written(tensors, (numbers * wide[..., None]).reshape(outputs, inputs).astype(np.float32))


def float8(
    matrix: Array, *, scales: str = "tensor", name: str = "weight_scale", static: bool = False, block: int = 32
) -> Written:
    outputs, inputs = matrix.shape
    if scales == "tensor":
        kept = np.abs(matrix).max(keepdims=True).reshape(()) / 448
        wide = np.broadcast_to(kept, matrix.shape)
    elif scales == "channel":
        kept = np.abs(matrix).max(1, keepdims=True) / 448
        wide = np.broadcast_to(kept, matrix.shape)
    else:
        rows, columns = np.arange(outputs) // block, np.arange(inputs) // block
        kept = np.zeros((rows[-1] + 1, columns[-1] + 1))
        np.maximum.at(kept, (rows[:, None], columns[None]), np.abs(matrix) / 448)
        wide = kept[rows][:, columns]
    wide = wide.astype(np.float32)
    numbers = (matrix / wide).astype(ml_dtypes.float8_e4m3fn)
    tensors = {"weight": numbers, name: np.asarray(kept, np.float32)}
    if static:
        tensors["input_scale"] = np.asarray(0.25, np.float32)
    return Written(tensors, numbers.astype(np.float32) * wide)


def _compressed(stored: str, weights: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None, "output_activations": None, **more}
    return {
        "quant_method": "compressed-tensors",
        "format": stored,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
    }


def _weights(bits: int, group: int | None, *, symmetric: bool, kind: str = "int", **more: Any) -> dict[str, Any]:
    strategy = "channel" if group is None else "group"
    sizes = {"num_bits": bits, "type": kind, "symmetric": symmetric, "strategy": strategy, "group_size": group}
    return {**sizes, "dynamic": False, "observer": "minmax", "observer_kwargs": {}, "actorder": None, **more}


def _gptq_config(**changes: Any) -> dict[str, Any]:
    usual = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True, "desc_act": False, "lm_head": False}
    return {**usual, "damp_percent": 0.01, "true_sequential": True, **changes}


PACKED = (
    Way("awq", {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}, awq),
    Way("gptq", _gptq_config(), gptq),
    Way("gptq zeros", _gptq_config(sym=False), lambda matrix: gptq(matrix, symmetric=False)),
    Way(
        "gptq v2 zeros",
        _gptq_config(sym=False, checkpoint_format="gptq_v2"),
        lambda matrix: gptq(matrix, symmetric=False, offset=0),
    ),
    Way("gptq desc_act", _gptq_config(desc_act=True), lambda matrix: gptq(matrix, ordered=True)),
    Way(
        "gptq 8 bits",
        _gptq_config(bits=8, sym=False, group_size=16, desc_act=True),
        lambda matrix: gptq(matrix, bits=8, group=16, symmetric=False, ordered=True),
    ),
    Way("gptq channels", _gptq_config(group_size=-1), lambda matrix: gptq(matrix, group=None)),
    Way("w4a16", _compressed("pack-quantized", _weights(4, 32, symmetric=True)), pack_quantized),
    Way(
        "w4a16 zeros",
        _compressed("pack-quantized", _weights(4, 16, symmetric=False)),
        lambda matrix: pack_quantized(matrix, group=16, symmetric=False),
    ),
    Way(
        "w4a16 actorder",
        _compressed("pack-quantized", _weights(4, 32, symmetric=True, actorder="group")),
        lambda matrix: pack_quantized(matrix, ordered=True),
    ),
    Way(
        "w8a16 channels",
        _compressed("pack-quantized", _weights(8, None, symmetric=True)),
        lambda matrix: pack_quantized(matrix, bits=8, group=None),
    ),
)
"""Numbers in words."""

_ROUNDED = {"input_activations": {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True}}

FLOAT8 = (
    Way(
        "fp8 tensor", {"quant_method": "fp8", "activation_scheme": "static"}, lambda matrix: float8(matrix, static=True)
    ),
    Way("fp8 channel", {"quant_method": "fp8"}, lambda matrix: float8(matrix, scales="channel")),
    Way(
        "fp8 blocks",
        {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [32, 32]},
        lambda matrix: float8(matrix, scales="block", name="weight_scale_inv"),
    ),
    Way(
        "compressed float8",
        _compressed("float-quantized", _weights(8, None, symmetric=True, kind="float"), **_ROUNDED),
        lambda matrix: float8(matrix, scales="channel"),
    ),
)
"""Numbers as they are."""

_FLOAT4 = {"num_bits": 4, "type": "float", "symmetric": True, "group_size": 16}

NVFP4 = (
    Way(
        "nvfp4",
        _compressed(
            "nvfp4-pack-quantized",
            _weights(4, 16, symmetric=True, kind="float", strategy="tensor_group", scale_dtype="torch.float8_e4m3fn"),
            input_activations={**_FLOAT4, "strategy": "tensor_group", "dynamic": "local"},
        ),
        lambda matrix: nvfp4(matrix, modelopt=False),
    ),
    Way(
        "modelopt nvfp4",
        {
            "quant_method": "modelopt",
            "quant_algo": "NVFP4",
            "config_groups": {"group_0": {"weights": _FLOAT4, "input_activations": _FLOAT4, "targets": ["Linear"]}},
            "ignore": ["lm_head"],
        },
        lambda matrix: nvfp4(matrix, modelopt=True),
    ),
)
"""Floats of 4 bits with scales of groups and one of all."""

W8A8 = Way(
    "w8a8",
    _compressed(
        "int-quantized",
        _weights(8, None, symmetric=True),
        input_activations={"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True},
    ),
    int8_channels,
)
