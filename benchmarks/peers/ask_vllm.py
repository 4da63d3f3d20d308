"""vLLM for `compare.py`; on a CPU in its CPU build, with 4 GiB of cache."""

from __future__ import annotations

import os
from typing import Any

from asking import Generate, answer

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "4")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import vllm


def open_engine(settings: dict[str, Any]) -> Generate:
    llm = vllm.LLM(skip_tokenizer_init=True, enable_prefix_caching=False, **settings)

    def generate(prompts: list[list[int]], output_len: int) -> int:
        params = vllm.SamplingParams(temperature=0.0, max_tokens=output_len, ignore_eos=True, detokenize=False)
        outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
        return sum(len(output.outputs[0].token_ids) for output in outputs)

    return generate


if __name__ == "__main__":
    answer(open_engine, vllm.__version__)
