"""What the scripts share that have libraries quantise small random models for `quantised_checkpoints.py`.

torch, transformers and NumPy only: each library has an environment of its own.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
import transformers
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

SIZES = {
    "vocab_size": 512,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.08,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 128, "norm_topk_prob": True}
MODELS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "qwen3": ("Qwen3Config", {"head_dim": 64}),
    "qwen3-moe": ("Qwen3MoeConfig", {"head_dim": 64, **EXPERTS}),
    "mixtral": ("MixtralConfig", {"intermediate_size": 256, "num_local_experts": 4}),
}
SCORED, GENERATED, PROMPT = 48, 16, 8
"""Tokens of a text that are scored; of an answer; of a prompt."""
SAMPLE, SAMPLED = "model.layers.1.self_attn.k_proj.weight", 16
"""The matrix, and its first outputs, of which a test is made."""


@dataclass(frozen=True)
class Job:
    """Where a plain model lies, where the quantised one belongs, and on what it is calibrated."""

    source: Path
    target: Path
    texts: list[str]

    @property
    def tokenizer(self) -> Any:
        return AutoTokenizer.from_pretrained(self.source)

    def model(self, dtype: torch.dtype = torch.bfloat16) -> Any:
        """The plain model."""
        return AutoModelForCausalLM.from_pretrained(self.source, attn_implementation="eager").to(dtype)


Dense = Callable[[Job], Mapping[str, torch.Tensor]]
"""What the library itself takes the matrices of the checkpoint at `target` for: float32 `[out, in]`, by their plain names."""


@dataclass(frozen=True)
class Recipe:
    """A checkpoint: of which model, by what, and what it stands for. `round_rows`: activations are rounded to int8."""

    name: str
    quantise: Callable[[Job], None]
    dense: Dense
    model: str = "llama"
    round_rows: bool = False


def run(recipes: Iterable[Recipe], *libraries: str) -> None:
    """Make those that the command line names, or all; `outcome.json` beside each checkpoint says how it went.

    The command line is an object: `directory`, `tokenizer`, `text` (a file) and `only` (names, or none for all).
    """
    given = json.loads(sys.argv[1])
    directory = Path(given["directory"])
    text = Path(given["text"]).read_text()
    texts = [text[start : start + 600] for start in range(0, 16 * 600, 600)]
    versions = {name: version(name) for name in (*libraries, "torch", "transformers")}
    for recipe in recipes:
        if given["only"] and recipe.name not in given["only"]:
            continue
        job = Job(plain(recipe.model, directory, given["tokenizer"]), directory / recipe.name, texts)
        outcome: dict[str, Any] = {"versions": versions, "model": recipe.model, "round_rows": recipe.round_rows}
        try:
            recipe.quantise(job)
            np.savez(job.target / "expected.npz", **expected(job, recipe))
        except Exception as error:
            outcome["error"] = f"{type(error).__name__}: {error}"[:2000]
            traceback.print_exc()
        job.target.mkdir(exist_ok=True)
        (job.target / "outcome.json").write_text(json.dumps(outcome, indent=1))
        print(recipe.name, outcome.get("error", "made"), file=sys.stderr, flush=True)


def plain(name: str, directory: Path, tokenizer: str) -> Path:
    """A random model in bfloat16, the same at every call."""
    path = directory / f"plain-{name}"
    if path.exists():
        return path
    torch.manual_seed(0)
    config_class, changes = MODELS[name]
    config = getattr(transformers, config_class)(**{**SIZES, **changes})
    AutoModelForCausalLM.from_config(config).to(torch.bfloat16).save_pretrained(path)
    AutoTokenizer.from_pretrained(tokenizer).save_pretrained(path)
    return path


@torch.no_grad()
def expected(job: Job, recipe: Recipe) -> dict[str, np.ndarray]:
    """Log probabilities and greedy answers of the plain model in float32 with the matrices that the library reads.

    `rounded`, with rounded rows; `noise`: how far those are off where what is rounded is off in its last bit.
    """
    model = job.model(torch.float32)
    matrices = recipe.dense(job)
    if not matrices:
        raise ValueError("nothing was quantised")
    change(model, matrices)
    change(model, unquantised(job.target, model))
    tokens = torch.tensor([job.tokenizer(text)["input_ids"][:SCORED] for text in job.texts[:4]])

    def logprobs() -> np.ndarray:
        return model(tokens).logits.log_softmax(-1).numpy()

    prompts = tokens[:, :PROMPT]
    answers = model.generate(prompts, max_new_tokens=GENERATED, do_sample=False, eos_token_id=None, pad_token_id=0)
    found = {"tokens": tokens.numpy(), "logprobs": logprobs(), "answers": answers[:, PROMPT:].numpy()}
    if recipe.round_rows:
        linear = [module for name, module in model.named_modules() if f"{name}.weight" in matrices]
        for module in linear:
            module.register_forward_pre_hook(lambda _, given: (rounded(given[0]), *given[1:]))
        found["rounded"] = logprobs()
        for module in linear:
            module.register_forward_pre_hook(
                lambda _, given: (given[0] * (1 + 1e-7 * torch.randn_like(given[0])),), prepend=True
            )
        found["noise"] = np.abs(logprobs() - found["rounded"]).max()
    return {**found, "quantised": np.array(len(matrices)), "sample": matrices[SAMPLE][:SAMPLED].numpy()}


def unquantised(directory: Path, model: Any) -> Mapping[str, torch.Tensor]:
    """What else the checkpoint has: AWQ, for one, changes norms."""
    own = dict(model.named_parameters())
    tensors = {name: tensor for path in directory.glob("*.safetensors") for name, tensor in load_file(path).items()}
    return {name: tensor for name, tensor in tensors.items() if name in own and tensor.dtype.itemsize > 1}


def change(model: Any, matrices: Mapping[str, torch.Tensor]) -> None:
    """Give the model these matrices, of experts one by one."""
    own = dict(model.named_parameters())
    for name, matrix in matrices.items():
        if name in own:
            own[name].copy_(matrix)
            continue
        module, _, rest = name.replace(".block_sparse_moe.", ".mlp.").partition(".experts.")
        number, _, projection = rest.partition(".")
        joined = own[f"{module}.experts.{'down_proj' if projection[:2] in ('do', 'w2') else 'gate_up_proj'}"]
        outputs = matrix.shape[0]
        first = outputs if projection[:2] in ("up", "w3") else 0
        joined[int(number), first : first + outputs].copy_(matrix)


def rounded(x: torch.Tensor) -> torch.Tensor:
    """Each row to int8 over its largest magnitude by 127, as vLLM's kernels do."""
    scale = x.abs().amax(-1, keepdim=True) / 127
    return torch.round(x / torch.where(scale == 0, 1, scale)) * scale
