"""Train the embedded model at what it has not learned, by its own rollouts: GRPO with a reward that can be checked.

    python -m examples.rollouts            needs the extra `train` (optax)

Each step the engine answers some questions several times each, an answer is right or not, and what made right answers likelier
than their group's average is strengthened. Then the engine gets the new weights as JAX arrays, without a copy and without
compiling anything, and says of the next answers that they were made with those.
"""

import random
import re
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from safetensors.flax import load_file

from examples.embedded_model.export import tensors
from examples.embedded_model.model import ModelConfig, Params, forward, shapes
from jaxengine import LLM, SamplingParams
from jaxengine.embedded import checkpoint_path

CONFIG = ModelConfig(vocab_size=2048)
QUESTIONS, ANSWERS, TOKENS, PLACES = 16, 8, 16, 64
"""Questions a step, answers to each, most tokens of an answer, places of a row in training."""


def read_params(path: Path) -> Params:
    """The embedded checkpoint as the trainer has it: float32, layers stacked."""
    stored = load_file(path / "model.safetensors")
    params: Params = {}
    for name in shapes(CONFIG):
        if name in ("embed_tokens", "norm", "lm_head"):
            array = stored["lm_head.weight" if name == "lm_head" else f"model.{name}.weight"]
        else:
            array = jnp.stack([stored[f"model.layers.{layer}.{name}.weight"] for layer in range(CONFIG.num_layers)])
        params[name] = array.astype(jnp.float32)
    return params


def question(rng: random.Random) -> tuple[str, int]:
    """Something to ask, and the right answer."""
    a, b, c = (rng.randint(0, 4) for _ in range(3))
    more = a + 1 + b
    return rng.choice([(f"What is {a} + {b} + {c}?", a + b + c), (f"Which number is larger, {a} or {more}?", more)])


def reward(text: str, right: int) -> float:
    """Whether the last number of an answer is the right one."""
    numbers = re.findall(r"\d+", text)
    return float(bool(numbers) and int(numbers[-1]) == right)


def advantages(rewards: np.ndarray) -> np.ndarray:
    """`[questions, answers]`: how much better each answer is than those beside it."""
    return (rewards - rewards.mean(1, keepdims=True)) / (rewards.std(1, keepdims=True) + 1e-4)


def surrogate(params: Params, tokens: jax.Array, sampled: jax.Array, weight: jax.Array) -> jax.Array:
    """GRPO's loss before clipping. `sampled [B, S]` are the engine's log probabilities of `tokens [B, S]`, `weight` advantages.

    Both are 0 where no token of an answer is. The parameters are rounded as the engine has them.
    """
    rounded = jax.tree.map(lambda array: array + jax.lax.stop_gradient(array.astype(jnp.bfloat16) - array), params)
    segments = jnp.where(jnp.cumsum(tokens[:, ::-1], axis=1)[:, ::-1] > 0, 0, -1)
    logits = forward(rounded, tokens[:, :-1], segments[:, :-1], CONFIG)
    logprob = jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[:, 1:, None], axis=-1)[..., 0]
    return -jnp.sum(jnp.exp(logprob - sampled[:, 1:]) * weight[:, 1:]) / jnp.maximum(jnp.sum(weight != 0), 1)


def train(steps: int = 12, *, seed: int = 0, learning_rate: float = 2e-4) -> list[float]:
    """The mean reward of each step's rollouts."""
    rng = random.Random(seed)
    params = read_params(checkpoint_path())
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(learning_rate))
    state = optimizer.init(params)

    @jax.jit
    def update(params: Params, state: optax.OptState, *batch: jax.Array) -> tuple[Params, optax.OptState]:
        changes, state = optimizer.update(jax.grad(surrogate)(params, *batch), state, params)
        return optax.apply_updates(params, changes), state

    export = jax.jit(partial(tensors, config=CONFIG))
    sampling = SamplingParams(temperature=1.0, n=ANSWERS, max_tokens=TOKENS, logprobs=0)
    history = []
    with LLM(max_model_len=128, max_num_seqs=32, bucket_planner="explicit", buckets=("32x8", "32x1")) as llm:
        for step in range(steps):
            asked = [question(rng) for _ in range(QUESTIONS)]
            conversations = [[{"role": "user", "content": text}] for text, _ in asked]
            outputs = llm.chat(conversations, sampling, use_tqdm=False)
            rewards = np.array(
                [
                    [reward(answer.text, right) for answer in output.outputs]
                    for output, (_, right) in zip(outputs, asked, strict=True)
                ]
            )
            batch = [np.zeros((QUESTIONS * ANSWERS, PLACES), dtype) for dtype in (np.int32, np.float32, np.float32)]
            answers = [(output.prompt_token_ids, answer) for output in outputs for answer in output.outputs]
            scored = zip(answers, advantages(rewards).reshape(-1), strict=True)
            for row, ((prompt, answer), advantage) in enumerate(scored):
                start, end = len(prompt), len(prompt) + len(answer.token_ids)
                batch[0][row, :end] = (*prompt, *answer.token_ids)
                logprobs = zip(answer.logprobs, answer.token_ids, strict=True)
                batch[1][row, start:end] = [each[token].logprob for each, token in logprobs]
                batch[2][row, start:end] = advantage
            versions = {version for _, answer in answers for version, _ in answer.weight_versions}
            print(
                f"step {step}: {rewards.mean():.2f} of the answers are right, made with weights {', '.join(versions)}"
            )
            history.append(float(rewards.mean()))
            params, state = update(params, state, *batch)
            llm.update_weights(export(params), weight_version=f"after step {step}")
        print(
            f"programs compiled since the start: {llm.get_metrics()['num_compilations']:.0f}, all of them the trainer's"
        )
    return history


if __name__ == "__main__":
    train()
