"""vLLM's CPU build as a peer of `benchmarks/embeddings.py`, which starts this with the Python of vLLM's own environment.

python benchmarks/embeddings_vllm.py DIRECTORY DTYPE

Each line that comes in is a JSON list of batches of token ids; each that goes out has the seconds that they took, by the clock
and of all threads of the process, and the embeddings. The engine runs in this process. The directory needs a tokenizer.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

SETTINGS = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",
}


def main() -> None:
    directory, dtype = sys.argv[1:]
    os.environ.update({name: value for name, value in SETTINGS.items() if name not in os.environ})
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what vLLM prints
    from vllm import LLM

    llm = LLM(directory, runner="pooling", dtype=dtype, max_model_len=512, enforce_eager=True)
    print(json.dumps({"vllm": version()}), file=answers, flush=True)
    for line in sys.stdin:
        batches: list[list[list[int]]] = json.loads(line)
        begun, used = time.perf_counter(), time.process_time()
        outputs: list[Any] = []
        for batch in batches:
            outputs += llm.embed([{"prompt_token_ids": ids} for ids in batch], use_tqdm=False)
        seconds = time.perf_counter() - begun, time.process_time() - used
        found = [[float(number) for number in output.outputs.embedding] for output in outputs]
        print(json.dumps({"seconds": seconds, "embeddings": found}), file=answers, flush=True)


def version() -> str:
    import vllm

    return str(vllm.__version__)


if __name__ == "__main__":
    main()
