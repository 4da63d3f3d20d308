"""jaxengine for `media_speed.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
from showing import RATE, Generate, Item, answer

import jaxengine
from jaxengine import LLM, SamplingParams


def open_engine(settings: Mapping[str, Any]) -> Generate:
    modality = settings["modality"]
    llm = LLM(settings["model"], enable_prefix_caching=False, **settings["options"])

    def generate(prompt: Sequence[int], items: Sequence[Item], output_len: int) -> Sequence[Sequence[int]]:
        params = SamplingParams(temperature=0.0, max_tokens=output_len, ignore_eos=True, detokenize=False)
        shown = [(item, RATE) if modality == "audio" else item for item in items]
        prompts = [{"prompt_token_ids": list(prompt), "multi_modal_data": {modality: item}} for item in shown]
        return [output.outputs[0].token_ids for output in llm.generate(prompts, params, use_tqdm=False)]

    return generate


if __name__ == "__main__":
    answer(open_engine, {"jaxengine": jaxengine.__version__, "jax": jax.__version__})
