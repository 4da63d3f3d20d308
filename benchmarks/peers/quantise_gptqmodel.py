"""Small checkpoints by GPTQModel, in the formats of GPTQ, AWQ and FP8, for `quantised_checkpoints.py`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

os.environ.setdefault("GPTQMODEL_CPU_WORKERS", "2")  # fewer, as it takes on a small machine, stop it

import torch
from gptqmodel import BACKEND, GPTQModel, QuantizeConfig
from gptqmodel.quantization.awq.utils.packing_utils import dequantize_gemm
from quantising import Job, Recipe, run

BACKENDS = {"gptq": BACKEND.GPTQ_TORCH, "awq": BACKEND.AWQ_TORCH, "fp8": BACKEND.FP8_TORCH}


def quantise(config: Any, backend: BACKEND) -> Any:
    def make(job: Job) -> None:
        model = GPTQModel.load(str(job.source), config, device="cpu")
        tokenizer = job.tokenizer
        model.quantize(
            [{key: value[:128] for key, value in tokenizer(text).items()} for text in job.texts],
            batch_size=1,
            backend=backend,
        )
        model.save(str(job.target))

    return make


def dense(method: str) -> Any:
    def read(job: Job) -> Mapping[str, torch.Tensor]:
        model = GPTQModel.load(str(job.target), device="cpu", backend=BACKENDS[method], dtype=torch.float16)
        kept = {name: module for name, module in model.model.named_modules() if hasattr(module, "qweight")}
        for module in kept.values():
            module.register_buffer("scales", module.scales.float())
        return {f"{name}.weight": matrix(module) for name, module in kept.items()}

    return read


def matrix(module: Any) -> torch.Tensor:
    if hasattr(module, "dequantize_weight"):
        return module.dequantize_weight().T.float()
    return dequantize_gemm(module.qweight, module.qzeros, module.scales, module.bits, module.group_size).T.float()


def of(name: str, method: str = "gptq", model: str = "llama", **options: Any) -> Recipe:
    config = QuantizeConfig(**{"bits": 4, "group_size": 32, "quant_method": method, **options})
    return Recipe(name, quantise(config, BACKENDS[method]), dense(method), model=model)


RECIPES = (
    of("gptq-4", desc_act=False),
    of("gptq-4-128", group_size=128, desc_act=False, act_group_aware=True, model="qwen3"),
    of("gptq-4-desc-act", desc_act=True, act_group_aware=False),
    of("gptq-4-asym", sym=False, desc_act=False),
    of("gptq-4-asym-desc-act", sym=False, desc_act=True, act_group_aware=False),
    of("gptq-4-v2-asym", sym=False, desc_act=False, format="gptq_v2"),
    of("gptq-4-channel", group_size=-1, desc_act=False, act_group_aware=False),
    of("gptq-8", bits=8, desc_act=False),
    of("gptq-8-desc-act", bits=8, desc_act=True, act_group_aware=False),
    of("gptq-8-asym", bits=8, sym=False, desc_act=False),
    of(
        "gptq-dynamic",
        desc_act=False,
        dynamic={r"+:.*\.mlp\.down.*": {"bits": 8, "group_size": 64}, r"-:.*\.0\..*q_proj": {}},
    ),
    of("gptq-4-qwen3-moe", desc_act=False, model="qwen3-moe"),
    of("gptq-3", bits=3, desc_act=False),
    of("awq", "awq", format="gemm", sym=False),
    of("awq-qwen3", "awq", format="gemm", sym=False, group_size=128, model="qwen3"),
    of("awq-sym", "awq", format="gemm", sym=True),
)

if __name__ == "__main__":
    run(RECIPES, "gptqmodel")
