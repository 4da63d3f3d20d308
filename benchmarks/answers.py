"""What generation answers, bit for bit, for every model family: recorded once, compared after a change. JSON file.

Small random checkpoints of every architecture, some of them quantised, over several virtual devices or deterministic, the
embedded model and what `--also` names run the same cases: greedy and seeded sampling, penalties, biases, masks, log
probabilities, structured output, prompts of 1 to 600 tokens. Every case runs alone, then together with all others. Only the
public API is used, so that one file of answers serves commits whose insides differ; give options whose names or values changed
with --options. Answers hold for one kind of processor and one version of jaxlib. Those of models with recurrent states may
differ in last bits from run to run, since measured costs choose the shapes; deterministic ones may not.

    export XLA_FLAGS=--xla_force_host_platform_device_count=8
    python benchmarks/answers.py --record answers.json
    python benchmarks/answers.py --compare answers.json --options '{"max_num_batched_tokens": 64, "page_size": 4}'
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tqdm import tqdm

from jaxengine.bench import machine

sys.path.append(str(Path(__file__).resolve().parents[1]))  # last: PYTHONPATH may name another commit

from jaxengine import LLM, SamplingParams
from jaxengine.contract.outputs import PositionLogprobs, RequestOutput
from tests.device.models.cases import ARCHITECTURES, Fixture, random_tensors

FAMILIES = ("llama", "llama-llama3", "mistral-window", "qwen2", "qwen3", "qwen3-biases-windows")
FAMILIES += ("qwen3-moe", "gemma3", "gpt2", "opt", "opt-norm-after-projected")
BFLOAT16 = ("llama-llama3", "gpt2")
KINDS = ("llama", "qwen3-moe", "granite-hybrid", "deepseek-v3", "gemma3", "kimi-linear", "gemma4-experts")
"""One of each kind of cache and of layer: these also run in further ways."""
FURTHER: Mapping[str, Mapping[str, Any]] = {
    "bf16": {"dtype": "bfloat16"},
    "tp2": {"tensor_parallel_size": 2},
    "int8": {"quantization": "int8"},
    "deterministic": {"deterministic": True},
}
DRAFTS = {"method": "ngram", "num_speculative_tokens": 4}
SHORT_LEN = 128
POSITIONS = ("n_positions", "max_position_embeddings")
MAX_LEN = 1024
LENGTHS = (1, 2, 17, 100, 300, 600)
OUTPUT_LEN = 24

PLAIN: Mapping[str, Any] = {"temperature": 0.0, "max_tokens": OUTPUT_LEN, "ignore_eos": True, "logprobs": 5}
RANDOM: Mapping[str, Any] = {**PLAIN, "temperature": 0.9, "seed": 7}
SCORED: Mapping[str, Any] = {**PLAIN, "prompt_logprobs": 5, "max_tokens": 4}
PENALTIES = {"presence_penalty": 0.5, "frequency_penalty": 0.7, "repetition_penalty": 1.3}
BIAS = {"logit_bias": {5: 4.0, 9: -100.0, 30: 1.5}}
ALLOWED = {"allowed_token_ids": [4, 8, 15, 16, 23, 42]}
STOPS = {"ignore_eos": False, "stop_token_ids": list(range(3, 60))}
CASES: Mapping[str, Mapping[str, Any]] = {
    "no log probabilities": PLAIN | {"logprobs": None},
    "only the token's log probability": RANDOM | {"logprobs": 0},
    "random": RANDOM,
    "top_k": RANDOM | {"top_k": 20},
    "top_p": RANDOM | {"top_p": 0.8},
    "min_p": RANDOM | {"min_p": 0.05},
    "all filters": RANDOM | {"top_k": 30, "top_p": 0.9, "min_p": 0.02, "temperature": 1.5},
    "penalties": PLAIN | PENALTIES,
    "penalties, random": RANDOM | PENALTIES | {"top_p": 0.9},
    "logit bias": PLAIN | BIAS,
    "logit bias, random": RANDOM | BIAS | {"min_p": 0.01},
    "allowed ids": PLAIN | ALLOWED,
    "allowed ids, random": RANDOM | ALLOWED | {"top_k": 4},
    "stop ids": RANDOM | STOPS,
    "min tokens": RANDOM | STOPS | {"min_tokens": 9},
    "three sequences": RANDOM | {"n": 3},
    "three sequences, penalties": RANDOM | PENALTIES | {"n": 3, "prompt_logprobs": 2},
}
TEXT_CASES: Mapping[str, Mapping[str, Any]] = {
    "bad words": PLAIN | {"bad_words": ["the", "upon a", "was a", "little"]},
    "bad words, random": RANDOM | {"bad_words": ["the", "upon a", "was a", "little"], "min_tokens": 5},
    "stop text": PLAIN | {"stop": [" and", "."]},
}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "yes"]}}}
STRUCTURES: Mapping[str, Mapping[str, Any]] = {
    "choice": {"choice": ["the cat", "the dog", "a bird"]},
    "regex": {"regex": r"[a-z]{3,9} [0-9]{2}"},
    "json": {"json": {**SCHEMA, "additionalProperties": False, "required": list(SCHEMA["properties"])}},
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--record", type=Path, metavar="FILE", help="write the answers")
    what.add_argument("--compare", type=Path, metavar="FILE", help="tell which answers differ; status 1 if any does")
    parser.add_argument("--also", nargs="*", default=[], metavar="DIR", help="further checkpoints, run in float32")
    parser.add_argument("--only", metavar="WORD", default="", help="run the models whose name contains this word")
    parser.add_argument("--options", type=json.loads, default={}, help="further LLM options, as JSON")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        models = [model for model in list_models(Path(scratch), arguments.also) if arguments.only in model[0]]
        progress = tqdm(models, unit="model")
        answers = {name: answer_all({**options, **arguments.options}) for name, options in progress}
    if arguments.record is not None:
        arguments.record.write_text(json.dumps({"machine": machine.describe(), "answers": answers}))
        return 0
    recorded = json.loads(arguments.compare.read_text())["answers"]
    differences = [line for name in answers for line in compare(name, recorded.get(name, {}), answers[name])]
    print("\n".join([*differences, f"{sum(map(len, answers.values()))} answers, {len(differences)} differ"]))
    return int(bool(differences) or not answers)


def list_models(scratch: Path, also: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The name of each model, and the options that open it."""
    for dtype, cases in (("float32", FAMILIES), ("bfloat16", BFLOAT16)):
        for case in cases:
            directory = write_checkpoint(scratch / dtype / case, case)
            yield f"{case} {dtype}", {"model": str(directory), "dtype": dtype, "skip_tokenizer_init": True}
    yield "embedded float32", {"dtype": "float32"}
    yield "embedded ngram", {"dtype": "float32", "speculative_config": DRAFTS}
    yield "embedded default", {}
    for case in ARCHITECTURES.values():
        options = {"model": str(write_case(scratch / "small" / case, case)), "skip_tokenizer_init": True}
        options |= {"dtype": "float32", "max_model_len": SHORT_LEN}
        yield f"{case} small", options
        for name, further in FURTHER.items() if case in KINDS else ():
            yield f"{case} small {name}", options | further
    for place in also:
        positions = json.loads((Path(place) / "config.json").read_text())["max_position_embeddings"]
        options = {"model": place, "dtype": "float32", "max_model_len": min(positions, MAX_LEN)}
        yield f"{Path(place).name} float32", options


