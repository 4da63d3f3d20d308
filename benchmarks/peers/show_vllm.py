"""vLLM's CPU build for `media_speed.py`, with 2 GiB of cache; the engine runs in this process, so that its time is told."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from showing import RATE, Generate, Item, answer

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers
import vllm


def open_engine(settings: Mapping[str, Any]) -> Generate:
    modality = settings["modality"]
    llm = vllm.LLM(
        settings["model"],
        enable_prefix_caching=False,
        mm_processor_cache_gb=0,
        enforce_eager=True,
        **settings["options"],
    )

    def generate(prompt: Sequence[int], items: Sequence[Item], output_len: int) -> Sequence[Sequence[int]]:
        params = vllm.SamplingParams(temperature=0.0, max_tokens=output_len, ignore_eos=True, detokenize=False)
        shown = [(item, RATE) if modality == "audio" else item for item in items]
        prompts = [{"prompt_token_ids": list(prompt), "multi_modal_data": {modality: item}} for item in shown]
        return [output.outputs[0].token_ids for output in llm.generate(prompts, params, use_tqdm=False)]

    return generate


if __name__ == "__main__":
    versions = {"vllm": vllm.__version__, "torch": torch.__version__, "transformers": transformers.__version__}
    answer(open_engine, versions)
