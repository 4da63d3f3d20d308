"""What it costs to round the rows of products to 8 bits by blocks of inputs, beside what rounding their matrices costs. JSON out.

Llama models in float32 (numpy): perplexity of a text and of texts that each model sampled itself at temperature 1, and there the
divergence of the plain model from the rounded one, in nats a token, with its standard error. Rows of the layers' products, or the
head's too, are bfloat16, and are rounded over a scale for each block of so many inputs (`rows 32`, as llama.cpp has it), or not;
matrices are as the engine or ggml rounds them. `errors` are squares of what is off over those of a product, in thousandths:
with normal numbers, and with rows that have outliers (Student's t with three degrees of freedom, one input of 128 fifty times as
large).

python -m benchmarks.rounded_rows --model DIRECTORY --ggml LIBRARY --text FILE
"""

from __future__ import annotations

import argparse
import functools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from tokenizers import Tokenizer
from tqdm import tqdm

from benchmarks.four_bits import Form, error, names_of_matrices, of_engine, of_ggml, opened
from jaxengine.bench import machine
from jaxengine.embedded import checkpoint_path

Rows = Callable[[np.ndarray], np.ndarray]
SEQUENCES, LENGTH = 64, 128


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--model", type=Path, required=True, help="checkpoint directory; the embedded model is scored, too"
    )
    parser.add_argument("--ggml", type=Path, required=True, help="libggml-base.so of a build of llama.cpp")
    parser.add_argument("--text", type=Path, required=True)
    arguments = parser.parse_args()
    results = {"errors": errors(forms(arguments.ggml))}
    for name, path in {"model": arguments.model, "embedded model": checkpoint_path()}.items():
        results[name] = measured(path, forms(arguments.ggml), arguments.text if name == "model" else None)
    given = {name: value.name for name, value in vars(arguments).items()}
    print(json.dumps({"machine": machine.describe(), **given, "results": results}, indent=1))


def forms(ggml: Path) -> dict[str, Form]:
    engine = {name: form for name, form in of_engine().items() if name in ("int4", "int4_g32")}
    stored = {"Q8_0": (GGMLQuantizationType.Q8_0, 8.5), "MXFP4": (GGMLQuantizationType.MXFP4, 4.25)}
    others = {name: Form(bits, functools.partial(as_stored, kind)) for name, (kind, bits) in stored.items()}
    beside = {"Q4_0": of_ggml(ggml)["Q4_0"]}
    return {"plain": Form(16, lambda matrix: matrix)} | engine | beside | others


def as_stored(kind: GGMLQuantizationType, matrix: np.ndarray) -> np.ndarray:
    inputs = matrix.shape[1]
    padded = np.pad(matrix.astype(np.float32), ((0, 0), (0, -inputs % 32)))
    return np.ascontiguousarray(dequantize(quantize(padded, kind), kind)[:, :inputs])


def rounded(block: int | None, rows: np.ndarray) -> np.ndarray:
    """As the product of the engine rounds them: to 127 steps of the block's largest magnitude, ties to even."""
    rows = rows.astype(ml_dtypes.bfloat16).astype(np.float32)
    if block is None:
        return rows
    inputs = rows.shape[-1]
    size = min(block or inputs, inputs)
    blocks = np.pad(rows, [(0, 0)] * (rows.ndim - 1) + [(0, -inputs % size)]).reshape(*rows.shape[:-1], -1, size)
    most = np.abs(blocks).max(axis=-1, keepdims=True)
    inverse = np.float32(127) / np.where(most > 0, most, np.float32(1))
    found = np.rint(blocks * inverse) * (most * np.float32(1 / 127))
    return found.reshape(*rows.shape[:-1], -1)[..., :inputs]


WAYS: dict[str, Rows] = {
    "rows as they are": functools.partial(rounded, None),
    **{f"rows {block}": functools.partial(rounded, block) for block in (32, 64, 128)},
    "rows whole": functools.partial(rounded, 0),
}


def errors(all_forms: dict[str, Form]) -> dict[str, Any]:
    generator = np.random.default_rng(0)
    matrix = generator.standard_normal((256, 3072)).astype(np.float32)
    normal = generator.standard_normal((128, 3072)).astype(np.float32)
    outliers = generator.standard_t(3, (128, 3072)).astype(np.float32)
    outliers[:, ::128] *= 50
    found: dict[str, Any] = {"matrices": {name: error(form, [matrix]) for name, form in all_forms.items()}}
    for name, rows in {"normal": normal, "outliers": outliers}.items():
        exact = rows @ matrix.T
        off = {way: np.square(round_rows(rows) @ matrix.T - exact).sum() for way, round_rows in WAYS.items()}
        found[name] = {way: round(1e3 * float(value / np.square(exact).sum()), 4) for way, value in off.items()}
    return found


