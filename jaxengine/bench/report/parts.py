"""The parts of a report, one a process: `python -m jaxengine.bench.report.parts PART [quick] [AFTER]` prints lines of JSON.

A line `{"begins": ...}` says what is tried, so that who reads knows what a crash was in; the others are results.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from jaxengine.errors import JaxEngineError

RECORDED = Path(__file__).with_name("recorded.json")
QUICK_CASES = 2
PROMPTS = (
    "Once upon a time",
    "The fox and the crow",
    "What is 7 + 5?",
    "In the valley of Willowmere",
    "Grace stood at the window and",
    "A",
)
NEW_TOKENS = 24
SMALL: Mapping[str, Any] = {"max_num_seqs": 8, "max_num_batched_tokens": 128, "max_model_len": 512}
BILLION = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}
"""The shapes of Llama-3.2-1B, with random weights."""

Lines = Iterator[Mapping[str, Any]]


def devices(quick: bool, after: int) -> Lines:
    """What the machine has."""
    import jax

    from jaxengine.bench.machine import describe
    from jaxengine.device.runtime.target import device_memory_bytes
    from xla_cache.library import NoCompilerError, find_compiler

    found = jax.devices()
    try:
        find_compiler()
        compiler = "found"
    except NoCompilerError:
        compiler = "none"
    yield {
        **describe(),
        "platform": found[0].platform,
        "device": found[0].device_kind,
        "num_devices": len(found),
        "device_memory_gib": round(device_memory_bytes(found) / 2**30, 2),
        "platform_version": getattr(found[0].client, "platform_version", "").splitlines(),
        "cxx_compiler": compiler,
    }


def kernels(quick: bool, after: int) -> Lines:
    """Every case of every op on this device, from number `after` on."""
    import jax

    from jaxengine.startup.native import register_native
    from jaxengine.startup.native_libraries import native_directory
    from pallas_kernels.testing.conformance import judge, trials
    from xla_cache.library import NoCompilerError

    platform = jax.default_backend()
    library = None
    if platform == "cpu":
        with suppress(NoCompilerError):  # its backends refuse then, with the reason
            library, _ = register_native(native_directory())
    for number, trial in enumerate(trials(platform, most=QUICK_CASES if quick else None)):
        if number < after:
            continue
        named = {"op": trial.suite.op.name, "backend": trial.backend, "case": str(trial.case)}
        yield {"begins": {"number": number, **named}}
        try:
            verdict = judge(trial, platform, library=library)
            told = {"outcome": verdict.outcome, "off": verdict.off, "reason": verdict.reason}
        except Exception as error:  # whatever a compiler raises: the others are still of interest
            told = {"outcome": "fails", "off": None, "reason": f"{type(error).__name__}: {error}"}
        yield {"number": number, **named, **told}


def parity(quick: bool, after: int) -> Lines:
    """The embedded model in float32, against what it answered on a CPU, alone and together."""
    recorded = json.loads(RECORDED.read_text())
    together, alone = _answers()
    tokens = sum(len(ids) for ids, _ in recorded)
    same = [_same(ids, wanted) for (ids, _), (wanted, _) in zip(together, recorded, strict=True)]
    off = [
        abs(a - b)
        for (_, found), (_, wanted), count in zip(together, recorded, same, strict=True)
        for a, b in zip(found[:count], wanted[:count], strict=True)
    ]
    yield {
        "requests": len(recorded),
        "requests_with_the_recorded_tokens": sum(
            count == len(wanted) for count, (wanted, _) in zip(same, recorded, strict=True)
        ),
        "tokens": tokens,
        "tokens_until_the_first_that_differs": sum(same),
        "largest_difference_of_a_log_probability": max(off, default=None),
        "requests_with_the_same_tokens_alone_and_together": sum(
            a[0] == b[0] for a, b in zip(alone, together, strict=True)
        ),
    }


def _same(found: list[int], wanted: list[int]) -> int:
    return next((at for at, (a, b) in enumerate(zip(found, wanted, strict=False)) if a != b), len(wanted))


def _answers() -> tuple[list[Any], list[Any]]:
    """Token ids and log probabilities of each prompt, answered together and each alone."""
    from jaxengine.api.llm import LLM
    from jaxengine.contract.sampling_params import SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True, logprobs=0)

    def of(outputs: Any) -> list[Any]:
        answers = [output.outputs[0] for output in outputs]
        return [
            (
                list(answer.token_ids),
                [step[token].logprob for step, token in zip(answer.logprobs, answer.token_ids, strict=True)],
            )
            for answer in answers
        ]

    with LLM(dtype="float32", **SMALL) as llm:
        together = of(llm.generate(list(PROMPTS), params, use_tqdm=False))
        llm.reset_prefix_cache()
        alone = [answer for prompt in PROMPTS for answer in of(llm.generate(prompt, params, use_tqdm=False))]
    return together, alone


def speed(quick: bool, after: int) -> Lines:
    """Prefill and decode against the floor, and what the device reads and multiplies: of the embedded model, and unless this is
    quick or a CPU, of one with a billion random weights."""
    import jax

    sizes = (1, 8) if quick else (1, 8, 64)
    models: dict[str, dict[str, Any]] = {"embedded": {}}
    with tempfile.TemporaryDirectory() as directory:
        if jax.default_backend() != "cpu" and not quick:
            config = Path(directory) / "config.json"
            config.write_text(json.dumps(BILLION))
            models["1 B, random"] = {"model": str(config), "load_format": "dummy", "skip_tokenizer_init": True}
        for name, options in models.items():
            yield {"begins": {"model": name}}
            for row in _accounted(options, sizes):
                yield {"model": name, **row}


def _accounted(options: Mapping[str, Any], sizes: tuple[int, ...]) -> list[dict[str, Any]]:
    from jaxengine.bench.account import account
    from jaxengine.options.config import EngineConfig
    from jaxengine.startup.build import build_engine
    from jaxengine.startup.model_plan import plan_model

    config = EngineConfig.from_options(
        **{**SMALL, "max_num_seqs": max(sizes), "max_num_batched_tokens": 512, **options}
    )
    engine, plan = build_engine(config), plan_model(config, weights=False)
    try:
        return [row for size in sizes for row in account(engine, plan, batch_size=size, input_len=128, output_len=16)]
    finally:
        engine.close()


PARTS: Mapping[str, Callable[[bool, int], Lines]] = {
    "devices": devices,
    "kernels": kernels,
    "parity": parity,
    "speed": speed,
}


def main(words: list[str]) -> int:
    """Run a part; `record` writes what `parity` compares with."""
    import logging

    logging.getLogger("jaxengine").setLevel(logging.ERROR)
    part, *rest = words
    if part == "record":
        together, _ = _answers()
        rows = [[ids, [round(value, 5) for value in values]] for ids, values in together]
        RECORDED.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")
        return 0
    try:
        for line in PARTS[part]("quick" in rest, int(rest[-1]) if rest and rest[-1].isdigit() else 0):
            print(json.dumps(line), flush=True)
    except JaxEngineError as error:
        print(json.dumps({"outcome": "fails", "reason": f"{type(error).__name__}: {error}"}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