def write_checkpoint(directory: Path, case: str) -> Path:
    """A case of the tests with random weights, and positions enough for the longest prompts."""
    fixture = Fixture.load(case)
    config = {name: MAX_LEN if name in POSITIONS else value for name, value in fixture.config.items()}
    added = MAX_LEN - next(fixture.config[name] for name in POSITIONS if name in fixture.config)
    shapes = {
        name: [shape[0] + added, *shape[1:]] if "wpe" in name or "embed_positions" in name else shape
        for name, shape in fixture.shapes.items()
    }
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(config))
    save_file(random_tensors(shapes), directory / "model.safetensors")
    return directory


def write_case(directory: Path, case: str) -> Path:
    """A case of the tests as it is, with random weights."""
    fixture = Fixture.load(case)
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(fixture.config))
    save_file(fixture.tensors, directory / "model.safetensors")
    return directory


def answer_all(options: Mapping[str, Any]) -> dict[str, Any]:
    """The answers of one model: each case alone, and all together."""
    options = {"max_model_len": MAX_LEN, "max_num_seqs": 8, "max_num_batched_tokens": 128, **options}
    with LLM(**options) as llm:
        with_text = "skip_tokenizer_init" not in options
        cases = make_cases(llm.vocab_size, max_len=options["max_model_len"], with_text=with_text)
        answers = {f"{name}, alone": answer(llm.generate(*case, use_tqdm=False)[0]) for name, case in cases.items()}
        prompts, params = zip(*cases.values(), strict=True)
        outputs = llm.generate(list(prompts), list(params), use_tqdm=False)
    return answers | {f"{name}, together": answer(output) for name, output in zip(cases, outputs, strict=True)}


