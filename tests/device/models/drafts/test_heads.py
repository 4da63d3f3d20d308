"""EAGLE, EAGLE-3 and DFlash guess what their papers' arithmetic says, in NumPy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from jaxengine.device.models.config.decoder_config import DecoderConfig
from jaxengine.device.models.drafts.registry import head_of, read_head_config
from jaxengine.device.models.registry import read_config, resolve
from jaxengine.errors import ConfigError
from tests.device.models.cases import VOCAB, random_tensors
from tests.device.models.drafts.cases import COUNT, TOKENS, WIDTH, states
from tests.device.models.drafts.guessing import Guesser

HEADS, KV_HEADS, SIZE, INNER, EPSILON, THETA = 4, 2, 16, 96, 1e-6, 10_000.0
SHAPE = {
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "max_position_embeddings": 128,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "num_hidden_layers": 1,
    "rms_norm_eps": EPSILON,
    "vocab_size": VOCAB,
}
TARGET = {"architectures": ["LlamaForCausalLM"], **SHAPE, "num_hidden_layers": 8}
KNOWN = np.arange(1, VOCAB, 3)
"""The tokens that EAGLE-3's head knows."""
LAYER = {
    "self_attn.q_proj.weight": (HEADS * SIZE, WIDTH),
    "self_attn.k_proj.weight": (KV_HEADS * SIZE, WIDTH),
    "self_attn.v_proj.weight": (KV_HEADS * SIZE, WIDTH),
    "self_attn.o_proj.weight": (WIDTH, HEADS * SIZE),
    "post_attention_layernorm.weight": (WIDTH,),
    "mlp.gate_proj.weight": (INNER, WIDTH),
    "mlp.up_proj.weight": (INNER, WIDTH),
    "mlp.down_proj.weight": (WIDTH, INNER),
}

Tensors = Mapping[str, np.ndarray]


@pytest.mark.slow
def test_eagle():
    layers = [{f"layers.{n}.{name}": shape for name, shape in LAYER.items()} for n in range(2)]
    tensors = random_tensors(
        {**layers[0], **layers[1], "layers.1.input_layernorm.weight": (WIDTH,), "fc.weight": (WIDTH, 2 * WIDTH)}
    )
    shared = of_target()
    guesser = guesser_of(
        {"architectures": ["LlamaForCausalLM"], **SHAPE, "num_hidden_layers": 2}, "eagle", tensors, shared
    )

    def stream(tokens: Sequence[int], given: np.ndarray) -> np.ndarray:
        x = np.concatenate([shared["embed.table"][list(tokens)], given], axis=1) @ tensors["fc.weight"].T
        positions = np.arange(len(x))
        for number in range(2):
            layer = part(tensors, f"layers.{number}.")
            x = x + attention(normed(x, layer.get("input_layernorm.weight")), layer, positions)
            x = x + feed_forward(normed(x, layer["post_attention_layernorm.weight"]), layer)
        return x

    check(guesser, states(), stream, lambda x: x @ shared["head.table"].T, states())


@pytest.mark.parametrize("norms_residual", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_eagle3(norms_residual):
    wide = {
        name: (shape[0], 2 * WIDTH) if name[10] in "qkv" and "self" in name else shape for name, shape in LAYER.items()
    }
    norms = {f"midlayer.{name}.weight": (WIDTH,) for name in ("hidden_norm", "input_layernorm")}
    outside = {"fc.weight": (WIDTH, 3 * WIDTH), "norm.weight": (WIDTH,), "lm_head.weight": (len(KNOWN), WIDTH)}
    tensors = random_tensors({**{f"midlayer.{name}": shape for name, shape in wide.items()}, **norms, **outside})
    further = {"d2t": KNOWN - np.arange(len(KNOWN)), "t2d": np.isin(np.arange(VOCAB), KNOWN)}
    shared = {"embed.table": of_target()["embed.table"]}
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        **SHAPE,
        "draft_vocab_size": len(KNOWN),
        "norm_before_residual": norms_residual,
    }
    guesser = guesser_of(config, "eagle3", {**tensors, **further}, shared)
    layer = part(tensors, "midlayer.")

    def stream(tokens: Sequence[int], given: np.ndarray) -> np.ndarray:
        embedded = normed(shared["embed.table"][list(tokens)], layer["input_layernorm.weight"])
        state = normed(given, layer["hidden_norm.weight"])
        x = state if norms_residual else given
        x = x + attention(np.concatenate([embedded, state], axis=1), layer, np.arange(len(x)))
        return x + feed_forward(normed(x, layer["post_attention_layernorm.weight"]), layer)

    def logits(x: np.ndarray) -> np.ndarray:
        found = np.full(VOCAB, -np.inf, np.float32)
        found[KNOWN] = normed(x, tensors["norm.weight"]) @ tensors["lm_head.weight"].T
        return found

    assert guesser.model.taps == (2, 4, 5)
    check(guesser, states(count=3), stream, logits, states(count=3) @ tensors["fc.weight"].T)


