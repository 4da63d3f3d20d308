"""How `compare.py` asks an engine that runs in a process of its own: a line of JSON in, a line of JSON out.

Standard library only, because each engine has an environment of its own.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

Generate = Callable[[list[list[int]], int], int]
"""Generates so many tokens greedily for each prompt of token ids; the number of tokens that came."""


def answer(open_engine: Callable[[dict[str, Any]], Generate], version: str) -> None:
    """Open the engine with the settings of the command line, say so, and answer until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what an engine prints is not an answer
    begun = time.perf_counter()
    generate = open_engine(json.loads(sys.argv[1]))
    print(json.dumps({"version": version, "ready_s": round(time.perf_counter() - begun, 1)}), file=answers, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        begun = time.perf_counter()
        generate(asked["prompts"], 1)
        first = time.perf_counter()
        tokens = generate(asked["prompts"], asked["output_len"])
        seconds = time.perf_counter() - first
        found = {"first_token_s": first - begun, "seconds": seconds, "tokens": tokens}
        print(json.dumps(found), file=answers, flush=True)
