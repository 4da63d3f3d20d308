"""int8 matrices in every family, through the programs that serve."""

from __future__ import annotations

import functools

import jax.numpy as jnp
import numpy as np
import pytest

from tests.device.models.cases import FAMILIES, PROMPTS, Fixture
from tests.device.models.paged import PagedModel
from tests.quick import slow_but

CHUNK = 5
QUICK = {"qwen3-moe"}
UNLIKE = {"llama", "gemma3", "qwen3-moe"}
ERRORS = {"lfm2": 2e-3}
"""Of families whose activations may differ in their last bit between devices, which sends some to the next integer: the sums of a
convolution, made with fused multiplications or without."""


MORE = {"granite-hybrid": 3.5}
"""Times the noise's errors, where a state carries them from token to token."""
ELSEWHERE = {"nemotron-h"}
"""Of families of which rounding sends a token to another expert, on some processors: it and those behind are off by more."""


@functools.cache
def alone(case: str, quantization: str | None) -> list[np.ndarray]:
    fixture = Fixture.load(case)
    return PagedModel(fixture.config, fixture.tensors, quantization=quantization).logprobs(PROMPTS, seq=CHUNK)


def with_noise(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Matrices, embeddings among them, with what rounding to int8 adds: for themselves, and as much for activations."""
    rng = np.random.default_rng(0)

    def noisy(matrix: np.ndarray) -> np.ndarray:
        step = np.abs(matrix).max(axis=1, keepdims=True) / 127
        return (matrix + np.sqrt(2) * step * rng.uniform(-0.5, 0.5, matrix.shape)).astype(matrix.dtype)

    return {name: noisy(value) if value.ndim == 2 else value for name, value in tensors.items()}


def third_quarter(errors: np.ndarray) -> np.floating:
    """Three quarters of them are no larger."""
    return np.quantile(errors, 0.75)


@pytest.mark.slow
@pytest.mark.parametrize("case", slow_but(FAMILIES, QUICK, often=UNLIKE))
def test_log_probabilities_are_as_near_those_of_float32_as_with_noise_of_the_size_of_a_rounding(case):
    """How much a random model of 64 channels feels a rounding differs between families: Gemma 3 three times Qwen3."""
    fixture = Fixture.load(case)
    exact = alone(case, None)
    noise = PagedModel(fixture.config, with_noise(fixture.tensors)).logprobs(PROMPTS, seq=CHUNK)

    def errors(found: list[np.ndarray]) -> np.ndarray:
        return np.concatenate([np.abs(one - other).ravel() for one, other in zip(found, exact, strict=True)])

    found, expected = errors(alone(case, "int8")), errors(noise)
    most = MORE.get(case, 2.5)
    assert found.max() > 1e-5 * fixture.spread
    for measure in [third_quarter] if case in ELSEWHERE else [np.max, np.mean]:
        assert measure(found) < most * measure(expected)


@pytest.mark.parametrize(
    "place",
    slow_but([("llama", 4), *((case, 8) for case in FAMILIES)], (), often={("llama", 4), ("qwen3-moe", 8)}),
)
def test_log_probabilities_do_not_depend_on_the_devices(place):
    """A row-parallel matrix has the scales of whole rows, its sums are integers, and activations have one scale a token."""
    case, devices = place
    fixture = Fixture.load(case)
    model = PagedModel(fixture.config, fixture.tensors, devices=devices, quantization="int8")
    for found, expected in zip(model.logprobs(PROMPTS, seq=CHUNK), alone(case, "int8"), strict=True):
        np.testing.assert_allclose(found, expected, atol=ERRORS.get(case, 2e-5) * fixture.spread, rtol=0)


@pytest.mark.parametrize("case", slow_but(["llama", "gpt2"], ["llama"]))
def test_only_matrices_of_layers_are_int8(case):
    fixture = Fixture.load(case)
    parameters = PagedModel(fixture.config, fixture.tensors, dtype=jnp.bfloat16, quantization="int8").space.parameters
    kinds = {path: str(struct.dtype) for path, struct in parameters.items()}
    for path, kind in kinds.items():
        expected = "int8" if path.endswith(".weight") else "bfloat16"
        scales = f"{path.removesuffix('scale')}weight" in kinds
        assert kind == ("float32" if path.endswith(".scale") and scales else expected), path
    assert {"int8", "float32", "bfloat16"} == set(kinds.values())
