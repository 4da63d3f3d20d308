"""Small checkpoints by llm-compressor, in compressed-tensors' formats, for `quantised_checkpoints.py`."""

from __future__ import annotations

import functools
import json
import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch
from compressed_tensors.compressors import BaseCompressor, unpack_from_int32
from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, QuantizationScheme
from compressed_tensors.quantization.lifecycle.forward import dequantize
from datasets import Dataset
from llmcompressor import oneshot
from llmcompressor.modifiers.quantization import GPTQModifier, QuantizationModifier
from quantising import Job, Recipe, run
from safetensors.torch import load_file

IGNORED = ["lm_head", "re:.*mlp.gate$", "re:.*block_sparse_moe.gate$"]


def compress(job: Job, *modifiers: Any) -> None:
    tokenizer = job.tokenizer
    texts = [{"input_ids": tokenizer(text)["input_ids"][:128]} for text in job.texts]
    model = job.model()
    oneshot(
        model=model, tokenizer=tokenizer, dataset=Dataset.from_list(texts), recipe=list(modifiers), max_seq_length=128,
        num_calibration_samples=len(texts), log_dir=None,
    )  # fmt: skip
    model.save_pretrained(job.target, save_compressed=True)
    tokenizer.save_pretrained(job.target)


def dense(job: Job) -> Mapping[str, torch.Tensor]:
    """By compressed-tensors' own decompression, of each module of the file: transformers reads no experts so."""
    tensors: dict[str, dict[str, torch.Tensor]] = defaultdict(dict)
    for name, tensor in load_file(job.target / "model.safetensors").items():
        module, _, last = name.rpartition(".")
        tensors[module][last] = tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor
    config = QuantizationConfig(**json.loads((job.target / "config.json").read_text())["quantization_config"])
    found = {}
    for module, own in tensors.items():
        if "weight_scale" not in own:
            continue
        schemes = [scheme for scheme in config.config_groups.values() if has(scheme, module)]
        stored = str(getattr(schemes[0], "format", None) or config.format)
        found[f"{module}.weight"] = decompressed(stored, config, schemes[0], own).float()
    return found


def decompressed(stored: str, config: Any, scheme: QuantizationScheme, own: dict[str, torch.Tensor]) -> torch.Tensor:
    compressor = BaseCompressor.get_value_from_registry(stored)
    if (
        hasattr(compressor, "decompress_weight") and not scheme.weights.symmetric
    ):  # it packs zeros that it does not unpack
        shape, scales = own["weight_shape"].tolist(), own["weight_scale"]
        numbers = unpack_from_int32(own["weight_packed"], scheme.weights.num_bits, shape)
        zeros = unpack_from_int32(
            own["weight_zero_point"], scheme.weights.num_bits, (shape[0], scales.shape[1]), packed_dim=0
        )
        return dequantize(numbers, scales, zeros, args=scheme.weights)
    if hasattr(compressor, "decompress_weight"):  # before 0.14
        return compressor(config=config).decompress_weight(compressed_data=own, quantization_args=scheme.weights)
    return compressor.decompress(own, scheme)["weight"]


def has(scheme: QuantizationScheme, module: str) -> bool:
    patterns = [target.removeprefix("re:") for target in scheme.targets]
    return "Linear" in patterns or any(re.match(pattern, module) for pattern in patterns)


def group(targets: list[str], **weights: Any) -> QuantizationScheme:
    return QuantizationScheme(targets=targets, weights=QuantizationArgs(**{"num_bits": 4, "type": "int", **weights}))


def plainly(scheme: str) -> Any:
    return lambda job: compress(job, QuantizationModifier(targets="Linear", scheme=scheme, ignore=IGNORED))


def in_groups(modifier: Any = QuantizationModifier, **options: Any) -> Any:
    def make(job: Job) -> None:
        groups = {"group_0": group(["Linear"], **options)}
        compress(job, modifier(config_groups=groups, ignore=IGNORED))

    return make


def two_schemes(job: Job) -> None:
    groups = {
        "group_0": group(["re:.*self_attn.*"], num_bits=8, strategy="channel"),
        "group_1": group(["re:.*mlp.*"], strategy="group", group_size=64),
    }
    compress(job, QuantizationModifier(config_groups=groups, ignore=[*IGNORED, "model.layers.0.mlp.up_proj"]))


def activation_aware(job: Job) -> None:
    try:
        from llmcompressor.modifiers.transform.awq import AWQModifier

        modifiers = [AWQModifier(), QuantizationModifier(targets=["Linear"], scheme="W4A16_ASYM", ignore=IGNORED)]
    except ImportError:  # before 0.9
        from llmcompressor.modifiers.awq import AWQModifier

        modifiers = [AWQModifier(targets=["Linear"], scheme="W4A16_ASYM", ignore=IGNORED)]
    compress(job, *modifiers)


of = functools.partial(Recipe, dense=dense)
RECIPES = (
    of("w8a8", plainly("W8A8"), round_rows=True),
    of(
        "w8a8-gptq",
        lambda job: compress(job, GPTQModifier(targets="Linear", scheme="W8A8", ignore=IGNORED)),
        round_rows=True,
    ),
    of("w8a16", plainly("W8A16")),
    of("w8a16-channel", in_groups(num_bits=8, strategy="channel")),
    of("w4a16", plainly("W4A16")),
    of(
        "w4a16-gptq",
        lambda job: compress(job, GPTQModifier(targets="Linear", scheme="W4A16", ignore=IGNORED)),
        model="qwen3",
    ),
    of("w4a16-actorder-group", in_groups(GPTQModifier, strategy="group", group_size=32, actorder="group")),
    of("w4a16-actorder-weight", in_groups(GPTQModifier, strategy="group", group_size=32, actorder="weight")),
    of("w4a16-asym", plainly("W4A16_ASYM")),
    of("w4a16-asym-32", in_groups(strategy="group", group_size=32, symmetric=False)),
    of("w4a16-awq", activation_aware),
    of("two-schemes", two_schemes),
    of("fp8", plainly("FP8")),
    of("fp8-dynamic", plainly("FP8_DYNAMIC"), model="qwen3"),
    of("fp8-block", plainly("FP8_BLOCK")),
    of("w4a16-qwen3-moe", plainly("W4A16"), model="qwen3-moe"),
    of("w8a8-qwen3-moe", plainly("W8A8"), model="qwen3-moe", round_rows=True),
    of("fp8-dynamic-mixtral", plainly("FP8_DYNAMIC"), model="mixtral"),
    of("w4afp8", plainly("W4AFP8")),
    of("w4a8", plainly("W4A8")),
    of("nvfp4", plainly("NVFP4")),
    of("nvfp4a16", plainly("NVFP4A16")),
    of("mxfp4", plainly("MXFP4")),
    of("mxfp4a16", plainly("MXFP4A16")),
    of("mxfp8", plainly("MXFP8")),
    of("w3a16", plainly("W3A16")),
)

if __name__ == "__main__":
    run(RECIPES, "llmcompressor", "compressed-tensors")
