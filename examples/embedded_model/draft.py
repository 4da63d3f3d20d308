"""`python -m examples.embedded_model.draft DIR`: train an EAGLE-3 head for the embedded model, by what the model itself says.

The model is frozen. The head reads its streams before the layers `TAPS` and the token after each place, and learns the model's
distribution one token further. As it goes on from its own guesses when it drafts, it is trained so too (the paper's
"training-time test"): pass `j` reads states that pass `j - 1` has made, and attends to what is known of the text before those,
and to its own guesses after that. Letters as in `model.py`; `D` is the number of passes.
"""

import argparse
import json
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import optax
from safetensors.flax import save_file

from examples.embedded_model.batches import batches
from examples.embedded_model.evaluate import load_checkpoint
from examples.embedded_model.model import ModelConfig, Params, causal_mask, norm, rotary, rotate, streams
from examples.embedded_model.optimizer import learning_rate
from examples.embedded_model.tokenizer import load
from jaxengine.embedded import checkpoint_path

TAPS = (1, 3, 4)
PASSES, FADES = 3, 0.8  # passes, and what a pass counts less than the one before it
PEAK_RATE, WARMUP = 0.002, 0.05


@dataclass(frozen=True, slots=True)
class HeadConfig:
    """The numbers of the head. What it costs beside the model is what it has to bring in."""

    num_heads: int = 2
    num_kv_heads: int = 1
    head_size: int = 64
    ffn_size: int = 256


def init(key: jax.Array, head: HeadConfig, target: Params, model: ModelConfig) -> Params:
    """At first it says of the stream behind the model's last layer what the model says; what it adds to that is zero."""
    width, query, kv = model.hidden_size, head.num_heads * head.head_size, head.num_kv_heads * head.head_size
    kernels = {
        "self_attn.q_proj": (query, 2 * width),
        "self_attn.k_proj": (kv, 2 * width),
        "self_attn.v_proj": (kv, 2 * width),
        "mlp.gate_proj": (head.ffn_size, width),
        "mlp.up_proj": (head.ffn_size, width),
    }
    params = {
        name: shape[1] ** -0.5 * jax.random.normal(jax.random.fold_in(key, number), shape, jnp.float32)
        for number, (name, shape) in enumerate(kernels.items())
    }
    params |= {"self_attn.o_proj": jnp.zeros((width, query)), "mlp.down_proj": jnp.zeros((width, head.ffn_size))}
    params |= {name: jnp.ones(width) for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm")}
    params["fc"] = jnp.concatenate([jnp.zeros((width, width * (len(TAPS) - 1))), jnp.eye(width)], axis=1)
    return params | {"norm": target["norm"], "lm_head": target["lm_head"]}


def logits(
    params: Params, target: Params, tokens: jax.Array, segments: jax.Array, head: HeadConfig, model: ModelConfig
) -> tuple[list[jax.Array], jax.Array]:
    """Of each pass `[B, S, V]` at the place whose next token it reads; and the streams behind the model's last layer."""
    found = streams(target, tokens, segments, model)
    states = jnp.concatenate([found[tap] for tap in TAPS], axis=-1) @ params["fc"].T
    follows = norm(target["embed_tokens"][jnp.roll(tokens, -1, axis=1)], params["input_layernorm"], model.norm_eps)
    mask = causal_mask(segments)
    keys: list[jax.Array] = []
    values: list[jax.Array] = []
    said = []
    for _ in range(PASSES):
        joined = jnp.concatenate([follows, norm(states, params["hidden_norm"], model.norm_eps)], axis=-1)
        x = states + _attention(params, joined, keys, values, mask, head, model)
        hidden = norm(x, params["post_attention_layernorm"], model.norm_eps)
        gate = jax.nn.silu(hidden @ params["mlp.gate_proj"].T)
        x = x + (gate * (hidden @ params["mlp.up_proj"].T)) @ params["mlp.down_proj"].T
        said.append(norm(x, params["norm"], model.norm_eps) @ params["lm_head"].T)
        states = jnp.roll(x, 1, axis=1)  # the next pass reads one token further
    return said, found[-1]


def _attention(
    params: Params,
    joined: jax.Array,
    keys: list[jax.Array],
    values: list[jax.Array],
    mask: jax.Array,
    head: HeadConfig,
    model: ModelConfig,
) -> jax.Array:
    """Attention of pass `j`, whose keys and values are appended: to pass 0 up to `j` places before, then to one place a pass."""
    batch, length, _ = joined.shape
    rope = rotary(
        jnp.arange(length), ModelConfig(model.vocab_size, head_size=head.head_size, rope_theta=model.rope_theta)
    )

    def project(name: str, count: int) -> jax.Array:
        made = joined @ params[f"self_attn.{name}"].T
        return made.reshape(batch, length, count, head.head_size).transpose(0, 2, 1, 3)

    shared = head.num_heads // head.num_kv_heads
    query = rotate(project("q_proj", head.num_heads), *rope) * head.head_size**-0.5
    keys.append(jnp.repeat(rotate(project("k_proj", head.num_kv_heads), *rope), shared, axis=1))
    values.append(jnp.repeat(project("v_proj", head.num_kv_heads), shared, axis=1))
    number = len(keys) - 1
    places = jnp.arange(length)
    known = places[None, :] <= places[:, None] - number
    scores = jnp.einsum("bnsh,bnth->bnst", query, keys[0]) + jnp.where(known, mask, -1e9)[:, None]
    own = [jnp.roll(keys[i], number - i, axis=2) for i in range(1, number + 1)]
    scores = jnp.concatenate([scores, *((query * key).sum(-1, keepdims=True) for key in own)], axis=-1)
    shares = jax.nn.softmax(scores, axis=-1)
    out = jnp.einsum("bnst,bnth->bnsh", shares[..., :length], values[0])
    for i in range(1, number + 1):
        out += shares[..., length + i - 1, None] * jnp.roll(values[i], number - i, axis=2)
    return out.transpose(0, 2, 1, 3).reshape(batch, length, -1) @ params["self_attn.o_proj"].T


def loss(
    params: Params, target: Params, tokens: jax.Array, segments: jax.Array, head: HeadConfig, model: ModelConfig
) -> tuple[jax.Array, jax.Array]:
    """Cross entropy with what the model says, in nats; and of each pass how often its likeliest token is the model's, `[D]`."""
    said, last = logits(params, target, tokens, segments, head, model)
    teacher = norm(last, target["norm"], model.norm_eps) @ target["lm_head"].T
    teacher = jax.lax.stop_gradient(jnp.roll(teacher, -1, axis=1))
    places = jnp.arange(tokens.shape[1])
    total, right = jnp.zeros(()), []
    for number, guessed in enumerate(said):
        within = (places >= number) & (places < tokens.shape[1] - 1)
        weights = (jnp.roll(segments, number, axis=1) == jnp.roll(segments, -1, axis=1)) & (segments >= 0) & within
        count = jnp.maximum(weights.sum(), 1)
        entropy = -(jax.nn.softmax(teacher) * jax.nn.log_softmax(guessed)).sum(-1)
        total += FADES**number * (entropy * weights).sum() / count
        right.append(((guessed.argmax(-1) == teacher.argmax(-1)) * weights).sum() / count)
    return total, jnp.stack(right)


def train(
    output: Path,
    *,
    source: Path,
    steps: int,
    minutes: float | None = None,
    batch: int = 4,
    length: int = 320,
    seed: int = 7,
) -> jax.Array:
    """Train and write the head; returns how often the passes were right in the last step `[D]`."""
    target, model = load_checkpoint(source)
    head, tokenizer = HeadConfig(), load(source)
    params = init(jax.random.key(seed), head, target, model)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.scale_by_adam(b2=0.98))

    @partial(jax.jit, donate_argnums=(0, 1))
    def step(params, state, tokens, segments, rate):
        (value, right), grads = jax.value_and_grad(loss, has_aux=True)(params, target, tokens, segments, head, model)
        updates, state = optimizer.update(grads, state, params)
        return jax.tree.map(lambda p, u: p - rate * u, params, updates), state, value, right

    state, stream = optimizer.init(params), batches(tokenizer, seed=seed, batch=batch, length=length)
    started, progress, number = time.monotonic(), 0.0, 0
    right = jnp.zeros(PASSES)
    while progress < 1.0:
        rate = learning_rate(progress, peak=PEAK_RATE, warmup=WARMUP)
        params, state, value, right = step(params, state, *next(stream), rate)
        number += 1
        passed = 0.0 if minutes is None else (time.monotonic() - started) / 60 / minutes
        progress = max(number / steps, passed)
        if number % 20 == 0 or progress >= 1.0:
            shares = ", ".join(f"{share:.1%}" for share in right.tolist())
            print(f"step {number}: loss {float(value):.3f}, right {shares}", flush=True)
    write(output, params, head, model)
    return right


