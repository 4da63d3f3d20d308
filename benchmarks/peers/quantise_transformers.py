"""Small checkpoints by transformers itself and by Optimum, which has GPTQModel do it, for `quantised_checkpoints.py`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from optimum.gptq import GPTQQuantizer
from quantise_gptqmodel import dense as dense_gptq
from quantising import SAMPLE, Job, Recipe, run
from safetensors.torch import load_file
from torchao.quantization import Int8WeightOnlyConfig
from transformers import AutoModelForCausalLM, FineGrainedFP8Config, TorchAoConfig
from transformers.quantizers.quantizer_finegrained_fp8 import FineGrainedFP8HfQuantizer

BLOCK = 128


def by_transformers(config: Any) -> Any:
    def make(job: Job) -> None:
        # rounding needs no GPU, though it asks for one
        FineGrainedFP8HfQuantizer.validate_environment = lambda *given, **options: None
        model = AutoModelForCausalLM.from_pretrained(job.source, quantization_config=config, device_map="cpu")
        model.save_pretrained(job.target)
        job.tokenizer.save_pretrained(job.target)

    return make


def by_optimum(job: Job) -> None:
    model = AutoModelForCausalLM.from_pretrained(job.source, dtype=torch.float16)
    quantizer = GPTQQuantizer(bits=4, dataset=job.texts, group_size=32, desc_act=False, model_seqlen=128)
    quantizer.save(quantizer.quantize_model(model, job.tokenizer), str(job.target))
    job.tokenizer.save_pretrained(job.target)


def dense_fp8(job: Job) -> Mapping[str, torch.Tensor]:
    tensors, found = load_file(job.target / "model.safetensors"), {}
    for name, scales in tensors.items():
        if name.endswith("_scale_inv"):
            weight = tensors[name.removesuffix("_scale_inv")].float()
            wide = scales.float().repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
            found[name.removesuffix("_scale_inv")] = weight * wide[: weight.shape[0], : weight.shape[1]]
    return found


def not_read(job: Job) -> Mapping[str, torch.Tensor]:
    """Of what jaxengine refuses."""
    return {SAMPLE: job.model(torch.float32).state_dict()[SAMPLE]}


RECIPES = (
    Recipe("fp8-blocks", by_transformers(FineGrainedFP8Config()), dense_fp8),
    Recipe("fp8-blocks-qwen3", by_transformers(FineGrainedFP8Config()), dense_fp8, model="qwen3"),
    Recipe("optimum-gptq", by_optimum, dense_gptq("gptq")),
    Recipe("torchao-int8", by_transformers(TorchAoConfig(Int8WeightOnlyConfig())), not_read),
)

if __name__ == "__main__":
    run(RECIPES, "transformers", "optimum", "gptqmodel", "torchao")
