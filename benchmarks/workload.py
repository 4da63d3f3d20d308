"""The workload of the offline benchmarks: equal requests of random token ids, any model config, real or random weights."""

from __future__ import annotations

import argparse
import json
import random
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jaxengine import LLM, SamplingParams


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Which model: a checkpoint, or a config.json with random weights."""
    parser.add_argument("--model", help="checkpoint directory or hub id (default: the embedded model)")
    parser.add_argument("--config", type=Path, help="a config.json to run with random weights instead")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--prompt-len", type=int, default=128)
    parser.add_argument("--output-len", type=int, default=64)
    parser.add_argument("--max-model-len", type=int, default=2048)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--engine-options", type=json.loads, default={}, help="further LLM options, as JSON")


@contextmanager
def open_llm(arguments: argparse.Namespace, *, max_num_seqs: int) -> Iterator[LLM]:
    """An engine on token ids, without prefix caching, so that repeated prompts are computed again."""
    options: dict[str, Any] = {
        "dtype": arguments.dtype,
        "max_model_len": arguments.max_model_len,
        "max_num_seqs": max_num_seqs,
        "skip_tokenizer_init": True,
        "enable_prefix_caching": False,
        **arguments.engine_options,
    }
    with tempfile.TemporaryDirectory() as directory:
        if arguments.config is not None:
            shutil.copy(arguments.config, Path(directory) / "config.json")
            options |= {"model": directory, "load_format": "dummy"}
        elif arguments.model is not None:
            options["model"] = arguments.model
        with LLM(**options) as llm:
            yield llm


def prompts(rng: random.Random, *, count: int, length: int, vocab_size: int) -> list[dict[str, list[int]]]:
    """`count` prompts of `length` random token ids."""
    low, high = min(1000, vocab_size // 4), min(30_000, vocab_size)
    return [{"prompt_token_ids": [rng.randrange(low, high) for _ in range(length)]} for _ in range(count)]


def greedy(output_len: int) -> SamplingParams:
    """Greedy, exactly `output_len` tokens."""
    return SamplingParams(temperature=0.0, max_tokens=output_len, ignore_eos=True, detokenize=False)
