"""Small checkpoints by AutoAWQ, for `quantised_checkpoints.py`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from awq import AutoAWQForCausalLM
from awq.utils.packing_utils import dequantize_gemm
from quantising import SAMPLE, Job, Recipe, run
from safetensors.torch import load_file

BITS = 4


def of(name: str, model: str = "llama", **options: Any) -> Recipe:
    config = {"zero_point": True, "q_group_size": 64, "w_bit": BITS, "version": "GEMM", **options}

    def quantise(job: Job) -> None:
        plain = AutoAWQForCausalLM.from_pretrained(str(job.source), device_map="cpu")
        tokenizer = job.tokenizer
        plain.quantize(
            tokenizer,
            quant_config=config,
            calib_data=job.texts,
            max_calib_samples=len(job.texts),
            max_calib_seq_len=512,
        )
        plain.save_quantized(str(job.target))
        tokenizer.save_pretrained(job.target)

    def dense(job: Job) -> Mapping[str, torch.Tensor]:
        if config["version"] != "GEMM":  # what jaxengine refuses
            return {SAMPLE: job.model(torch.float32).state_dict()[SAMPLE]}
        tensors = load_file(job.target / "model.safetensors")
        names = [name.removesuffix(".qweight") for name in tensors if name.endswith(".qweight")]
        return {f"{name}.weight": matrix(tensors, name, config["q_group_size"]) for name in names}

    return Recipe(name, quantise, dense, model=model)


def matrix(tensors: Mapping[str, torch.Tensor], name: str, group: int) -> torch.Tensor:
    words, zeros, scales = (tensors[f"{name}.{last}"] for last in ("qweight", "qzeros", "scales"))
    return dequantize_gemm(words, zeros, scales.float(), BITS, group).T.float()


RECIPES = (of("autoawq"), of("autoawq-128", model="qwen3", q_group_size=128), of("autoawq-gemv", version="GEMV"))

if __name__ == "__main__":
    run(RECIPES, "autoawq")