@pytest.mark.slow
@pytest.mark.parametrize("causal", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_dflash(causal):
    norms = {"input_layernorm.weight": (WIDTH,), "self_attn.q_norm.weight": (SIZE,), "self_attn.k_norm.weight": (SIZE,)}
    layers = {f"layers.{n}.{name}": shape for n in range(2) for name, shape in {**LAYER, **norms}.items()}
    tensors = random_tensors(
        {**layers, "fc.weight": (WIDTH, 2 * WIDTH), "hidden_norm.weight": (WIDTH,), "norm.weight": (WIDTH,)}
    )
    shared, mask = of_target(), 95
    section = {"target_layer_ids": [1, 5], "mask_token_id": mask, "causal": causal}
    config = {"architectures": ["DFlashDraftModel"], **SHAPE, "head_dim": SIZE, "num_hidden_layers": 2}
    guesser = guesser_of({**config, "dflash_config": section, "block_size": 16}, "dflash", tensors, shared)
    assert guesser.model.taps == (2, 6)
    given = states(count=2)[:-1]
    logits = guesser.guess_block(TOKENS, given, COUNT)

    context = normed(given @ tensors["fc.weight"].T, tensors["hidden_norm.weight"])
    x = shared["embed.table"][[TOKENS[-1], *[mask] * COUNT]]
    positions = np.arange(len(context), len(context) + len(x))
    for number in range(2):
        layer = part(tensors, f"layers.{number}.")
        seen = normed(x, layer["input_layernorm.weight"])
        x = x + attention(seen, layer, positions, before=context, causal=causal)
        x = x + feed_forward(normed(x, layer["post_attention_layernorm.weight"]), layer)
    expected = normed(x[1:], tensors["norm.weight"]) @ shared["head.table"].T
    np.testing.assert_allclose(logits, expected, atol=1e-4 * expected.std())


@pytest.mark.parametrize(
    ("changes", "method", "message"),
    [
        ({"vocab_size": 95}, "eagle", "vocab_size=95, and the model's is 96: it drafts for another model"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 9]}}, "eagle3", r"reads layers \(1, 2, 9\)"),
        ({}, "dflash", "has no 'dflash_config'"),
        ({"architectures": ["LlamaForCausalLMEagle3"]}, "eagle", "which is method 'eagle3', not 'eagle'"),
        ({"medusa_num_heads": 3}, "eagle", "medusa_num_heads=3 is a key that it does not read"),
    ],
)
def test_what_does_not_fit_is_refused(changes, method, message):
    config = {"architectures": ["LlamaForCausalLM"], **SHAPE, **changes}
    with pytest.raises(ConfigError, match=message):
        read_head_config(head_of(config, method), config, target())


def test_a_model_that_stands_for_itself_is_no_head():
    assert head_of({"architectures": ["LlamaForCausalLM"]}, None) is None


def target() -> DecoderConfig:
    return read_config(resolve(TARGET), TARGET)


def of_target() -> dict[str, np.ndarray]:
    return random_tensors({"embed.table": (VOCAB, WIDTH), "head.table": (VOCAB, WIDTH)})


def guesser_of(config: Mapping[str, object], method: str, tensors: Tensors, shared: Tensors) -> Guesser:
    draft_class = head_of(config, method)
    return Guesser(draft_class, read_head_config(draft_class, config, target()), tensors, shared)


def check(guesser: Guesser, given: np.ndarray, stream, logits_of, taken_in: np.ndarray) -> None:
    """The guesses of a chain, each made of all places before again."""
    guesses, logits = guesser.guess(TOKENS, given, COUNT)
    tokens, state = list(TOKENS), taken_in
    for number in range(COUNT):
        x = stream(tokens, state)
        expected = logits_of(x[-1])
        scale = expected[np.isfinite(expected)].std()
        np.testing.assert_allclose(logits[number], expected, atol=1e-4 * scale)
        tokens.append(int(expected.argmax()))
        state = np.concatenate([state, x[-1:]])
    assert tokens[len(TOKENS) :] == guesses


def part(tensors: Tensors, prefix: str) -> dict[str, np.ndarray]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def normed(x: np.ndarray, scale: np.ndarray | None) -> np.ndarray:
    return x if scale is None else x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + EPSILON) * scale


def feed_forward(x: np.ndarray, layer: Tensors) -> np.ndarray:
    gate = x @ layer["mlp.gate_proj.weight"].T
    return (gate / (1 + np.exp(-gate)) * (x @ layer["mlp.up_proj.weight"].T)) @ layer["mlp.down_proj.weight"].T


def turned(x: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Heads `[tokens, heads, SIZE]`, whose halves turn together."""
    angles = positions[:, None, None] * THETA ** (-np.arange(0, SIZE, 2) / SIZE)
    first, second = np.split(x, 2, axis=-1)
    cosines, sines = np.cos(angles), np.sin(angles)
    return np.concatenate([first * cosines - second * sines, second * cosines + first * sines], axis=-1)


def attention(
    x: np.ndarray, layer: Tensors, positions: np.ndarray, *, before: np.ndarray | None = None, causal: bool = True
) -> np.ndarray:
    """Of tokens at `positions`, with keys and values of `before` them too."""
    seen = x if before is None else np.concatenate([before, x])
    at = positions if before is None else np.concatenate([np.arange(len(before)), positions])

    def heads(of: np.ndarray, name: str, places: np.ndarray | None) -> np.ndarray:
        found = (of @ layer[f"self_attn.{name}_proj.weight"].T).reshape(len(of), -1, SIZE)
        found = normed(found, layer.get(f"self_attn.{name}_norm.weight"))
        return found if places is None else turned(found, places)

    queries, keys, values = heads(x, "q", positions), heads(seen, "k", at), heads(seen, "v", None)
    keys, values = (np.repeat(of, HEADS // KV_HEADS, axis=1) for of in (keys, values))
    scores = np.einsum("qhd,khd->hqk", queries, keys) / np.sqrt(SIZE)
    if causal:
        scores = np.where(at[None, None, :] <= positions[None, :, None], scores, -np.inf)
    shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
    mixed = np.einsum("hqk,khd->qhd", shares / shares.sum(axis=-1, keepdims=True), values)
    return mixed.reshape(len(x), -1) @ layer["self_attn.o_proj.weight"].T
