"""`jaxengine generate`."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from typing import Any

from buckets import OPTIONS
from jaxengine.cli.sampling import add_sampling_options, given_sampling
from jaxengine.options.config import EngineConfig
from jaxengine.options.flags import add_options, given_options

DEFAULT_MAX_TOKENS = 200
FEW_SEQUENCES = 32

FEW_BYTES, MOST_BYTES = 64, 512
"""Of one prompt that is read a token a step, and of one that has a shape of its own: longer ones are worth more shapes."""

SHAPING = frozenset(
    ("bundle", "bucket_planner", "deterministic", "max_num_batched_tokens", "speculative_config")
).union(*OPTIONS.values())
"""Options of somebody who decides on shapes."""


def add_commands(commands: Any) -> None:
    """Declare the command."""
    generate = commands.add_parser("generate", help="continue a text, or answer it with --chat")
    generate.add_argument(
        "prompts", nargs="+", metavar="PROMPT", help="one or more texts; - reads one from standard input"
    )
    generate.add_argument("--chat", action="store_true", help="put the prompt through the model's chat template")
    generate.add_argument("--system", help="system message, with --chat")
    generate.add_argument("--json", action="store_true", help="print one JSON object per prompt")
    generate.add_argument("--quiet", action="store_true", help="print the text only, no progress")
    add_sampling_options(generate)
    add_options(generate, EngineConfig)
    generate.set_defaults(run=run)


def run(namespace: argparse.Namespace) -> int:
    if namespace.quiet:
        logging.getLogger("jaxengine").setLevel(logging.WARNING)
    prompts = [sys.stdin.read() if text == "-" else text for text in namespace.prompts]
    options = given_options(namespace, EngineConfig)
    sequences = len(prompts) * getattr(namespace, "n", 1)
    if sequences <= FEW_SEQUENCES and "bundle" not in options:
        # Nobody else will call this engine: no shapes are compiled for more sequences than there are. A bundle has its own.
        options.setdefault("max_num_seqs", sequences)
    if sequences == 1:
        options |= shapes_of_one(prompts[0], options)
    given = {"max_tokens": DEFAULT_MAX_TOKENS, **given_sampling(namespace)}
    if sequences == 1 and sys.stdout.isatty() and not namespace.json:
        import asyncio

        asyncio.run(_stream(namespace, prompts[0], options, given))
        return 0
    return _run_all(namespace, prompts, options, given)


def shapes_of_one(prompt: str, options: dict[str, Any]) -> dict[str, Any]:
    """Options of the embedded model for one short prompt: a shape of one token, and for all but very short ones another of about
    as many as the prompt can have.

    More programs would take longer to compile than they save: a token of a prompt that is read by itself takes 1.7 ms. Nothing
    else may shape steps. A prompt that has more tokens after all takes more steps. Other models are left alone: some compute a
    prompt or a picture whole, and refuse so few tokens a step.
    """
    size = len(prompt.encode())
    shaped = options.get("model") is not None or options.get("max_num_seqs") != 1 or not SHAPING.isdisjoint(options)
    if shaped or size > MOST_BYTES:
        return {}
    places = 1 if size <= FEW_BYTES else 1 << (size - 1).bit_length()
    buckets = tuple(f"1x{count}" for count in sorted({1, places}))
    return {"bucket_planner": "explicit", "buckets": buckets, "max_num_batched_tokens": places}


def _run_all(namespace: argparse.Namespace, prompts: list[str], options: dict[str, Any], given: dict[str, Any]) -> int:
    """Answer all prompts, and print them when the last one is done."""
    from jaxengine.api.llm import LLM

    with LLM(**options) as llm:
        sampling = llm.get_default_sampling_params().replace(**given)
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


async def _stream(namespace: argparse.Namespace, prompt: str, options: dict[str, Any], given: dict[str, Any]) -> None:
    """Answer one prompt for somebody who watches: each token as it comes."""
    from jaxengine.api.async_llm import AsyncLLM
    from jaxengine.cli.terminal.writing import writer
    from jaxengine.contract.sampling_params import RequestOutputKind
    from jaxengine.front.prompts import Prompt

    async with AsyncLLM(**options) as llm:
        asked: Prompt = prompt
        if namespace.chat:
            tokenizer = await llm.get_tokenizer()
            system = [{"role": "system", "content": namespace.system}] if namespace.system else []
            text = tokenizer.apply_chat_template([*system, {"role": "user", "content": prompt}])
            asked = {"prompt_token_ids": tokenizer.encode(text, add_special_tokens=False)}
        params = llm.get_default_sampling_params().replace(**given, output_kind=RequestOutputKind.DELTA)
        with writer(markdown=False) as out:
            out.answer("" if namespace.chat else prompt)
            async for output in llm.generate(asked, params, "generate"):
                out.answer(output.outputs[0].text)
