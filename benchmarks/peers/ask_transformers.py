"""transformers on PyTorch for `compare.py`: `generate` on all prompts as one batch, with its defaults."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from asking import Generate, answer


def open_engine(settings: dict[str, Any]) -> Generate:
    dtype = getattr(torch, settings["dtype"])
    model = transformers.AutoModelForCausalLM.from_pretrained(settings["model"], dtype=dtype).eval()

    def generate(prompts: list[list[int]], output_len: int) -> int:
        ids = torch.tensor(prompts)
        with torch.inference_mode():
            found = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=output_len,
                min_new_tokens=output_len,
            )
        return (found.shape[1] - ids.shape[1]) * found.shape[0]

    return generate


if __name__ == "__main__":
    answer(open_engine, transformers.__version__)
