"""Quantised checkpoints beside plain ones that hold what they stand for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from jaxengine import SamplingParams
from tests.device.weights.formats.packers import Way
from tests.integration.engines import run


def linear(name: str) -> bool:
    """Whether a tensor of a small model's checkpoint is a matrix of its layers."""
    return name.endswith("_proj.weight") or ".experts." in name


def write_quantised(
    plain: Path, directory: Path, way: Way, *, of: Callable[[str], bool] = linear, **changes: object
) -> tuple[Path, Path]:
    """The model in `plain`, quantised, and one that is not and has the same matrices. `changes` are of quantization_config."""
    quantised, dequantised = directory / "quantised", directory / "dequantised"
    tensors: dict[str, np.ndarray] = {}
    matrices: dict[str, np.ndarray] = {}
    for name, tensor in load_file(plain / "model.safetensors").items():
        if of(name):
            written = way.write(tensor)
            tensors |= {f"{name.removesuffix('weight')}{part}": part_of for part, part_of in written.tensors.items()}
            matrices[name] = written.matrix
        else:
            tensors[name] = matrices[name] = tensor
    config = json.loads((plain / "config.json").read_text())
    for path, content, more in (
        (quantised, tensors, {"quantization_config": {**way.config, **changes}}),
        (dequantised, matrices, {}),
    ):
        path.mkdir(parents=True)
        save_file(content, path / "model.safetensors")
        (path / "config.json").write_text(json.dumps(config | more))
    return quantised, dequantised


def prompt_scores(engine, prompts) -> np.ndarray:
    """Log probabilities of the prompts' tokens but the first."""
    asked = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0, detokenize=False)
    outputs = run(engine, prompts, asked)
    return np.array(
        [
            position[token].logprob
            for output, prompt in zip(outputs, prompts, strict=True)
            for position, token in zip(output.prompt_logprobs[1:], prompt[1:], strict=True)
        ]
    )