def make_cases(vocab_size: int, *, max_len: int, with_text: bool) -> dict[str, tuple[Any, SamplingParams]]:
    """Prompt and parameters of each case that fits the model."""
    rng = random.Random(0)
    ids = range(3, vocab_size)
    prompts = {length: {"prompt_token_ids": [rng.choice(ids) for _ in range(length)]} for length in LENGTHS}
    cases: dict[str, tuple[Any, Mapping[str, Any]]] = {}
    for length, prompt in prompts.items():
        if length + OUTPUT_LEN <= max_len:
            cases[f"greedy, prompt of {length}"] = prompt, PLAIN
            cases[f"prompt log probabilities, prompt of {length}"] = prompt, SCORED
    cases |= {name: (prompts[17 if number % 2 else 100], fields) for number, (name, fields) in enumerate(CASES.items())}
    if with_text:
        cases |= {name: ("Once upon a time", fields) for name, fields in TEXT_CASES.items()}
        for name, structure in STRUCTURES.items():
            asked = {"ignore_eos": False, "max_tokens": 40, "structured_outputs": structure}
            cases[f"{name}, greedy"] = "Once upon a time", PLAIN | asked
            cases[f"{name}, random"] = "Once upon a time", RANDOM | asked
    return {name: (prompt, SamplingParams(detokenize=with_text, **fields)) for name, (prompt, fields) in cases.items()}


def answer(output: RequestOutput) -> dict[str, Any]:
    """Everything that must not change, with log probabilities as the hexadecimal bits of float32."""
    outputs = [
        {
            "token_ids": list(sequence.token_ids),
            "logprobs": [bits(place) for place in sequence.logprobs or ()],
            "text": sequence.text,
            "ended": [sequence.finish_reason, sequence.stop_reason],
        }
        for sequence in output.outputs
    ]
    return {"prompt_logprobs": [bits(place) for place in output.prompt_logprobs or ()], "outputs": outputs}


def bits(place: PositionLogprobs | None) -> str:
    """`token rank bits` of each token that is reported of a place."""
    listed = [(token, entry.rank, np.float32(entry.logprob).view(np.uint32)) for token, entry in (place or {}).items()]
    return ", ".join(f"{token} {rank} {value:08x}" for token, rank, value in listed)


def compare(model: str, recorded: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """A line for each case whose answer is not the recorded one."""
    for case in sorted(recorded.keys() | now.keys()):
        if recorded.get(case) != now.get(case):
            yield f"{model}: {case}: {first_difference(recorded.get(case), now.get(case))}"


def first_difference(before: Any, now: Any, place: str = "") -> str:
    """Where two answers differ first, and how."""
    if isinstance(before, dict) and isinstance(now, dict):
        key = next(key for key in before if before[key] != now[key])
        return first_difference(before[key], now[key], f"{place} {key}")
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        number = next(number for number, value in enumerate(before) if value != now[number])
        return first_difference(before[number], now[number], f"{place}[{number}]")
    return f"{place.strip()} was {before!r:.200}, is {now!r:.200}"


if __name__ == "__main__":
    sys.exit(main())
