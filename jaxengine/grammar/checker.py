"""A process that tries grammars before the engine does: one that hangs or crashes the compiler takes only this along.

Run as a script, so that it loads llguidance and nothing of jaxengine. The first line of its input describes the tokenizer, every
further one is a grammar; each line is answered by one: `{"error": null}`, or what is wrong. The first answer has the ids of
special tokens too.
"""

from __future__ import annotations

import json
import random
import resource
import sys
from contextlib import suppress
from typing import Any

MAX_MEMORY = 8 << 30
WALK = 24
"""Tokens tried after the grammar compiled: what its compilation put off shows then."""


def check(tokenizer: Any, grammar: str) -> str | None:
    """What is wrong with a grammar, None when it works."""
    from llguidance import LLMatcher, LLParserLimits

    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=LLParserLimits(verbose_errors=False))
    draw = random.Random(0)
    for step in range(WALK):
        if matcher.is_error():
            return str(matcher.get_error())
        if matcher.is_stopped():
            return None
        mask = int.from_bytes(matcher.compute_bitmask(), "little")
        if matcher.is_error():
            continue
        if mask == 0:
            return "it matches nothing" if step == 0 else f"it has a dead end after {step} tokens"
        token = draw.randrange(mask.bit_length())
        lower = mask & ((1 << token + 1) - 1)
        matcher.consume_token((lower or mask & -mask).bit_length() - 1)
    return None


def main() -> None:
    with suppress(ValueError, OSError):  # macOS has no such limit
        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))
    from llguidance import LLTokenizer

    first = json.loads(sys.stdin.readline())
    try:
        tokenizer = LLTokenizer(first["tokenizer"], n_vocab=first["vocab_size"], eos_token=first["end_ids"])
    except BaseException as failure:  # ValueError, or a Rust panic, which is no Exception
        print(json.dumps({"error": str(failure)}), flush=True)
        return
    special = [token for token in range(first["vocab_size"]) if tokenizer.is_special_token(token)]
    print(json.dumps({"error": None, "special": special}), flush=True)
    for line in sys.stdin:
        try:
            error = check(tokenizer, json.loads(line))
        except Exception as failure:
            error = f"{type(failure).__name__}: {failure}"
        print(json.dumps({"error": error}), flush=True)


if __name__ == "__main__":
    main()