def write(directory: Path, params: Params, head: HeadConfig, model: ModelConfig) -> None:
    """The head as vLLM and SpecForge have it."""
    directory.mkdir(parents=True, exist_ok=True)
    outside = ("fc", "norm", "lm_head")
    tensors = {f"{name if name in outside else f'midlayer.{name}'}.weight": value for name, value in params.items()}
    save_file({name: value.astype(jnp.bfloat16) for name, value in tensors.items()}, directory / "model.safetensors")
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "vocab_size": model.vocab_size,
        "draft_vocab_size": model.vocab_size,
        "hidden_size": model.hidden_size,
        "intermediate_size": head.ffn_size,
        "num_hidden_layers": 1,
        "num_attention_heads": head.num_heads,
        "num_key_value_heads": head.num_kv_heads,
        "head_dim": head.head_size,
        "hidden_act": "silu",
        "max_position_embeddings": model.max_positions,
        "rms_norm_eps": model.norm_eps,
        "rope_theta": model.rope_theta,
        "tie_word_embeddings": False,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": list(TAPS)},
        "torch_dtype": "bfloat16",
    }
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(prog="python -m examples.embedded_model.draft", description=__doc__)
    parser.add_argument("output", type=Path, metavar="DIR", help="directory to write the head to")
    parser.add_argument("--source", type=Path, default=checkpoint_path(), metavar="DIR", help="the model's checkpoint")
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--minutes", type=float, default=None, help="end the schedule after this time at the latest")
    parser.add_argument("--batch", type=int, default=4, help="rows per step")
    parser.add_argument("--length", type=int, default=320, help="tokens per row")
    parser.add_argument("--seed", type=int, default=7)
    arguments = vars(parser.parse_args())
    train(arguments.pop("output"), **arguments)


if __name__ == "__main__":
    main()
