"""`jaxengine generate`."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from typing import Any

from jaxengine.contract.sampling_options import OPTIONS
from jaxengine.contract.sampling_params import SamplingParams
from jaxengine.options.config import EngineConfig
from jaxengine.options.flags import add_options, given_options

DEFAULT_MAX_TOKENS = 200
FEW_SEQUENCES = 32

COUNTS = ("n", "max_tokens", "min_tokens", "logprobs")
"""Other fields of `SamplingParams` that are integers."""


def add_command(commands: Any) -> None:
    """Declare the command."""
    generate = commands.add_parser("generate", help="continue a text, or answer it with --chat")
    generate.add_argument(
        "prompts", nargs="+", metavar="PROMPT", help="one or more texts; - reads one from standard input"
    )
    generate.add_argument("--chat", action="store_true", help="put the prompt through the model's chat template")
    generate.add_argument("--system", help="system message, with --chat")
    generate.add_argument("--json", action="store_true", help="print one JSON object per prompt")
    generate.add_argument("--quiet", action="store_true", help="print the text only, no progress")
    _add_sampling_options(generate)
    add_options(generate, EngineConfig)
    generate.set_defaults(run=run)


def _add_sampling_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("sampling options (default: the model's generation_config.json)")
    for option in OPTIONS:
        group.add_argument(_flag(option.name), type=option.kind, default=argparse.SUPPRESS, help=option.about)
    for name in COUNTS:
        group.add_argument(_flag(name), type=int, default=argparse.SUPPRESS)
    group.add_argument("--sampling-seed", type=int, default=argparse.SUPPRESS, help="seed of the request")
    group.add_argument(
        "--stop", action="append", default=argparse.SUPPRESS, help="stop string; may be given several times"
    )
    group.add_argument("--ignore-eos", action="store_true", default=argparse.SUPPRESS)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _sampling(namespace: argparse.Namespace, defaults: SamplingParams) -> SamplingParams:
    names = (*(option.name for option in OPTIONS), *COUNTS, "stop", "ignore_eos")
    given = {name: getattr(namespace, name) for name in names if hasattr(namespace, name)}
    if hasattr(namespace, "sampling_seed"):
        given["seed"] = namespace.sampling_seed
    given.setdefault("max_tokens", DEFAULT_MAX_TOKENS)
    return defaults.replace(**given)


def run(namespace: argparse.Namespace) -> int:
    from jaxengine.api.llm import LLM

    if namespace.quiet:
        logging.getLogger("jaxengine").setLevel(logging.WARNING)
    prompts = [sys.stdin.read() if text == "-" else text for text in namespace.prompts]
    options = given_options(namespace, EngineConfig)
    sequences = len(prompts) * getattr(namespace, "n", 1)
    if sequences <= FEW_SEQUENCES and "bundle" not in options:
        # Nobody else will call this engine: no shapes are compiled for more sequences than there are. A bundle has its own.
        options.setdefault("max_num_seqs", sequences)
    with LLM(**options) as llm:
        sampling = _sampling(namespace, llm.get_default_sampling_params())
        if namespace.chat:
            system = [{"role": "system", "content": namespace.system}] if namespace.system else []
            conversations = [[*system, {"role": "user", "content": prompt}] for prompt in prompts]
            outputs = llm.chat(conversations, sampling, use_tqdm=not namespace.quiet)
        else:
            outputs = llm.generate(prompts, sampling, use_tqdm=not namespace.quiet)
    for prompt, output in zip(prompts, outputs, strict=True):
        if namespace.json:
            completions = [
                {"text": item.text, "finish_reason": item.finish_reason, "num_tokens": len(item.token_ids)}
                for item in output.outputs
            ]
            print(json.dumps({"prompt": prompt, "outputs": completions}, ensure_ascii=False))
        else:
            for item in output.outputs:
                print(item.text if namespace.chat else prompt + item.text)
    return 0
