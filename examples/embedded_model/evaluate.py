"""`python -m examples.embedded_model.evaluate DIR`: how often a greedy answer is right, per skill.

A greedy answer equals the expected text exactly when, with that text given, every one of its tokens is the most likely
next one. So one forward pass over prompt and answer examines a question, without generating.
"""

import argparse
import json
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from safetensors.flax import load_file
from tokenizers import Tokenizer

from examples.embedded_model.model import ModelConfig, Params, forward, shapes
from examples.embedded_model.skills import SKILLS, Question, questions
from examples.embedded_model.tokenizer import load
from jaxengine.embedded import checkpoint_path

LENGTH, BATCH = 640, 10
HEADING = "\n## Accuracy\n"


def load_checkpoint(directory: Path) -> tuple[Params, ModelConfig]:
    """The parameters of a checkpoint directory, stacked for training code and in float32."""
    settings = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    config = ModelConfig(
        vocab_size=settings["vocab_size"],
        hidden_size=settings["hidden_size"],
        num_layers=settings["num_hidden_layers"],
        num_heads=settings["num_attention_heads"],
        num_kv_heads=settings["num_key_value_heads"],
        head_size=settings["head_dim"],
        ffn_size=settings["intermediate_size"],
        rope_theta=settings["rope_theta"],
        norm_eps=settings["rms_norm_eps"],
        max_positions=settings["max_position_embeddings"],
    )
    stored = load_file(directory / "model.safetensors")
    params: Params = {}
    for name in shapes(config):
        if name == "lm_head":
            params[name] = stored["lm_head.weight"]
        elif name in ("embed_tokens", "norm"):
            params[name] = stored[f"model.{name}.weight"]
        else:
            layers = [stored[f"model.layers.{layer}.{name}.weight"] for layer in range(config.num_layers)]
            params[name] = jnp.stack(layers)
    return {name: value.astype(jnp.float32) for name, value in params.items()}, config


def _encode(tokenizer: Tokenizer, question: Question) -> tuple[list[int], int]:
    """Prompt and answer as ids, and where the answer begins."""
    prompt = tokenizer.encode(question.prompt).ids
    return prompt + tokenizer.encode(question.answer).ids, len(prompt)


def examine(params: Params, config: ModelConfig, tokenizer: Tokenizer, asked: list[Question]) -> list[bool]:
    """Whether the greedy answer to each question is the expected one."""
    predict = jax.jit(partial(_predict, config=config))
    right: list[bool] = []
    for first in range(0, len(asked), BATCH):
        rows = [_encode(tokenizer, question) for question in asked[first : first + BATCH]]
        tokens = np.zeros((BATCH, LENGTH), np.int32)
        for row, (ids, _) in enumerate(rows):
            tokens[row, : len(ids)] = ids[:LENGTH]
        best = np.asarray(predict(params, tokens))
        for row, (ids, start) in enumerate(rows):
            right.append(len(ids) <= LENGTH and bool((best[row, start - 1 : len(ids) - 1] == ids[start:]).all()))
    return right


def _predict(params: Params, tokens: jax.Array, *, config: ModelConfig) -> jax.Array:
    return jnp.argmax(forward(params, tokens, jnp.zeros_like(tokens), config), axis=-1)


def accuracies(directory: Path, *, seed: int, count: int) -> dict[str, float]:
    """The share of right answers per skill, and printed as they come with one wrong example."""
    params, config = load_checkpoint(directory)
    tokenizer = load(directory)
    shares: dict[str, float] = {}
    for skill in SKILLS:
        asked = list(questions(skill, seed=seed, count=count))
        right = examine(params, config, tokenizer, asked)
        shares[skill] = sum(right) / count
        print(f"{skill:40} {shares[skill]:7.1%}", flush=True)
        for question in [question for question, ok in zip(asked, right, strict=True) if not ok][:2]:
            print(f"    wrong: {question.prompt[-120:]!r} expected {question.answer!r}")
    return shares


def main() -> None:
    """Read the command line, examine, and put the figures into the model card if asked."""
    parser = argparse.ArgumentParser(prog="python -m examples.embedded_model.evaluate", description=__doc__)
    parser.add_argument("directory", type=Path, nargs="?", default=checkpoint_path())
    parser.add_argument("--seed", type=int, default=99)
    parser.add_argument("--count", type=int, default=200, help="questions per skill")
    parser.add_argument("--write", action="store_true", help="put the figures into README.md of the directory")
    arguments = parser.parse_args()
    shares = accuracies(arguments.directory, seed=arguments.seed, count=arguments.count)
    if arguments.write:
        card = arguments.directory / "README.md"
        lines = "\n".join(f"| {skill} | {share:.1%} |" for skill, share in shares.items())
        text = card.read_text(encoding="utf-8").split(HEADING)[0]
        note = f"Greedy answers that are exactly right, {arguments.count} questions each (seed {arguments.seed}):"
        card.write_text(f"{text}{HEADING}\n{note}\n\n| skill | right |\n|---|---|\n{lines}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
