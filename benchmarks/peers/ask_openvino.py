"""OpenVINO GenAI for `compare.py`: its continuous batching, with 2 GiB of cache and its own defaults otherwise.

The settings' `model` is a directory that `optimum-cli export openvino` made of a checkpoint, whose own types of weights are used.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino
import openvino_genai
from asking import Generate, answer


def open_engine(settings: dict[str, Any]) -> Generate:
    scheduling = openvino_genai.SchedulerConfig()
    scheduling.cache_size = 2
    scheduling.max_num_seqs = settings["max_num_seqs"]
    scheduling.enable_prefix_caching = False
    pipeline = openvino_genai.ContinuousBatchingPipeline(settings["model"], scheduling, "CPU")

    def generate(prompts: list[list[int]], output_len: int) -> int:
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = config.min_new_tokens = output_len
        config.ignore_eos, config.do_sample = True, False
        given = [openvino.Tensor(np.asarray([prompt], np.int64)) for prompt in prompts]
        found = pipeline.generate(given, [config] * len(prompts))
        return sum(len(one.m_generation_ids[0]) for one in found)

    return generate


if __name__ == "__main__":
    answer(open_engine, f"openvino {openvino.get_version()}, openvino_genai {openvino_genai.get_version()}")
