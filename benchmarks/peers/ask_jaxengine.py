"""jaxengine for `compare.py`."""

from __future__ import annotations

from typing import Any

from asking import Generate, answer

import jaxengine
from jaxengine import LLM, SamplingParams


def open_engine(settings: dict[str, Any]) -> Generate:
    llm = LLM(skip_tokenizer_init=True, enable_prefix_caching=False, **settings)

    def generate(prompts: list[list[int]], output_len: int) -> int:
        params = SamplingParams(temperature=0.0, max_tokens=output_len, ignore_eos=True, detokenize=False)
        outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
        return sum(len(output.outputs[0].token_ids) for output in outputs)

    return generate


if __name__ == "__main__":
    answer(open_engine, jaxengine.__version__)
