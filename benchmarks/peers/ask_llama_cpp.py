"""llama.cpp for `compare.py`, by its C interface as llama-cpp-python declares it: every prompt a sequence, and each step a batch.

As `llama-batched-bench` does it: prompts in batches of 2,048 tokens, then a token of each sequence at a time, with a thread for
each processor. The settings' `model` is a GGUF file, whose own types of weights are used.
"""

from __future__ import annotations

import os
from typing import Any

import llama_cpp
import numpy as np
from asking import Generate, answer

BATCH = 2048
"""Tokens of one call, llama.cpp's own default."""
PAD = 256
"""llama.cpp rounds the places of a sequence up to this many."""


def open_engine(settings: dict[str, Any]) -> Generate:
    llama_cpp.llama_backend_init()
    model = llama_cpp.llama_model_load_from_file(settings["model"].encode(), llama_cpp.llama_model_default_params())
    if model is None:
        raise SystemExit(f"llama.cpp cannot load {settings['model']}: a GGUF file is needed")
    sequences = settings["max_num_seqs"]
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = sequences * -(-settings["max_model_len"] // PAD) * PAD
    params.n_seq_max, params.n_batch = sequences, BATCH
    params.n_threads = params.n_threads_batch = len(os.sched_getaffinity(0))
    context = llama_cpp.llama_init_from_model(model, params)
    if context is None:
        raise SystemExit(f"llama.cpp has no memory for {sequences} sequences of {settings['max_model_len']} tokens")
    vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    batch = llama_cpp.llama_batch_init(BATCH, 0, 1)

    def decode(tokens: list[tuple[int, int, int, bool]]) -> list[int]:
        """Run tokens, each with its position, its sequence and whether the next is wanted; the likeliest next ones."""
        following = []
        for start in range(0, len(tokens), BATCH):
            part = tokens[start : start + BATCH]
            batch.n_tokens = len(part)
            for place, (token, position, sequence, wanted) in enumerate(part):
                batch.token[place], batch.pos[place], batch.logits[place] = token, position, wanted
                batch.n_seq_id[place], batch.seq_id[place][0] = 1, sequence
            if status := llama_cpp.llama_decode(context, batch):
                raise SystemExit(f"llama.cpp did not decode {len(part)} tokens: status {status}")
            for place, (*_, wanted) in enumerate(part):
                if wanted:
                    logits = llama_cpp.llama_get_logits_ith(context, place)
                    following.append(int(np.ctypeslib.as_array(logits, (vocabulary,)).argmax()))
        return following

    def generate(prompts: list[list[int]], output_len: int) -> int:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), False)
        following = decode(
            [
                (token, position, sequence, position == len(prompt) - 1)
                for sequence, prompt in enumerate(prompts)
                for position, token in enumerate(prompt)
            ]
        )
        count = len(following)
        for step in range(output_len - 1):
            following = decode(
                [
                    (token, len(prompt) + step, sequence, True)
                    for sequence, (token, prompt) in enumerate(zip(following, prompts, strict=True))
                ]
            )
            count += len(following)
        return count

    return generate


if __name__ == "__main__":
    answer(
        open_engine,
        f"llama-cpp-python {llama_cpp.__version__}, {llama_cpp.llama_print_system_info().decode().strip()}",
    )