class Llama:
    """In float32, with matrices of layers rounded as `form` says."""

    def __init__(self, path: Path, form: Form, heads_too: bool = False) -> None:
        self.config = json.loads((path / "config.json").read_text())
        checkpoint = opened(path)
        matrices = set(names_of_matrices(checkpoint))
        self.head = "lm_head.weight" if "lm_head.weight" in checkpoint.tensors else "model.embed_tokens.weight"
        views = {name: checkpoint.view(name).astype(np.float32) for name in checkpoint.tensors}
        self.embedding = views["model.embed_tokens.weight"]
        views[self.head] = form.round(views[self.head]) if heads_too else views[self.head]
        self.weights = {name: form.round(view) if name in matrices else view for name, view in views.items()}
        self.head_too = heads_too

    def __call__(self, tokens: np.ndarray, rows: Rows, cache: list[Any] | None = None) -> np.ndarray:
        """Log probabilities `[S, T, V]` of `tokens [S, T]`, which go on behind those of a cache."""
        config, weights = self.config, self.weights
        heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        size = config.get("head_dim") or config["hidden_size"] // heads
        before = 0 if not cache else cache[0][0].shape[1]
        places = np.arange(before, before + tokens.shape[1], dtype=np.float32)
        rates = config.get("rope_theta", 10000.0) ** (-np.arange(0, size, 2, dtype=np.float32) / size)
        angles = (places[:, None] * rates)[:, None]
        cosine, sine = (np.concatenate([f(angles)] * 2, -1) for f in (np.cos, np.sin))

        def turned(x: np.ndarray) -> np.ndarray:
            first, second = np.split(x, 2, axis=-1)
            return x * cosine + np.concatenate([-second, first], -1) * sine

        def normed(x: np.ndarray, name: str) -> np.ndarray:
            return x / np.sqrt(np.square(x).mean(-1, keepdims=True) + config["rms_norm_eps"]) * weights[name]

        x = self.embedding[tokens]
        kept = [] if cache is None else cache
        for layer in range(config["num_hidden_layers"]):
            at = f"model.layers.{layer}."

            def multiply(x: np.ndarray, name: str, at: str = at) -> np.ndarray:
                return rows(x) @ weights[f"{at}{name}.weight"].T

            given = normed(x, at + "input_layernorm.weight")
            query, key, value = (
                multiply(given, f"self_attn.{name}_proj").reshape(*tokens.shape, -1, size) for name in "qkv"
            )
            query, key = turned(query), turned(key)
            if len(kept) > layer:
                key, value = (np.concatenate(pair, 1) for pair in zip(kept[layer], (key, value), strict=True))
                kept[layer] = (key, value)
            elif cache is not None:
                kept.append((key, value))
            key, value = (np.repeat(array, heads // kv_heads, axis=2) for array in (key, value))
            scores = np.einsum("sthd,suhd->shtu", query, key, optimize=True) / math.sqrt(size)
            scores = np.where(np.arange(key.shape[1]) <= places[:, None], scores, -np.inf)
            scores = np.exp(scores - scores.max(-1, keepdims=True))
            scores /= scores.sum(-1, keepdims=True)
            seen = np.einsum("shtu,suhd->sthd", scores, value, optimize=True).reshape(*tokens.shape, -1)
            x = x + multiply(seen, "self_attn.o_proj")
            given = normed(x, at + "post_attention_layernorm.weight")
            gate, up = multiply(given, "mlp.gate_proj"), multiply(given, "mlp.up_proj")
            x = x + multiply(gate / (1 + np.exp(-gate)) * up, "mlp.down_proj")
        last = normed(x, "model.norm.weight")
        logits = (rows(last) if self.head_too else last) @ weights[self.head].T
        logits -= logits.max(-1, keepdims=True)
        return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def sampled(model: Llama) -> np.ndarray:
    generator = np.random.default_rng(0)
    tokens = np.full((SEQUENCES, 1), model.config["bos_token_id"])
    cache: list[Any] = []
    while tokens.shape[1] < LENGTH:
        logprobs = model(tokens[:, -1:], WAYS["rows as they are"], cache)[:, -1]
        drawn = np.argmax(logprobs + generator.gumbel(size=logprobs.shape), axis=-1)
        tokens = np.concatenate([tokens, drawn[:, None]], axis=1)
    return tokens


def measured(path: Path, all_forms: dict[str, Form], text: Path | None) -> dict[str, Any]:
    plain = Llama(path, all_forms["plain"])
    texts = {"own": sampled(plain)}
    if text is not None:
        ids = Tokenizer.from_file(str(path / "tokenizer.json")).encode(text.read_text(), add_special_tokens=False).ids
        texts["text"] = np.array(ids[: len(ids) // LENGTH * LENGTH]).reshape(-1, LENGTH)
    of_plain = {name: plain(tokens, lambda rows: rows) for name, tokens in texts.items()}
    found: dict[str, Any] = {name: {"tokens": int(tokens[:, 1:].size)} for name, tokens in texts.items()}
    for head, (name, form) in tqdm(
        [(head, item) for head in (False, True) for item in all_forms.items() if not head or item[0].startswith("int4")]
    ):
        model = Llama(path, form, head)
        for way, rows in WAYS.items():
            for kind, tokens in texts.items():
                logprobs, exact = model(tokens, rows), of_plain[kind]
                own = np.take_along_axis(logprobs[:, :-1], tokens[:, 1:, None], -1)
                divergence = (np.exp(exact) * (exact - logprobs)).sum(-1)
                of_form = found[kind].setdefault(f"{name}, head too" if head else name, {})
                of_form[way] = {
                    "perplexity": round(math.exp(-own.mean()), 4),
                    "divergence": round(float(divergence.mean()), 5),
                    "error": round(float(divergence.mean(-1).std() / math.sqrt(len(tokens))), 5),
                }
    return found


if __name__ == "__main__":
    main()
