"""Host time of structured output: compiling a grammar, and the mask of each token of a text that follows it. No model. JSON out.

The tokenizer's vocabulary is padded to `--vocab-size` ids, as a model's embedding is. `mask` is the time between a token's
arrival and the finished mask of one sequence; `mask_rows` is that of `--rows` sequences at once, per row.


python benchmarks/structured.py --tokenizer ../shared/data/tokenizers/qwen3 --vocab-size 151936
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from jaxengine.contract.structured_outputs import StructuredOutputsParams
from jaxengine.front.parsers.calls import Function
from jaxengine.front.parsers.tools import TOOL_FORMATS
from jaxengine.grammar.compiler import GrammarCompiler
from jaxengine.grammar.matching import Grammar, GrammarState
from jaxengine.grammar.sources import GrammarSources
from jaxengine.grammar.tokenizer import GrammarTokenizer
from jaxengine.text.tokenizer import Tokenizer

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"type": "string"}},
        "address": {
            "type": "object",
            "properties": {"street": {"type": "string"}, "zip": {"type": "string", "pattern": "^[0-9]{5}$"}},
            "required": ["street", "zip"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "age", "tags", "address"],
    "additionalProperties": False,
}
ADA = {
    "name": "Ada Lovelace of London",
    "age": 36,
    "tags": ["mathematics", "poetry", "engines"],
    "address": {"street": "12 St James's Square", "zip": "12345"},
}
MANY = {f"property_{i}": {"type": "string" if i % 2 else "number"} for i in range(200)}
CALL = Function("add_person", PERSON)


def cases() -> dict[str, tuple[StructuredOutputsParams, str]]:
    """Grammars, and a text that follows each."""
    hermes = TOOL_FORMATS["hermes"]
    call = f'<tool_call>\n{{"name": "add_person", "arguments": {json.dumps(ADA)}}}\n</tool_call>'
    many = {name: "some text" if schema["type"] == "string" else 12.5 for name, schema in MANY.items()}
    return {
        "schema": (StructuredOutputsParams(json=PERSON), json.dumps(ADA, indent=2)),
        "schema_compact": (
            StructuredOutputsParams(json=PERSON, disable_any_whitespace=True),
            json.dumps(ADA, separators=(",", ":")),
        ),
        "schema_200_properties": (
            StructuredOutputsParams(json={"type": "object", "properties": MANY, "required": list(MANY)}),
            json.dumps(many),
        ),
        "json_object": (StructuredOutputsParams(json_object=True), json.dumps({"people": [ADA] * 4})),
        "regex": (StructuredOutputsParams(regex=r"([a-z]+@[a-z]+\.(com|org), )*"), "someone@example.com, " * 12),
        "choice": (StructuredOutputsParams(choice=[f"choice number {i}" for i in range(100)]), "choice number 57"),
        "tool_call": (
            StructuredOutputsParams(grammar=hermes.grammar([CALL], several=True), markers=hermes.markers),
            call,
        ),
    }


def walk(grammar: Grammar, tokens: Sequence[int], rows: int) -> list[float]:
    """Seconds per mask, over a text, of `rows` sequences that follow it together."""
    states = [grammar.start(may_end=True) for _ in range(rows)]
    output = np.array(tokens, np.int32)
    seconds = []
    for length in range(len(tokens) + 1):
        began = time.perf_counter()
        for state in states:
            state.advance(output[:length])
        masks = GrammarState.masks(states)
        seconds.append((time.perf_counter() - began) / rows)
        mask = masks[0]
        assert isinstance(mask, np.ndarray)
        if length < len(tokens):
            token = tokens[length]
            assert mask[token // 32] >> np.uint32(token % 32) & 1, f"token {token} at {length} is not allowed"
    return seconds


def summary(seconds: Sequence[float]) -> dict[str, float]:
    """Median, 99th percentile and largest, in microseconds."""
    ordered = sorted(seconds)
    places = {"median": statistics.median(ordered), "p99": ordered[int(0.99 * (len(ordered) - 1))], "max": ordered[-1]}
    return {name: round(value * 1e6, 1) for name, value in places.items()}


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    tokenizer = Tokenizer.load(arguments.tokenizer)
    vocab_size = arguments.vocab_size or tokenizer.vocab_size
    assert tokenizer.eos_token_id is not None
    shared = GrammarTokenizer(tokenizer, vocab_size=vocab_size, end_ids=(tokenizer.eos_token_id,))
    grammars, compiler = GrammarSources(shared), GrammarCompiler(shared)
    try:
        began = time.perf_counter()
        grammars.warm_up()
        result: dict[str, Any] = {"vocab_size": vocab_size, "warm_up_s": round(time.perf_counter() - began, 2)}
        for name, (params, text) in cases().items():
            began = time.perf_counter()
            grammar = compiler.compile(grammars.source(params))
            compiled = time.perf_counter() - began
            tokens = tokenizer.encode(text, add_special_tokens=False)
            single = [walk(grammar, tokens, 1) for _ in range(arguments.repeat)]
            many = [walk(grammar, tokens, arguments.rows) for _ in range(arguments.repeat)]
            result[name] = {
                "compile_and_check_ms": round(compiled * 1e3, 2),
                "tokens": len(tokens),
                "first_mask_us": round(statistics.median(walked[0] for walked in single) * 1e6, 1),
                "mask_us": summary([seconds for walked in single for seconds in walked]),
                f"mask_{arguments.rows}_rows_us": summary([seconds for walked in many for seconds in walked]),
            }
        return result
    finally:
        grammars.close()
        compiler.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", required=True, help="directory with tokenizer files")
    parser.add_argument("--vocab-size", type=int, help="ids of the model (default: of the tokenizer)")
    parser.add_argument("--rows", type=int, default=64, help="sequences at once")
    parser.add_argument("--repeat", type=int, default=5, help="walks over each text")
    print(json.dumps(measure(parser.parse_args()), indent=2))


if __name__ == "__main__":
    main()
